"""Snapshots of the screens: a change of looks is a change that somebody looked at.

After a wanted change: `pytest tests/tui/test_looks.py --snapshot-update`, then look at the SVG files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest
import scripted as play
from conftest import Rig, Start
from test_runs_list import several_runs
from textual.pilot import Pilot

from distui.presets.finding import Finding
from distui.runners.model import AttemptEnded, Event, FindingRaised, Outcome, RestartDelayed

Compare = Callable[..., bool]
Script = Iterable[tuple[float, Event]]

SMALL, MIDDLE, LARGE = (80, 24), (120, 40), (200, 60)

pytestmark = pytest.mark.timeout(60)


def look(
    snap: Compare,
    it: Rig,
    size: tuple[int, int],
    wanted: str,
    press: Iterable[str] = (),
    then: str = "",
    later: float = 0.0,
) -> bool:
    """The screen once it shows `wanted`, after `press` once it shows `then`, `later` seconds older."""

    async def settle(pilot: Pilot[None]) -> None:
        it.pilot = pilot
        await it.until(lambda: wanted in it.screen())
        it.now += later
        for key in press:
            await it.press(key)
        await it.until(lambda: then in it.screen())
        await pilot.pause()

    same = snap(it.app, terminal_size=size, run_before=settle)
    assert it.app._exception is None
    return same


def troubled() -> list[tuple[float, Event]]:
    """A failure that waits for its restart, and findings."""
    finding = Finding(
        "slow", "warning", "rank 4 waits least: it is the straggler", rank=4, remedy="look at GPU 4"
    )
    return [
        *play.running(),
        (125, FindingRaised(finding)),
        (125, AttemptEnded(1, Outcome.FAILED, play.cause(), "rank 3 failed")),
        (125, RestartDelayed(4.0, 1, 3)),
    ]


@pytest.mark.parametrize("size", [SMALL, MIDDLE, LARGE], ids=["80x24", "120x40", "200x60"])
def test_overview(snap_compare: Compare, rig: Start, size: tuple[int, int]) -> None:
    assert look(snap_compare, rig(play.running()), size, "step 29")


@pytest.mark.parametrize("size", [SMALL, MIDDLE, LARGE], ids=["80x24", "120x40", "200x60"])
def test_ranks(snap_compare: Compare, rig: Start, size: tuple[int, int]) -> None:
    assert look(snap_compare, rig(play.running()), size, "step 29", ["2"], then="[2 Ranks]")


def test_ranks_in_light(snap_compare: Compare, rig: Start) -> None:
    assert look(snap_compare, rig(play.running()), MIDDLE, "step 29", ["t", "2"], then="[2 Ranks]")


def test_ranks_without_colour(snap_compare: Compare, rig: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    assert look(snap_compare, rig(play.running()), MIDDLE, "step 29", ["2"], then="[2 Ranks]")


def test_without_gpus(snap_compare: Compare, rig: Start) -> None:
    assert look(snap_compare, rig(play.running(2, gpu=False), ranks=2), SMALL, "step 29")


@pytest.mark.parametrize("size", [SMALL, MIDDLE], ids=["80x24", "120x40"])
def test_restart_pending(snap_compare: Compare, rig: Start, size: tuple[int, int]) -> None:
    assert look(snap_compare, rig(troubled()), size, "rank 3 ready", then="restart in")


@pytest.mark.parametrize("size", [SMALL, MIDDLE], ids=["80x24", "120x40"])
def test_failed(snap_compare: Compare, rig: Start, size: tuple[int, int]) -> None:
    assert look(snap_compare, rig(play.failed()), size, "rank 3 ready")


def test_finished(snap_compare: Compare, rig: Start) -> None:
    assert look(snap_compare, rig(play.finished()), SMALL, "step 29")


def test_stale(snap_compare: Compare, rig: Start) -> None:
    assert look(snap_compare, rig(play.running()), SMALL, "step 29", later=12.0, then="12s old")


def test_empty(snap_compare: Compare, rig: Start) -> None:
    assert look(snap_compare, rig(run=None), SMALL, "No run yet.", then="q leave")


@pytest.mark.parametrize("size", [SMALL, MIDDLE, LARGE], ids=["80x24", "120x40", "200x60"])
def test_runs(snap_compare: Compare, rig: Start, size: tuple[int, int]) -> None:
    assert look(snap_compare, rig(runs=several_runs(), run=None), size, "✖ failed", then="q leave")


def test_runs_in_light(snap_compare: Compare, rig: Start) -> None:
    press = ["space", "t", "slash", *"train"]
    assert look(snap_compare, rig(runs=several_runs(), run=None), MIDDLE, "✖ failed", press, then="3 of 4")


def test_runs_without_colour(snap_compare: Compare, rig: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    assert look(snap_compare, rig(runs=several_runs(), run=None), MIDDLE, "✖ failed", ["s"], then="state▾")


def test_removal(snap_compare: Compare, rig: Start) -> None:
    it = rig(runs=several_runs(), run=None)
    assert look(snap_compare, it, SMALL, "✖ failed", ["down", "X"], then="Remove run train0")


@pytest.mark.parametrize("size", [SMALL, MIDDLE], ids=["80x24", "120x40"])
def test_launch(snap_compare: Compare, rig: Start, size: tuple[int, int]) -> None:
    press = ["ctrl+n", *"train.py"]
    whole = "│   train.py "  # a plan of the first letters may have been there before
    assert look(snap_compare, rig(play.running()), size, "step 29", press, then=whole)


@pytest.mark.parametrize("size", [(60, 15), SMALL], ids=["60x15", "80x24"])
def test_confirm(snap_compare: Compare, rig: Start, size: tuple[int, int]) -> None:
    press = ["colon", *"restart env LR=1", "enter"]
    assert look(snap_compare, rig(play.running()), size, "RUNNING", press, then="Restart 8 ranks")


@pytest.mark.parametrize("size", [(60, 15), SMALL, MIDDLE], ids=["60x15", "80x24", "120x40"])
def test_nccl_dialog(snap_compare: Compare, rig: Start, size: tuple[int, int]) -> None:
    assert look(snap_compare, rig(play.running()), size, "RUNNING", ["d"], then="NCCL_DEBUG of every rank")


def test_command_line(snap_compare: Compare, rig: Start) -> None:
    assert look(snap_compare, rig(play.running()), SMALL, "step 29", ["colon", *"signal USR"], then="RANK")


def test_help(snap_compare: Compare, rig: Start) -> None:
    assert look(snap_compare, rig(play.running()), SMALL, "step 29", ["?"], then="everywhere")


def test_events(snap_compare: Compare, rig: Start) -> None:
    assert look(
        snap_compare,
        rig(troubled()),
        SMALL,
        "rank 3 ready",
        ["7"],
        then="notices, commands and checkpoints",
    )


def test_ascii(snap_compare: Compare, rig: Start) -> None:
    assert look(snap_compare, rig(play.running(), ascii_only=True), SMALL, "step 29")


def test_light(snap_compare: Compare, rig: Start) -> None:
    assert look(snap_compare, rig(play.running()), SMALL, "step 29", ["t"])


def test_the_terminals_own_colours(snap_compare: Compare, rig: Start) -> None:
    assert look(snap_compare, rig(play.running()), SMALL, "step 29", ["t", "t"])


def test_without_colour(snap_compare: Compare, rig: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    assert look(snap_compare, rig(play.running()), SMALL, "step 29")


def test_too_small(snap_compare: Compare, rig: Start) -> None:
    assert look(snap_compare, rig(play.running()), (50, 10), "enlarge")
