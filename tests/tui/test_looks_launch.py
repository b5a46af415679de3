"""Snapshots of the launch screen; see test_looks.py."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import scripted as play
from conftest import Rig, Start
from test_launch_panes import Checked
from test_looks import LARGE, MIDDLE, SMALL, Compare
from textual.pilot import Pilot

from distui.runners.launch.launch_form import PresetEntry
from distui.tui.screens.launch import LaunchScreen

pytestmark = pytest.mark.timeout(60)

SIZES = pytest.mark.parametrize("size", [SMALL, MIDDLE, LARGE], ids=["80x24", "120x40", "200x60"])

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


def pictured(
    snap: Compare, it: Rig, size: tuple[int, int], *keys: str, preset: str = "fsdp2",
    then: Callable[[LaunchScreen], object] = lambda screen: None,
) -> bool:  # fmt: skip
    """The launch screen with a script, a model and GPUs in it, after some keys."""
    it.source.__class__ = Shelved

    async def settle(pilot: Pilot[None]) -> None:
        it.pilot = pilot
        await it.until(lambda: "step 29" in it.screen())
        await it.press("ctrl+n", *"train.py")
        screen = it.app.screen
        assert isinstance(screen, LaunchScreen)
        screen.presets.go(preset)
        screen.form_view.set("params", "7B")
        screen.form_view.set("hardware", "8xA100-80GB")
        await pilot.pause()  # the plan that was made before is none of this form
        await it.until(lambda: screen.preview)
        await it.press(*keys)
        then(screen)
        await pilot.pause()
        await it.until(lambda: screen.preview)
        await pilot.pause()

    same = snap(it.app, terminal_size=size, run_before=settle)
    assert it.app._exception is None
    return same


@SIZES
def test_form(snap_compare: Compare, rig: Start, size: tuple[int, int]) -> None:
    def change(screen: LaunchScreen) -> None:
        screen.form_view.set("set.precision.param", "bf16")
        screen.form_view.go("set.precision.param")

    assert pictured(snap_compare, rig(play.running()), size, then=change)


@SIZES
def test_memory(snap_compare: Compare, rig: Start, size: tuple[int, int]) -> None:
    assert pictured(snap_compare, rig(play.running()), size, "f5", "tab", *["enter"] * (size == SMALL))


@SIZES
def test_lint(snap_compare: Compare, rig: Start, size: tuple[int, int]) -> None:
    assert pictured(snap_compare, rig(play.running()), size, "f4")


@SIZES
def test_search(snap_compare: Compare, rig: Start, size: tuple[int, int]) -> None:
    assert pictured(
        snap_compare, rig(play.running()), size, "shift+tab", "slash", *"sharded", preset="single"
    )


@SIZES
def test_guide(snap_compare: Compare, rig: Start, size: tuple[int, int]) -> None:
    assert pictured(snap_compare, rig(play.running()), size, "ctrl+g", "2", "4", "4", "2", "down")


def test_where_the_guide_leads(snap_compare: Compare, rig: Start) -> None:
    assert pictured(snap_compare, rig(play.running()), SMALL, "ctrl+g", *"2442111")


def test_a_preset_that_does_not_load(snap_compare: Compare, rig: Start) -> None:
    assert pictured(snap_compare, rig(play.running()), SMALL, preset="broken")


def test_saving(snap_compare: Compare, rig: Start) -> None:
    assert pictured(snap_compare, rig(play.running()), SMALL, "ctrl+s", *"mine")


def test_settings_of_nccl(snap_compare: Compare, rig: Start) -> None:
    def choose(screen: LaunchScreen) -> None:
        screen.form_view.set("nccl-preset.no-p2p", "on")
        screen.form_view.go("nccl-preset.no-p2p")

    assert pictured(snap_compare, rig(play.running()), MIDDLE, then=choose)


def test_ascii(snap_compare: Compare, rig: Start) -> None:
    assert pictured(snap_compare, rig(play.running(), ascii_only=True), SMALL, "f5")


def test_without_colour(snap_compare: Compare, rig: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    assert pictured(snap_compare, rig(play.running()), MIDDLE, "f5")


def test_light(snap_compare: Compare, rig: Start) -> None:
    it = rig(play.running())
    assert pictured(snap_compare, it, MIDDLE, "f5", then=lambda screen: it.app.action_theme())
