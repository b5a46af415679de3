"""The log of a run that was restarted: what stays on the screen, what keys reach, what Enter opens."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path

import pytest
import scripted as play
import several
from conftest import Rig, Start, log_text, shown

from distui.presets.finding import Finding
from distui.runners.logs import line_times
from distui.runners.run.log_files import file_id, file_sizes
from distui.runners.run.model import (
    HUB,
    AttemptEnded,
    AttemptStarted,
    CaughtUp,
    Event,
    FindingRaised,
    FirstCause,
    LogGrew,
    Outcome,
    RankChanged,
    RankPhase,
    RunEnded,
    RunPhase,
)
from distui.tui.rows.log import Selection
from distui.tui.screens import log_keys
from distui.tui.screens.log_view import LogView
from distui.tui.screens.run import RunScreen

ERROR = "RuntimeError: CUDA error: an illegal memory access was encountered"
TRACEBACK = f'Traceback (most recent call last):\n  File "train.py", line 88, in step\n{ERROR}\n'
RULE = "── attempt 2 · restarted after rank 1 failed ──"
CAUSE = FirstCause(
    1, 1, 0, 4712, 1, text="rank 1 failed on its GPU", last_lines=tuple(TRACEBACK.splitlines()),
    at=play.BEGAN + 60,
)  # fmt: skip
FOUND = Finding(
    "died-cuda", "error", "attempt 1: rank 1 failed on its GPU", rank=1, since=play.BEGAN + 60,
    evidence=("attempt 1: rank 1 (pid 4712) ended with exit code 1",),
)  # fmt: skip


def first_attempt(ranks: int = 2) -> list[tuple[float, Event]]:
    """Attempt 1, which ended when rank 1 failed."""
    events = [event for event in play.running(ranks, gpu=False) if event[0] <= 4]
    return [
        *events,
        (60, RankChanged(1, 1, RankPhase.FAILED, 1, 4712, 1, cause=CAUSE)),
        (61, AttemptEnded(1, Outcome.FAILED, CAUSE, "attempt 1 failed: rank 1 failed on its GPU")),
    ]


def restarted(*more: Event, attempts: int = 2) -> list[tuple[float, Event]]:
    """The run in its second attempt, or a later one; the first has failed."""
    events = first_attempt()
    for number in range(2, attempts + 1):
        cause = "failure" if number == 2 else "restart"
        events.append((60.0 + 2 * number, AttemptStarted(number, cause, 2, play.places(2, gpu=False))))
    return [*events, *((124.0, event) for event in more), (124.6, CaughtUp(40))]


def ended(*more: Event) -> list[tuple[float, Event]]:
    return [
        *restarted(*more),
        (124.8, RunEnded(RunPhase.SUCCEEDED, 0, "every rank ended with exit code 0")),
    ]


def write(folder: Path, attempts: int = 2, node: int = 0, rank: int = 1) -> None:
    """A rank of attempt 1 raises after a minute; the other attempts begin. An agent saw when."""
    texts = {file_id(node, 1, rank, "err"): (TRACEBACK, 60.0)}
    for number in range(2, attempts + 1):
        texts[file_id(node, number, 0, "out")] = (f"attempt {number} begins\n", 61.0 + 2 * number)
    for name, (text, at) in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
        _date(folder, name, at)
    _date(folder, file_id(0, 1, 0, "out"), 50.0)


def _date(folder: Path, name: str, at: float) -> None:
    """An agent saw that a log was written by this second of the run."""
    size = (folder / name).stat().st_size
    times = folder / line_times.FOLDER / name
    times.parent.mkdir(parents=True, exist_ok=True)
    times.write_bytes(line_times.packed([(0, play.BEGAN + at - 1), (size, play.BEGAN + at)]))


def sizes(folder: Path) -> LogGrew:
    return LogGrew(file_sizes(folder))


def rigged(rig: Start, events: Iterable[tuple[float, Event]], attempts: int = 2) -> Rig:
    """A cockpit on these events, which the sizes of all files precede."""
    it = rig([], ranks=2)
    write(it.run_dir, attempts)
    script = list(events)
    it.link.script = play.stamped([*script[:-1], (124.5, sizes(it.run_dir)), script[-1]])
    return it


def run_screen(it: Rig) -> RunScreen:
    return next(screen for screen in it.app.screen_stack if isinstance(screen, RunScreen))


def log_of(it: Rig) -> LogView:
    return run_screen(it).log_view


async def opened(it: Rig) -> LogView:
    await it.until(lambda: "attempt 2 begins" in it.screen())
    await it.press("3")
    await it.until(lambda: RULE in it.screen())
    return log_of(it)


def is_at_the_error(it: Rig) -> bool:
    return "[3 Log" in it.screen() and ERROR in log_of(it).chosen_text()


async def test_after_a_restart_all_that_was_shown_stays_and_a_rule_follows(rig: Start) -> None:
    it = rigged(rig, [*first_attempt(), (62, CaughtUp(30))])
    async with shown(it, 120, 40):
        await it.press("3")
        await it.until(lambda: ERROR in it.screen())
        it.link.play(AttemptStarted(2, "failure", 2, play.places(2, gpu=False)), seq=90)
        await it.until(lambda: RULE in it.screen())
        assert ERROR in it.screen()
        it.link.play(sizes(it.run_dir))
        await it.until(lambda: "attempt 2 begins" in it.screen())
        rows = it.screen().splitlines()
        places = [
            next(at for at, row in enumerate(rows) if part in row) for part in (ERROR, RULE, "2 begins")
        ]
        assert places == sorted(places)


async def test_keys_reach_every_attempt(rig: Start) -> None:
    async with shown(rigged(rig, restarted()), 120, 40) as it:
        log = await opened(it)
        await it.press("e")
        await it.until(lambda: ERROR in log.chosen_text())
        await it.press("slash", *"loss", "enter")
        await it.until(lambda: "30 lines match" in it.screen())
        await it.press("slash", "ctrl+u", *"begins|illegal", "enter")
        await it.until(lambda: RULE in it.screen() and "2 lines match" in it.screen())
        await it.press("N")
        assert ERROR in log.chosen_text()
        await it.press("y")
        assert ERROR in it.app.clipboard
        await it.press("escape", "v", "v")  # stderr only
        await it.until(lambda: log.selection.stream == "err" and ERROR in it.screen())
        log.select(Selection(rank=1))
        await it.until(lambda: ERROR in it.screen() and "step 29" not in it.screen())
        assert "attempt 2 begins" in log_text(log) or RULE in log_text(log)


async def test_the_pager_gets_the_lines_of_all_attempts(
    rig: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    paged: list[str] = []
    monkeypatch.setattr(log_keys, "page", lambda app, text: paged.append(text))
    it = rigged(rig, restarted(attempts=9), attempts=9)
    for number in range(2, 10):
        with (it.run_dir / file_id(0, number, 0, "out")).open("a") as out:
            out.write("x\n" * 300)
    it.link.script[-2:-2] = play.stamped([(124.5, sizes(it.run_dir))])
    async with shown(it, 120, 40):
        await it.until(lambda: "r0" in it.screen())
        await it.press("3", "o")
        await it.until(lambda: paged)
        assert ERROR not in log_text(log_of(it)), "what is paged is not loaded"
        lines = paged[0].splitlines()
        assert [line for line in lines if "begins" in line or "──" in line or ERROR in line][:3] == [
            f"r1 err  {ERROR}", RULE, "r0  attempt 2 begins",
        ]  # fmt: skip
        assert lines[-1] == "r0  x"


def _has_moved(log: LogView, before: tuple[str, str]) -> bool:
    return log.chosen_text() not in before


async def test_n_in_context_goes_on_in_the_other_attempts(rig: Start) -> None:
    it = rigged(rig, restarted(attempts=9), attempts=9)
    lines = "".join(f"line {number}\n" for number in range(300))
    for number in range(2, 10):
        with (it.run_dir / file_id(0, number, 0, "out")).open("a") as out:
            out.write(lines)
    it.link.script[-2:-2] = play.stamped([(124.5, sizes(it.run_dir))])
    async with shown(it, 120, 40):
        await it.until(lambda: "line 299" in it.screen())
        await it.press("3")
        log = log_of(it)
        log.select(Selection(pattern="begins|illegal", only_hits=False))
        log.set_follow(True)
        await it.until(lambda: log.feed.tail is not None and "line 299" in it.screen())
        assert ERROR not in log_text(log), "attempt 1 is not read before somebody goes there"
        seen = list[str]()
        for _ in range(9):
            before = ("", log.chosen_text())
            await it.press("N")
            await it.until(partial(_has_moved, log, before))
            seen.append(log.chosen_text().split("  ", 1)[-1].strip())
        assert seen == [*(f"attempt {number} begins" for number in range(9, 1, -1)), ERROR]


@pytest.mark.parametrize("events", [restarted(FindingRaised(FOUND)), ended(FindingRaised(FOUND))])
async def test_enter_on_a_finding_opens_the_line_that_raised(
    rig: Start, events: list[tuple[float, Event]]
) -> None:
    """Also in an ended run, with a rank and a stream chosen, and from the past."""
    async with shown(rigged(rig, events), 120, 40) as it:
        log = await opened(it)
        log.select(Selection(rank=0, stream="out"))
        await it.press("6")
        await it.until(lambda: FOUND.text in it.screen())
        await it.press("enter")
        await it.until(lambda: is_at_the_error(it))
        assert log.selection.rank == 1
        await it.press("escape")
        await it.until(lambda: log.selection == Selection(rank=0, stream="out"))


async def test_enter_on_an_evidence_line_of_an_earlier_attempt_opens_it(rig: Start) -> None:
    line = f"{file_id(0, 1, 1, 'err')}:3: {ERROR}"
    found = Finding(
        "cuda-error", "error", "a kernel read memory that is not its own", rank=1, evidence=(line,)
    )
    async with shown(rigged(rig, restarted(FindingRaised(found))), 120, 40) as it:
        await opened(it)
        await it.press("6")
        await it.until(lambda: found.text in it.screen())
        await it.press("enter")
        await it.until(lambda: is_at_the_error(it))


async def test_enter_on_an_event_of_a_failure_opens_the_line_that_raised(rig: Start) -> None:
    async with shown(rigged(rig, restarted()), 120, 40) as it:
        await opened(it)
        await it.press("7")
        await it.until(lambda: "attempt 1 failed" in it.screen())
        events = run_screen(it).events
        row = next(
            at for at, cells in enumerate(events.rows) if "attempt 1 failed" in "".join(c for c, _ in cells)
        )
        events.move_to(row)
        await it.press("enter")
        await it.until(lambda: is_at_the_error(it))
        assert it.run.travel.at is None, "the screen is live"


async def test_a_moment_of_the_past_has_no_later_attempt(rig: Start) -> None:
    async with shown(rigged(rig, restarted()), 120, 40) as it:
        log = await opened(it)
        it.run.travel.go(play.BEGAN + 30)
        await it.until(lambda: "PAST" in it.screen() and log.feed.logs is not None)
        await it.until(lambda: "no times of" in it.screen())  # its lines are of no known time
        assert RULE not in log_text(log)
        assert "attempt 2" not in log_text(log)
        it.run.travel.live()
        await it.until(lambda: RULE in it.screen())


async def test_several_nodes_are_one_log_too(rig: Start) -> None:
    lines = several.running(2, 2)
    cause = FirstCause(2, 0, 1, 4712, 1, last_lines=tuple(TRACEBACK.splitlines()), at=play.BEGAN + 60)
    found = Finding("died-cuda", "error", "attempt 1: rank 2 failed", rank=2, node=1, since=play.BEGAN + 60)
    events: list[several.Told] = [
        *lines[:-1],
        (124.7, 1, AttemptEnded(1, Outcome.FAILED, cause, "attempt 1 failed: rank 2 failed")),
        (124.75, 0, AttemptStarted(2, "failure", 4, play.places(2))),
        (124.8, HUB, FindingRaised(found)),
        (124.9, HUB, CaughtUp(60)),
    ]
    it = rig(nodes=events)
    write(it.run_dir, node=1, rank=2)
    it.link.script[-1:-1] = play.stamped([(124.85, sizes(it.run_dir))])
    async with shown(it, 120, 40):
        await it.until(lambda: "attempt 2" in it.screen())
        await it.press("6")
        await it.until(lambda: found.text in it.screen())
        await it.press("enter")
        await it.until(lambda: is_at_the_error(it))
        assert log_of(it).selection.rank == 2
