"""The owner of background tasks: what raises is reported, starts again after a pause, and is given up in the end."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import re
from pathlib import Path

import pytest

from distui.runners.run import clock, parts
from distui.runners.run.parts import BACKOFF_S, STEADY_S, Parts, failure, first_of, in_background

RUNNERS = Path(parts.__file__).parent.parent
AWAITED = {
    "agent/metrics_push.py", "agent/metrics_writer.py", "agent/pattern_process.py", "hub/stopping.py",
    "hub/sky_cloud.py", "hub/sky_process.py", "run/parts.py",
}  # fmt: skip
"""Modules that make tasks whose results they ask for themselves."""


class Reports:
    """What an owner reports."""

    def __init__(self) -> None:
        self.all: list[tuple[str, str, str]] = []
        self.parts = Parts(lambda name, error, follows: self.all.append((name, repr(error), follows)))

    @property
    def follows(self) -> list[str]:
        return [follows for _, _, follows in self.all]


class Failing:
    """A part that fails each time, after `lasts` seconds."""

    def __init__(self, lasts: float = 0.0) -> None:
        self.starts: list[float] = []
        self._lasts = lasts

    async def run(self) -> None:
        self.starts.append(clock.monotonic())
        await asyncio.sleep(self._lasts)
        raise ValueError("no")


async def test_a_part_that_fails_is_restarted_with_longer_pauses_and_given_up() -> None:
    made, part = Reports(), Failing()
    await made.parts.start("p", part.run)
    pauses = [after - before for before, after in zip(part.starts, part.starts[1:], strict=False)]
    assert pauses == pytest.approx(BACKOFF_S)
    assert made.all[0] == ("p", "ValueError('no')", "it starts again in 1 s")
    assert made.follows[-1] == "it is given up after 7 consecutive failures"
    assert len(made.all) == len(BACKOFF_S) + 1


async def test_a_part_that_ran_for_long_begins_its_back_off_anew() -> None:
    made, part = Reports(), Failing(STEADY_S)
    task = made.parts.start("p", part.run)
    await asyncio.sleep(30 * (STEADY_S + 2))
    assert set(made.follows) == {"it starts again in 1 s"}
    assert not task.done()
    await made.parts.stop("p")
    assert task.cancelled()


async def test_a_part_that_returns_has_done_its_work() -> None:
    made = Reports()
    await made.parts.start("p", lambda: asyncio.sleep(1.0))
    assert made.all == []


async def test_what_a_part_awaits_may_be_cancelled_under_it() -> None:
    made = Reports()

    async def awaits() -> None:
        gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        gone.cancel()
        await gone

    made.parts.start("p", awaits)
    await asyncio.sleep(0.5)
    assert made.all == [("p", "CancelledError()", "it starts again in 1 s")]
    await made.parts.stop("p")


async def test_a_part_that_fails_while_it_is_stopped_is_not_restarted() -> None:
    made, part = Reports(), Failing()

    async def fails_at_its_end() -> None:
        try:
            await asyncio.sleep(600.0)
        finally:
            await part.run()

    task = made.parts.start("p", fails_at_its_end)
    await asyncio.sleep(1.0)
    await made.parts.stop("p")
    assert task.cancelled()
    assert made.all == [("p", "ValueError('no')", "it is not tried again")]


async def test_what_is_done_once_is_reported_and_raises_for_who_awaits_it() -> None:
    made, part = Reports(), Failing()
    with pytest.raises(ValueError, match="no"):
        await made.parts.once("o", part.run())
    await made.parts.guard("g", part.run())
    assert [(name, follows) for name, _, follows in made.all] == [
        ("o", "it is not tried again"),
        ("g", "it is not tried again"),
    ]
    assert len(part.starts) == 2


async def test_parts_are_stopped_and_awaited_by_name() -> None:
    made, began = Reports(), clock.monotonic()
    slow = made.parts.once("slow", asyncio.sleep(60.0))
    other = made.parts.once("other", asyncio.sleep(600.0))
    await made.parts.wait("slow", 10.0)
    assert not slow.done()
    await made.parts.wait("slow", 1000.0)
    assert slow.done()
    assert clock.monotonic() - began == pytest.approx(60.0)
    await made.parts.stop("other", "nobody")
    assert other.cancelled()
    assert made.all == []


async def test_what_nobody_asks_for_is_reported_unless_the_body_failed_first() -> None:
    made, part = Reports(), Failing()
    made.parts.watch_loop(asyncio.get_running_loop())
    with contextlib.suppress(KeyError):
        async with in_background(part.run()):
            await asyncio.sleep(1.0)
            raise KeyError
    gc.collect()
    assert made.all == []
    async with in_background(part.run()):
        await asyncio.sleep(1.0)
    gc.collect()
    assert [(name, error) for name, error, _ in made.all] == [("event-loop", "ValueError('no')")]


async def test_a_callback_of_the_loop_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    made, loop = Reports(), asyncio.get_running_loop()
    made.parts.watch_loop(loop)
    loop.call_later(1.0, lambda: 1 // 0)
    await asyncio.sleep(2.0)
    ((name, error, follows),) = made.all
    assert (name, "ZeroDivisionError" in error) == ("event-loop", True)
    assert "Exception in callback" in follows
    assert "ZeroDivisionError" in caplog.text


async def test_the_finding_has_the_first_exception_of_a_group() -> None:
    group = ExceptionGroup("several", [ExceptionGroup("inner", [KeyError("x")]), ValueError("y")])
    finding = failure("pulses", group, "it starts again in 1 s", 3, "report it")
    assert (finding.id, finding.severity, finding.node) == ("part-failed:pulses", "warning", 3)
    assert finding.text == "internal error in pulses (it starts again in 1 s): KeyError: 'x'"


async def test_the_first_of_several_ends_the_others_and_may_raise() -> None:
    ended: list[str] = []

    async def waits(name: str, seconds: float) -> None:
        try:
            await asyncio.sleep(seconds)
        finally:
            ended.append(name)

    await first_of(waits("a", 1.0), waits("b", 50.0))
    assert ended == ["a", "b"]
    with pytest.raises(ValueError, match="no"):
        await first_of(waits("c", 50.0), Failing(1.0).run())


async def test_what_runs_in_the_background_ends_with_its_body() -> None:
    with contextlib.suppress(KeyError):
        async with in_background(asyncio.sleep(600.0)) as task:
            raise KeyError
    assert task.cancelled()


def test_every_other_task_of_an_agent_and_a_hub_belongs_to_parts_or_a_group() -> None:
    makes_tasks = re.compile(r"asyncio\.(create_task|ensure_future)\(")
    folders = (RUNNERS / name for name in ("run", "agent", "node", "hub", "notify", "telemetry"))
    modules = [path for folder in folders for path in folder.rglob("*.py")]
    found = {
        path.relative_to(RUNNERS).as_posix() for path in modules if makes_tasks.search(path.read_text())
    }
    viewers = {"run/server_link.py", "node/run_following.py", "run/wire/client.py", "run/wire/ssh.py"}
    assert found - viewers == AWAITED
