"""What screens of a run and the list of runs look like; see looks.py."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import scripted as play
from conftest import Rig, Start
from looks import FOLDER, MIDDLE, SMALL, Look, is_colourless, palette, settled
from test_runs_list import several_runs

from distui.presets.finding import Finding
from distui.runners.run.model import AttemptEnded, Event, FindingRaised, Outcome, RestartDelayed
from distui.tui import colours

LOW = (60, 15)


def troubled() -> list[tuple[float, Event]]:
    """A failure that waits for its restart, and a finding."""
    finding = Finding(
        "slow", "warning", "rank 4 waits least: it is the straggler", rank=4, remedy="look at GPU 4"
    )
    return [
        *play.running(),
        (125, FindingRaised(finding)),
        (125, AttemptEnded(1, Outcome.FAILED, play.cause(), "rank 3 failed")),
        (125, RestartDelayed(4.0, 1, 3)),
    ]


def test_each_file_has_its_test() -> None:
    tests = {
        f"{file.stem.removeprefix('test_')}/{name}.txt"
        for file in Path(__file__).parent.glob("test_looks*.py")
        for name in re.findall(r"def test_(\w+)", file.read_text())
    }
    assert {str(file.relative_to(FOLDER)) for file in FOLDER.rglob("*.*")} <= tests


def test_palette(look: Look) -> None:
    for theme in colours.THEMES:
        look.add(theme.name, [f"{name:8} {value}" for name, value in palette(theme).items()])
    look.compare()


async def test_overview(look: Look, rig: Start) -> None:
    await look(lambda: rig(play.running()))


async def test_overview_in_ascii(look: Look, rig: Start) -> None:
    await look(lambda: rig(play.running(), ascii_only=True), sizes=[SMALL])


async def test_ranks(look: Look, rig: Start) -> None:
    await look(lambda: rig(play.running()), "2")


async def test_ranks_in_other_themes(look: Look, rig: Start) -> None:
    async with settled(rig(play.running()), MIDDLE) as it:
        await it.press("2")
        for theme in ("light", "the terminal's own"):
            await it.press("t")
            await look.take(it, theme)
    look.compare()


async def test_without_colours_the_text_is_the_same(rig: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []
    for no_colour in (False, True):
        if no_colour:
            monkeypatch.setenv("NO_COLOR", "1")
        async with settled(rig(troubled()), MIDDLE) as it:
            seen.append([])
            for key in "1234567":
                await it.press(key)
                seen[-1].append(it.screen())
                assert not no_colour or is_colourless(it.app), f"view {key} has a colour"
    assert seen[0] == seen[1]


async def test_logs(look: Look, rig: Start) -> None:
    await look(lambda: rig(play.running()), "3", sizes=[SMALL])


async def test_events(look: Look, rig: Start) -> None:
    await look(lambda: rig(troubled()), "7", sizes=[SMALL])


async def test_without_gpus(look: Look, rig: Start) -> None:
    await look(lambda: rig(play.running(2, gpu=False), ranks=2), sizes=[SMALL])


async def test_a_restart_is_pending(look: Look, rig: Start) -> None:
    await look(lambda: rig(troubled()), sizes=[SMALL, MIDDLE])


async def test_failed(look: Look, rig: Start) -> None:
    await look(lambda: rig(play.failed()), sizes=[SMALL, MIDDLE], resized=True)


async def test_finished(look: Look, rig: Start) -> None:
    await look(lambda: rig(play.finished()), sizes=[SMALL])


async def test_nothing_has_come_for_12_seconds(look: Look, rig: Start) -> None:
    async def wait(it: Rig) -> None:
        it.now += 12

    await look(lambda: rig(play.running()), sizes=[SMALL], first=wait)


async def test_too_small(look: Look, rig: Start) -> None:
    await look(lambda: rig(play.running()), sizes=[(50, 10)])


async def test_help(look: Look, rig: Start) -> None:
    await look(lambda: rig(play.running()), "?", sizes=[SMALL])


async def test_command_line(look: Look, rig: Start) -> None:
    await look(lambda: rig(play.running()), "colon", *"signal USR", sizes=[SMALL])


async def test_restart_dialog(look: Look, rig: Start) -> None:
    press = ["colon", *"restart env LR=1", "enter"]
    await look(lambda: rig(play.running()), *press, sizes=[LOW, SMALL])


async def test_nccl_dialog(look: Look, rig: Start) -> None:
    await look(lambda: rig(play.running()), "d", sizes=[LOW, MIDDLE])


async def test_no_runs(look: Look, rig: Start) -> None:
    await look(lambda: rig(run=None), sizes=[SMALL])


async def test_runs(look: Look, rig: Start) -> None:
    await look(lambda: rig(runs=several_runs(), run=None), resized=True)


async def test_a_search_of_runs(look: Look, rig: Start) -> None:
    await look(lambda: rig(runs=several_runs(), run=None), "space", "slash", *"train", sizes=[MIDDLE])


async def test_removal_dialog(look: Look, rig: Start) -> None:
    await look(lambda: rig(runs=several_runs(), run=None), "down", "D", sizes=[SMALL])
