"""A launch from the launch screen in a real pseudo-terminal: a preset by its search, a changed field, and it runs."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from .runs import DISTUI, EXAMPLES, Run, World
from .screen import Screen

pytestmark = pytest.mark.torch

SHIFT_TAB = "\x1b[Z"


def label(screen: Screen) -> str:
    """The field that the cursor of the form is on; "" while none is seen."""
    found = re.search(r"›[ ◆] (\S+)", screen.text)
    return found[1] if found else ""


def go(screen: Screen, wanted: str, most: int = 60) -> None:
    """Down to a field, a key at a time."""
    for _ in range(most):
        before = label(screen)
        if before == wanted:
            return
        screen.press("down")
        while label(screen) in ("", before):
            assert screen.read(5.0)
    raise AssertionError(f"no field {wanted}:\n{screen.text}")


@pytest.mark.real
def test_a_preset_is_searched_changed_launched_and_seen_running(world: World) -> None:
    screen = Screen([DISTUI], world.env, world.work, 80, 24)
    try:
        # A job that somebody else runs here is shown at once.
        screen.until(lambda text: "No run yet." in text or "read-only" in text)
        screen.press("ctrl+n")
        screen.until(lambda text: label(screen) == "script")
        screen.press(SHIFT_TAB)
        screen.until(lambda text: not label(screen))
        screen.press("/", *"take this first")
        screen.until("presets 1 of")
        screen.press("enter", "enter")
        screen.until(lambda text: label(screen) == "script")
        screen.press(*str(EXAMPLES / "chargpt.py"))
        go(screen, "arguments")
        screen.press(*"--steps 100000 --step-delay 0.05")
        go(screen, "ranks")
        screen.press("2")
        screen.until("2 = nnodes 1 × nproc_per_node 2")
        go(screen, "notify")
        screen.press(*"terminal:gave-up")
        go(screen, "limit")
        screen.press("0", "x")
        screen.until("restart.limit takes a whole number")
        screen.press("enter")
        screen.until(lambda text: "plan ✖" in text and "Start " not in text)
        screen.press("\x7f", "\x7f", "7")
        screen.until("2 = nnodes 1 × nproc_per_node 2")
        screen.press("enter")
        # The path of the script decides where the question is wrapped.
        screen.until(lambda text: re.search(r" ddp\? ", text) and "Enter cancel" in text)
        screen.press("y")
        screen.until("RUNNING")
        screen.until(lambda text: re.search(r"\bstep [1-9]", text))
        screen.press("q")
        assert screen.ended() == 0
    finally:
        screen.close()
    one = world.distui("ls", "--json").fine().json()[0]
    run = Run(world, one["run"], one["name"], Path(one["path"]))
    assert len(run.status()["ranks"]) == 2
    plan = json.loads((run.path / "plan.json").read_text())
    assert (plan["preset"], plan["restart"]["limit"]) == ("ddp", 7)
    assert plan["notify"] == ["terminal:gave-up"]
    run.stop().fine()
