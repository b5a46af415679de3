"""Snapshots of what runs on several nodes look like; see test_looks.py."""

from __future__ import annotations

import pytest
import scripted as play
import several
from conftest import Rig, Start
from test_looks import LARGE, MIDDLE, SMALL, Compare, look
from textual.pilot import Pilot

from distui.tui.screens.launch import LaunchScreen

pytestmark = pytest.mark.timeout(60)

SIZES = pytest.mark.parametrize("size", [SMALL, MIDDLE, LARGE], ids=["80x24", "120x40", "200x60"])


@SIZES
def test_launching(snap_compare: Compare, rig: Start, size: tuple[int, int]) -> None:
    assert look(snap_compare, rig(nodes=several.launching()), size, "Collecting torch")


@SIZES
def test_launch_failed(snap_compare: Compare, rig: Start, size: tuple[int, int]) -> None:
    assert look(snap_compare, rig(nodes=several.refused()), size, "Collecting torch", then="left")


def test_setup_failed(snap_compare: Compare, rig: Start) -> None:
    assert look(snap_compare, rig(nodes=several.setup_failed()), SMALL, "Collecting torch", then="left")


def test_managed(snap_compare: Compare, rig: Start) -> None:
    assert look(snap_compare, rig(nodes=several.managed()), SMALL, "Collecting torch")


def test_on_hosts(snap_compare: Compare, rig: Start) -> None:
    assert look(snap_compare, rig(nodes=several.on_hosts()), SMALL, "link")


@SIZES
def test_a_lost_node(snap_compare: Compare, rig: Start, size: tuple[int, int]) -> None:
    assert look(snap_compare, rig(nodes=several.lost(ranks=8)), size, "c1 r0", then="again in 3 s")


def test_many_nodes(snap_compare: Compare, rig: Start) -> None:
    assert look(snap_compare, rig(nodes=several.lost(16, 8, which=5)), MIDDLE, "c1  r0", then="lost 12 s")


@SIZES
def test_restart_with_a_lost_node(snap_compare: Compare, rig: Start, size: tuple[int, int]) -> None:
    assert look(snap_compare, rig(nodes=several.lost()), size, "c1 r0", ["r"], then="go on without c2")


def test_down(snap_compare: Compare, rig: Start) -> None:
    press = ["colon", *"down", "enter"]
    assert look(snap_compare, rig(nodes=several.running()), SMALL, "c1 r0", press, then="type minigpt")


@SIZES
def test_launch_with_candidates(snap_compare: Compare, rig: Start, size: tuple[int, int]) -> None:
    assert placed(snap_compare, rig(play.running()), size, several.CANDIDATES, "a3-highgpu")


def test_launch_without_skypilot(snap_compare: Compare, rig: Start) -> None:
    why = (
        "/usr/bin/python3 has no SkyPilot: pip install 'distui[sky]', put `sky` on PATH, "
        "or name its Python in DISTUI_SKY_PYTHON"
    )
    assert placed(snap_compare, rig(play.running()), SMALL, why, "has no SkyPilot")


def placed(snap: Compare, it: Rig, size: tuple[int, int], offered: object, then: str) -> bool:
    """The launch form for nodes of SkyPilot's."""
    it.source.offered = offered  # type: ignore[assignment]

    async def settle(pilot: Pilot[None]) -> None:
        it.pilot = pilot
        await it.until(lambda: "step 29" in it.screen())
        await it.press("ctrl+n", *"train.py")
        screen = it.app.screen
        assert isinstance(screen, LaunchScreen)
        for name, value in (("place", "sky"), ("nodes", "2"), ("gpus", "H100:8")):
            screen.form_view.set(name, value)
        await pilot.pause()  # the plan that was made before is none of this form
        await it.until(lambda: screen.preview and then in it.screen() and "torchrun" in it.screen())
        await pilot.pause()

    same = snap(it.app, terminal_size=size, run_before=settle)
    assert it.app._exception is None
    return same
