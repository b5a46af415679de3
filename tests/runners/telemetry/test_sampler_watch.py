"""The decision over the sampler child, as a table, and the real thing over a real child."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from gpu_rig import Rig, needs_compiler, scenario
from patience import slowness

from distui.runners.model import Event, FindingCleared, FindingRaised, GpuTick
from distui.runners.telemetry.gpus import (
    Act,
    GpuSource,
    SamplerLimits,
    State,
    Watch,
    backoff,
    decide,
    describe,
)

pytestmark = pytest.mark.timeout(40)
LIMITS = SamplerLimits()
CALM = SamplerLimits(stale_s=10.0, init_s=20.0, backoff_s=0.2)


def quick() -> SamplerLimits:
    """A hang is soon one, and a sampler that only waits for the processor is none."""
    return SamplerLimits(stale_s=0.6 * slowness(), init_s=20.0 * slowness(), backoff_s=0.2)


def watch(state: State, since: float = 0.0, heard: float = 0.0, failures: int = 0, stuck: int = 0) -> Watch:
    return Watch(state, since, heard, failures, stuck)


@pytest.mark.parametrize(
    ("given", "now", "expected"),
    [
        (watch(State.STARTING), 19.0, Act.NOTHING),
        (watch(State.STARTING), 21.0, Act.KILL),
        (watch(State.SAMPLING, heard=100.0), 104.9, Act.NOTHING),
        (watch(State.SAMPLING, heard=100.0), 105.1, Act.KILL),
        (watch(State.WAITING, failures=1), 4.9, Act.NOTHING),
        (watch(State.WAITING, failures=1), 5.0, Act.SPAWN),
        (watch(State.WAITING, failures=3), 19.0, Act.NOTHING),
        (watch(State.WAITING, failures=3), 20.0, Act.SPAWN),
        (watch(State.WAITING, failures=3, stuck=3), 1e6, Act.NOTHING),
        (watch(State.ABSENT), 1e6, Act.NOTHING),
    ],
)
def test_decide(given: Watch, now: float, expected: Act) -> None:
    assert decide(given, now, LIMITS) is expected


def test_a_slow_interval_is_no_hang() -> None:
    given = watch(State.SAMPLING, heard=0.0)
    assert decide(given, 14.0, LIMITS, interval=5.0) is Act.NOTHING
    assert decide(given, 15.1, LIMITS, interval=5.0) is Act.KILL


def test_backoff_doubles_to_its_limit() -> None:
    waits = [backoff(watch(State.WAITING, failures=failures), LIMITS) for failures in (1, 2, 3, 4, 7, 5000)]
    assert waits == [5, 10, 20, 40, 300, 300]


def test_describe_says_how_long_and_what_next() -> None:
    hung = watch(State.WAITING, since=106.0, heard=100.0, failures=1)
    text = describe(hung, 107.0, LIMITS)
    assert text == "GPU driver call has not returned for 7 s (a new sampler in 4 s)"
    assert "3 samplers hang in the driver" in str(
        describe(Watch(State.WAITING, 0, 0, 3, stuck=3), 1.0, LIMITS)
    )
    assert describe(watch(State.SAMPLING), 3.0, LIMITS) is None
    assert describe(watch(State.STARTING), 3.0, LIMITS) is None


class Seen:
    """Events as they come, for a test that waits for one."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[Event] = asyncio.Queue()
        self.take = self._queue.put_nowait

    async def until(self, wanted: Callable[[Event], bool]) -> Event:
        async with asyncio.timeout(15 * slowness()):
            while not wanted(event := await self._queue.get()):
                pass
            return event


@asynccontextmanager
async def running(
    command: tuple[str, ...] | None = None, limits: SamplerLimits = CALM
) -> AsyncIterator[tuple[GpuSource, Seen]]:
    seen = Seen()
    source = GpuSource(0.1, seen.take, node=2, limits=limits, command=command)
    await source.start()
    try:
        yield source, seen
    finally:
        await source.stop()


def good(event: Event) -> bool:
    return isinstance(event, GpuTick) and event.problem is None


def problem(words: str) -> Callable[[Event], bool]:
    return lambda event: isinstance(event, GpuTick) and words in (event.problem or "")


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rig:
    found = Rig(tmp_path, scenario.busy(2))
    for name, value in found.environment.items():
        monkeypatch.setenv(name, value)
    return found


@pytest.mark.real
@needs_compiler
async def test_a_call_that_hangs_becomes_a_sentence_and_ends_with_the_hang(rig: Rig) -> None:
    async with running(limits=quick()) as (source, seen):
        await seen.until(good)
        hung = source.pid
        rig.set(scenario.busy(2) + scenario.hang("nvmlDeviceGetUtilizationRates"))
        tick = await seen.until(problem("GPU driver call has not returned for"))
        assert isinstance(tick, GpuTick)
        assert len(tick.gpus) == 2  # the values last known
        await seen.until(problem("waiting for a new sampler's first values"))
        rig.set(scenario.busy(2))
        await seen.until(good)
        assert source.pid not in (None, hung)
        assert not Path(f"/proc/{hung}").exists()


@pytest.mark.real
@needs_compiler
async def test_a_driver_that_hangs_while_it_starts_is_given_up(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.set(scenario.hang("nvmlInitWithFlags"))
    seen = Seen()
    source = GpuSource(0.1, seen.take, limits=SamplerLimits(init_s=0.5, backoff_s=60))
    await source.start()
    try:
        await seen.until(problem("a new sampler in"))
        assert source.pid is None
    finally:
        await source.stop()


@pytest.mark.real
@needs_compiler
async def test_a_sampler_that_dies_is_replaced(rig: Rig) -> None:
    async with running() as (source, seen):
        await seen.until(good)
        assert source.pid is not None
        os.kill(source.pid, 9)
        await seen.until(problem("the GPU sampler ended with SIGKILL (a new sampler in"))
        await seen.until(good)


@pytest.mark.real
@needs_compiler
async def test_health_is_told_with_its_node_and_taken_back(rig: Rig) -> None:
    async with running() as (_, seen):
        await seen.until(good)
        rig.set(scenario.busy(2) + scenario.lost(1) + scenario.xid(0, 1, 48))
        raised = [await seen.until(lambda event: isinstance(event, FindingRaised)) for _ in range(2)]
        findings = [event.finding for event in raised if isinstance(event, FindingRaised)]
        assert {finding.id for finding in findings} == {"gpu-lost:gpu1", "xid-48:gpu0"}
        assert {finding.node for finding in findings} == {2}
        rig.set(scenario.busy(2))
        cleared = await seen.until(lambda event: isinstance(event, FindingCleared))
        assert cleared == FindingCleared("gpu-lost:gpu1", node=2)


@pytest.mark.real
async def test_without_a_driver_library_one_tick_and_no_process(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DISTUI_NVML_LIBRARY", str(tmp_path / "none.so"))
    events: list[Event] = []
    ended = asyncio.Event()

    def take(event: Event) -> None:
        events.append(event)
        ended.set()

    source = GpuSource(0.0, take, limits=CALM)
    await source.start()
    try:
        async with asyncio.timeout(15 * slowness()):
            await ended.wait()
            while source.pid is not None:
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.3)  # several intervals, in which nothing more may come
        assert len(events) == 1
        assert problem("no GPU: ")(events[0])
        assert source.pid is None
    finally:
        await source.stop()


@pytest.mark.real
async def test_a_sampler_that_cannot_work_is_quoted(tmp_path: Path) -> None:
    command = (sys.executable, "-c", "import sys; sys.exit('no such module')")
    async with running(command) as (_, seen):
        await seen.until(problem("the GPU sampler ended with status 1: no such module"))


@pytest.mark.real
async def test_a_sampler_that_cannot_start_is_said(tmp_path: Path) -> None:
    async with running((str(tmp_path / "none"),)) as (_, seen):
        await seen.until(problem("the GPU sampler could not be started: No such file or directory"))


@pytest.mark.real
async def test_lines_that_are_no_events_are_passed_over(tmp_path: Path) -> None:
    line = '{"type":"GpuTick","gpus":[],"took_ms":1.0}'
    code = f"print('noise'); print('{{}}'); print('x' * (3 << 20)); print({line!r}, flush=True); input()"
    async with running((sys.executable, "-c", code)) as (_, seen):
        assert await seen.until(good) == GpuTick(gpus=(), took_ms=1.0)


@pytest.mark.real
@needs_compiler
async def test_an_agent_that_stood_still_blames_nobody(rig: Rig) -> None:
    limits = SamplerLimits(stale_s=2.0 * slowness(), init_s=20.0 * slowness(), backoff_s=0.2)
    async with running(limits=limits) as (source, seen):
        await seen.until(good)
        pid = source.pid
        time.sleep(limits.stale_s + 0.5)  # noqa: ASYNC251 - the loop itself is to stand still, longer than a hang
        await seen.until(good)
        await asyncio.sleep(0.3)
        assert source.pid == pid


@pytest.mark.real
@needs_compiler
async def test_stop_ends_the_child(rig: Rig) -> None:
    async with running() as (source, seen):
        await seen.until(good)
        pid = source.pid
    assert not Path(f"/proc/{pid}").exists()
    assert source.pid is None
