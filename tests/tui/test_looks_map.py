"""What the map of GPUs looks like; see looks.py."""

from __future__ import annotations

from conftest import Rig, Start
from gpu_crowd import crowd
from looks import LARGE, MIDDLE, SMALL, Look


async def map_only(it: Rig) -> None:
    """Show the map in the whole screen."""
    it.app.change_view(maximised="map")


async def test_1024_gpus(look: Look, rig: Start) -> None:
    await look(lambda: rig(nodes=crowd(128)), first=map_only, resized=True)


async def test_overview_of_1024_gpus(look: Look, rig: Start) -> None:
    await look(lambda: rig(nodes=crowd(128)))


async def test_64_gpus(look: Look, rig: Start) -> None:
    await look(lambda: rig(nodes=crowd(8)), sizes=[SMALL, MIDDLE, LARGE])
