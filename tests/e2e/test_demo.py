"""`make demo` in a real pseudo-terminal: what a newcomer sees, does, leaves and comes back to."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from .cockpit import Cockpit, in_cockpit
from .runs import World, until
from .screen import Screen

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.torch


@contextmanager
def terminal(world: World, *argv: str, width: int = 120, height: int = 40) -> Iterator[Screen]:
    screen = Screen(argv, world.env, world.work, width, height)
    try:
        yield screen
    finally:
        screen.close()


def steps_shown(text: str) -> int:
    """The step in the header's second line; 0 while there is none."""
    found = re.search(r"\bstep ([\d,]+)", text.splitlines()[1] if text.count("\n") else "")
    return int(found[1].replace(",", "")) if found else 0


@pytest.mark.real
def test_make_demo_shows_restarts_leaves_and_comes_back(world: World) -> None:
    make = (
        "make",
        "--no-print-directory",
        "-C",
        str(ROOT),
        f"VENV={Path(sys.executable).parents[1]}",
        "demo",
    )
    with terminal(world, *make) as screen:
        screen.until("Starting the demo on 2 ranks: the cockpit opens in a moment")
        assert b"\x1b[?1049h" not in screen.written, "before the cockpit is loaded"
        screen.until("STARTING")
        screen.until("RUNNING")
        if shutil.which("cc"):
            screen.until("not used by this run")  # simulated, as all eight
        first = steps_shown(screen.until(lambda text: steps_shown(text) > 0))
        screen.until(lambda text: steps_shown(text) > first)
        screen.until(lambda text: re.search(r"r0 .*step \d+ loss", text))

        screen.press("r")
        asks = ("Restart 2 ranks", "SIGTERM", "y restart", "Enter cancel")
        screen.until(lambda text: all(words in text for words in asks))
        screen.press("enter")
        screen.until(lambda text: "Enter cancel" not in text)
        assert world.newest_run().status()["attempt"] == 1, "Enter cancels"
        screen.press("r")
        screen.until(lambda text: all(words in text for words in asks))
        screen.press("y")
        screen.until("attempt 2")
        screen.until(lambda text: "RUNNING" in text and steps_shown(text) > 0)

        screen.press("q")
        assert screen.ended() == 0
        said = re.search(r"demo goes on; `(.+ attach demo)` shows it again", screen.text)
        assert said is not None, screen.text

    run = world.newest_run()
    # A hook that is busy importing torch answers late: until it has, the step is unknown.
    before = run.eventually(lambda status: status["ranks"][0]["step"] is not None)
    assert before["state"] == "running"
    assert until(lambda: world.distui("ls", "--json").fine().json()[0]["total"] == 2000, every=1.0), (
        "the list has how many steps the command asks for"
    )
    typed = ("sh", "-c", f"cd {shlex.quote(str(ROOT))} && {said[1]}")
    with terminal(world, *typed, width=80, height=24) as screen:
        screen.until(lambda text: "attempt 2" in text and "RUNNING" in text)
        screen.hang_up()
    after = run.eventually(lambda status: (status["ranks"][0]["step"] or 0) > before["ranks"][0]["step"])
    assert (after["attempt"], after["state"]) == (2, "running"), "a terminal that closes changes nothing"
    assert until(lambda: not [line for line in world.processes().values() if " attach " in line])


@pytest.mark.long
def test_the_hang_of_the_demo_is_found_and_a_restart_goes_on(world: World) -> None:
    world.distui("demo", "--hang", "--detach", "--steps", "100000", "--name", "night").fine()
    run = world.newest_run()
    found = run.eventually(lambda status: [f for f in status["findings"] if f["id"].startswith("hang")])
    (hang,) = [finding for finding in found["findings"] if finding["id"].startswith("hang")]
    assert (hang["rank"], hang["severity"]) == (1, "error"), hang
    assert "distui dump night stacks" in hang["remedy"], hang
    assert "chargpt.py" in hang["text"]
    run.distui("restart", "--yes").fine()
    run.eventually(
        lambda status: status["attempt"] == 2 and min(r["step"] or 0 for r in status["ranks"]) > 5
    )
    assert not [finding for finding in run.status()["findings"] if finding["id"].startswith("hang")]
    run.stop().fine()


@pytest.mark.real
def test_the_demo_without_options_is_simulated_and_leaves_no_run(world: World) -> None:
    async def use(cockpit: Cockpit) -> None:
        await cockpit.until("demo (simulated)")
        await cockpit.until("two faults are found already. press 6")

    done = in_cockpit(world, "demo", use=use).fine()
    assert "`distui demo --hang` trains for real" in done.out
    assert world.distui("ls", "--json").fine().json() == []


@pytest.mark.real
def test_make_help_fits_on_one_screen() -> None:
    done = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert len(lines) < 24
    assert max(map(len, lines)) <= 80
    assert any(line.split()[:2] == ["make", "demo"] for line in lines)
