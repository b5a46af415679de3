"""A launch from the launch screen: a preset by its search, a changed field, and it runs."""

from __future__ import annotations

import json
import re

import pytest

from .cockpit import Cockpit, in_cockpit
from .runs import EXAMPLES, World

pytestmark = pytest.mark.torch


def label(text: str) -> str:
    """The field that the cursor of the form is on; "" while none is seen."""
    found = re.search(r"›[ ◆] (\S+)", text)
    return found[1] if found else ""


async def go(cockpit: Cockpit, wanted: str, most: int = 60) -> None:
    """Down to a field, a key at a time."""
    for _ in range(most):
        before = label(cockpit.text)
        if before == wanted:
            return
        await cockpit.press("down")
        await cockpit.until(lambda text: label(text) not in ("", before))  # noqa: B023
    raise AssertionError(f"no field {wanted}:\n{cockpit.text}")


async def launch(cockpit: Cockpit) -> None:
    # A job that somebody else runs here is shown at once.
    await cockpit.until(lambda text: "No run yet." in text or "read-only" in text)
    await cockpit.press("ctrl+n")
    await cockpit.until(lambda text: label(text) == "script")
    await cockpit.press("shift+tab")
    await cockpit.until(lambda text: not label(text))
    await cockpit.press("/", *"start here")
    await cockpit.until("presets 1 of")
    await cockpit.press("enter", "enter")
    await cockpit.until(lambda text: label(text) == "script")
    await cockpit.press(*str(EXAMPLES / "chargpt.py"))
    await go(cockpit, "arguments")
    await cockpit.press(*"--steps 100000 --step-delay 0.05")
    await go(cockpit, "ranks")
    await cockpit.press("2")
    await cockpit.until("2 = nnodes 1 × nproc_per_node 2")
    await go(cockpit, "notify")
    await cockpit.press(*"terminal:gave-up")
    await go(cockpit, "limit")
    await cockpit.press("0", "x")
    await cockpit.until("restart.limit takes a whole number")
    await cockpit.press("enter")
    await cockpit.until(lambda text: "plan ✖" in text and "Enter cancel" not in text)
    await cockpit.press("backspace", "backspace", "7")
    await cockpit.until("2 = nnodes 1 × nproc_per_node 2")
    await cockpit.press("enter")
    # The path of the script decides where the question is wrapped.
    await cockpit.until(lambda text: re.search(r" ddp\? ", text) and "Enter cancel" in text)
    await cockpit.press("y")
    await cockpit.until("RUNNING")
    await cockpit.until(lambda text: re.search(r"\bstep [1-9]", text))


@pytest.mark.real
def test_a_preset_is_searched_changed_launched_and_seen_running(world: World) -> None:
    in_cockpit(world, use=launch, width=80, height=24).fine()
    run = world.newest_run()
    assert len(run.status()["ranks"]) == 2
    plan = json.loads((run.path / "plan.json").read_text())
    assert (plan["preset"], plan["restart"]["limit"]) == ("ddp", 7)
    assert plan["notify"] == ["terminal:gave-up"]
    run.stop().fine()
