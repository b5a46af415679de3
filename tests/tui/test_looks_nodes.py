"""What a run on several nodes looks like; see looks.py."""

from __future__ import annotations

import scripted as play
import several
from conftest import Rig, Start
from looks import MIDDLE, SMALL, Look

from distui.runners.hub.sky_process import Candidate
from distui.tui.screens.launch import LaunchScreen


async def test_launching(look: Look, rig: Start) -> None:
    await look(lambda: rig(nodes=several.launching()), sizes=[SMALL, MIDDLE])


async def test_the_launch_failed(look: Look, rig: Start) -> None:
    await look(lambda: rig(nodes=several.refused()), sizes=[SMALL, MIDDLE])


async def test_the_setup_failed(look: Look, rig: Start) -> None:
    await look(lambda: rig(nodes=several.setup_failed()), sizes=[SMALL])


async def test_a_managed_job(look: Look, rig: Start) -> None:
    await look(lambda: rig(nodes=several.managed()), sizes=[SMALL])


async def test_on_hosts(look: Look, rig: Start) -> None:
    await look(lambda: rig(nodes=several.on_hosts()), sizes=[SMALL])


async def test_a_node_is_lost(look: Look, rig: Start) -> None:
    await look(lambda: rig(nodes=several.lost(ranks=8)))


async def test_one_of_16_nodes_is_lost(look: Look, rig: Start) -> None:
    await look(lambda: rig(nodes=several.lost(16, 8, which=5)), sizes=[MIDDLE])


async def test_restart_dialog_without_the_lost_node(look: Look, rig: Start) -> None:
    await look(lambda: rig(nodes=several.lost()), "r", sizes=[SMALL, MIDDLE])


async def test_down_dialog(look: Look, rig: Start) -> None:
    await look(lambda: rig(nodes=several.running()), "colon", *"down", "enter", sizes=[SMALL])


async def on_a_cloud(it: Rig) -> None:
    """Fill in the launch form for nodes of SkyPilot's."""
    await it.press("ctrl+n", *"train.py")
    screen = it.app.screen
    assert isinstance(screen, LaunchScreen)
    for name, value in (("place", "sky"), ("option.nnodes", "2"), ("option.gpus", "H100:8")):
        screen.form_view.set(name, value)


def offered(it: Rig, candidates: list[Candidate] | str) -> Rig:
    it.source.offered = candidates
    return it


async def test_launch_with_candidates(look: Look, rig: Start) -> None:
    await look(lambda: offered(rig(play.running()), several.CANDIDATES), first=on_a_cloud, resized=True)


async def test_launch_without_skypilot(look: Look, rig: Start) -> None:
    why = (
        "/usr/bin/python3 has no SkyPilot: put `sky` on PATH, name its Python in DISTUI_SKY_PYTHON, or "
        "`/usr/bin/python3 -m pip install 'skypilot>=0.14,<0.15'`"
    )
    await look(lambda: offered(rig(play.running()), why), sizes=[SMALL], first=on_a_cloud)
