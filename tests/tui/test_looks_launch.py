"""What the launch screen looks like; see looks.py."""

from __future__ import annotations

import asyncio

import scripted as play
from conftest import Rig, Start
from looks import LARGE, MIDDLE, SETTLE_S, SMALL, Look
from test_launch_panes import Checked

from distui.runners.launch.preset_library import PresetEntry
from distui.tui.screens.launch import LaunchScreen

MORE = (
    PresetEntry(name="night", title="Fully sharded, as night", summary="What runs at night.", strategy="fsdp2",
                origin="yours"),
    PresetEntry(name="lab", title="The lab's own", summary="Eight ranks on the lab's node.", strategy="ddp",
                origin="project"),
    PresetEntry(name="broken", title="", summary="", origin="yours",
                problem="presets/broken.toml line 2: not valid TOML (Invalid value)."),
)  # fmt: skip


class Shelved(Checked):
    """With presets of every origin, and one that does not load."""

    def presets(self) -> list[PresetEntry]:
        return [*super().presets(), *MORE]


def shelved(it: Rig) -> Rig:
    it.source.__class__ = Shelved
    return it


async def fill_in(it: Rig, preset: str = "fsdp2") -> LaunchScreen:
    """Open the launch screen, with a script, a model and GPUs in it."""
    await it.press("ctrl+n", *"train.py")
    screen = it.app.screen
    assert isinstance(screen, LaunchScreen)
    screen.presets.go(preset)
    screen.form_view.set("params", "7B")
    screen.form_view.set("hardware", "8xA100-80GB")
    await asyncio.sleep(SETTLE_S)
    return screen


async def filled(it: Rig) -> None:
    await fill_in(it)


async def test_form(look: Look, rig: Start) -> None:
    async def change(it: Rig) -> None:
        screen = await fill_in(it)
        screen.form_view.set("set.precision.param", "bf16")
        screen.form_view.go("set.precision.param")

    await look(lambda: shelved(rig(play.running())), first=change)


async def test_memory(look: Look, rig: Start) -> None:
    await look(
        lambda: shelved(rig(play.running())), "f5", sizes=[MIDDLE, LARGE], first=filled, resized=True
    )


async def test_memory_alone(look: Look, rig: Start) -> None:
    await look(lambda: shelved(rig(play.running())), "f5", "f5", "enter", sizes=[SMALL], first=filled)


async def test_start_dialog(look: Look, rig: Start) -> None:
    await look(lambda: shelved(rig(play.running())), "enter", sizes=[SMALL], first=filled)


async def test_memory_in_ascii(look: Look, rig: Start) -> None:
    await look(lambda: shelved(rig(play.running(), ascii_only=True)), "f5", sizes=[SMALL], first=filled)


async def test_memory_in_light(look: Look, rig: Start) -> None:
    async def in_light(it: Rig) -> None:
        it.app.action_theme("light")
        await fill_in(it)

    await look(lambda: shelved(rig(play.running())), "f5", sizes=[MIDDLE], first=in_light)


async def test_lint(look: Look, rig: Start) -> None:
    await look(
        lambda: shelved(rig(play.running())), "f4", sizes=[SMALL, MIDDLE], first=filled, resized=True
    )


async def test_search(look: Look, rig: Start) -> None:
    async def single(it: Rig) -> None:
        await fill_in(it, "single")

    press = ["shift+tab", "slash", *"sharded"]
    await look(lambda: shelved(rig(play.running())), *press, sizes=[MIDDLE], first=single)


async def test_guide(look: Look, rig: Start) -> None:
    press = ["ctrl+g", *"2442", "down"]
    await look(lambda: shelved(rig(play.running())), *press, sizes=[SMALL, LARGE], first=filled)


async def test_where_the_guide_leads(look: Look, rig: Start) -> None:
    await look(lambda: shelved(rig(play.running())), "ctrl+g", *"21112431", sizes=[SMALL], first=filled)


async def test_a_preset_that_does_not_load(look: Look, rig: Start) -> None:
    async def broken(it: Rig) -> None:
        await fill_in(it, "broken")

    await look(lambda: shelved(rig(play.running())), sizes=[SMALL], first=broken)


async def test_saving(look: Look, rig: Start) -> None:
    await look(lambda: shelved(rig(play.running())), "ctrl+s", *"mine", sizes=[SMALL], first=filled)


async def test_settings_of_nccl(look: Look, rig: Start) -> None:
    async def choose(it: Rig) -> None:
        screen = await fill_in(it)
        screen.form_view.set("nccl-preset.no-p2p", "on")
        screen.form_view.go("nccl-preset.no-p2p")

    await look(lambda: shelved(rig(play.running())), sizes=[MIDDLE], first=choose)
