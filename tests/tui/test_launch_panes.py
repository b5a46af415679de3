"""What stands beside the launch form: plan, task, check, memory; the guide; and what a launch is given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import scripted as play
from conftest import Rig, Start, shown
from test_launch_screen import at_field, chosen, here, opened
from textual.events import Paste

from distui.presets.estimate.advice import advise
from distui.presets.estimate.advice_case import AdviceCase
from distui.presets.estimate.guide_questions import QUESTIONS
from distui.presets.estimate.launch_command import LaunchPlace
from distui.presets.estimate.memory import estimate_for, format_for
from distui.presets.estimate.workload import GB, parse_gpus, shape
from distui.presets.finding import Finding
from distui.presets.load import load
from distui.runners.launch.launch_form import LaunchForm, LaunchPreview
from distui.tui.rows.form_fields import NAMED, SET
from distui.tui.screens.launch import LaunchScreen
from distui.tui.screens.launch_guide import GuideScreen
from distui.tui.screens.modal import ConfirmScreen

__all__ = ["here"]

Here = Callable[[], Rig]

FOUND = (
    Finding(id="L1", severity="error", where="nnodes", value="2", text="Two nodes cannot meet.", remedy="Open a port."),
    Finding(id="L2", severity="warning", where="NCCL_IB_DISABLE", value="1", text="InfiniBand is off."),
    Finding(id="L3", severity="note", where="", text="Nothing is saved."),
)  # fmt: skip


class Checked(play.ScriptedSource):
    """A source whose check finds something."""

    def plan(self, form: LaunchForm, ask: bool = False) -> LaunchPreview:
        made = super().plan(form, ask)
        return replace(made, findings=FOUND, yaml="name: train\nnum_nodes: 2\n") if made.text else made


async def scripted(it: Rig) -> LaunchScreen:
    await it.until(lambda: "RUNNING" in it.screen())
    return await opened(it)


async def test_every_pane_is_reached_by_keys(rig: Start) -> None:
    titles = ("num_nodes: 2", "Open a port.", "Enter a model", "torchrun")
    it = rig(play.running())
    it.source.__class__ = Checked
    async with shown(it):
        screen = await scripted(it)
        for key, title in zip(("f3", "f4", "f5", "f2"), titles, strict=True):
            await it.press(key)
            assert title in it.screen(), key
        await it.press("f2")
        assert screen.details.has_focus, "the pane was in front already"
        for key, title in zip("2341", titles, strict=True):
            await it.press(key)
            assert title in it.screen(), key
        assert screen.form.script == "train.py"
        assert screen.form.nproc == ""


async def test_a_pane_takes_the_whole_height_and_gives_it_back(rig: Start) -> None:
    async with shown(rig(play.running())) as it:
        screen = await scripted(it)
        low = screen.details.size.height
        await it.press("f2", "enter")
        assert screen.details.size.height > low + 8
        assert "presets 4" not in it.screen()
        await it.press("enter")
        assert screen.details.size.height == low
        await it.press("enter", "tab")
        assert screen.details.size.height == low
        assert "presets 4" in it.screen()


async def test_what_the_check_finds_is_counted_told_and_asked_about(rig: Start) -> None:
    it = rig(play.running())
    it.source.__class__ = Checked
    async with shown(it, 120, 40):
        await scripted(it)
        await it.until(lambda: "F4 lint: 1 error, 1 warning, 1 note" in it.screen())
        await it.press("f4")
        lines = it.screen()
        assert "✖ error L1 nnodes 2" in lines
        assert "▲ warning L2 NCCL_IB_DISABLE 1" in lines
        assert "◌ note L3" in lines
        assert lines.index("error L1") < lines.index("warning L2") < lines.index("note L3")
        assert "→ Open a port." in lines
        await it.press("enter")
        assert isinstance(it.app.screen, ConfirmScreen)
        assert "Two nodes cannot meet." in it.screen()


async def test_the_memory_pane_shows_the_numbers_of_the_estimate(here: Here) -> None:
    async with shown(here(), 120, 40) as it:
        screen = await opened(it, "f5")
        assert "Enter a model (7B)" in it.screen()
        await chosen(it, screen, "fsdp2")
        for name, text in (("params", "7B"), ("hardware", "8xA100-80GB"), ("option.nnodes", "2")):
            await at_field(it, screen, name)
            await it.press(*text)
        preset = load("fsdp2").preset
        model, form = shape(7 * GB), format_for(preset)
        mine = estimate_for(preset, model, form, 16, 85 * GB)
        await it.until(lambda: f"fsdp2  {mine.total / GB:.2f} of 85 GB" in it.screen())
        for part in ("weights", "gradients", "optimizer", "activations", "buffers"):
            assert f"{part[0].upper()} {part} {getattr(mine, part) / GB:.2f}" in it.screen()
        await it.press("f5", "enter")
        lines = it.screen().splitlines()
        place = LaunchPlace(gpus=parse_gpus("8xA100-80GB"), nodes=2)
        answer = advise(AdviceCase(model=model, place=place))
        for option in answer.rows:
            row = next(line for line in lines if line.lstrip("│ ›").startswith(f"{option.title}  "))
            assert f"{option.estimate.total / GB:.2f}" in row
            assert ("fits" in row) >= option.fits
        assert answer.first is not None
        assert f"{answer.first.title} is the simplest that fits" in it.screen()


NOT_ESTIMATED = {
    ("params", "lots"): "model lots: write a number of parameters",
    ("hardware", "8xH1O0"): "GPU 8xH1O0: unknown GPU H1O0; did you mean H100?",
    ("seq", "0"): "sequence 0: a number of positions",
    ("option.nnodes", "x"): "nodes x: a number",
    (f"{SET}mesh.tp", "3"): "fsdp2: n/a",
}


async def test_what_cannot_be_estimated_is_one_sentence(here: Here) -> None:
    estimated = {"params": "7B", "hardware": "8xA100-80GB"}
    async with shown(here(), 120, 40) as it:
        screen = await opened(it, "f5")
        await chosen(it, screen, "fsdp2")
        for name, text in estimated.items():
            screen.form_view.set(name, text)
        for (name, text), sentence in NOT_ESTIMATED.items():
            screen.form_view.set(name, text)
            await it.until(lambda said=sentence: said in " ".join(it.screen().replace("│", " ").split()))  # type: ignore[misc]
            screen.form_view.set(name, estimated.get(name, ""))


@pytest.mark.torch
async def test_the_task_for_skypilot_has_a_pane(here: Here) -> None:
    async with shown(here(), 120, 40) as it:
        screen = await opened(it, "f3")
        assert "No SkyPilot task" in it.screen()
        await chosen(it, screen, "ddp")
        for name, value in (("place", "aws"), ("option.nnodes", "2"), ("option.gpus", "H100:8")):
            screen.form_view.set(name, value)
        await it.until(lambda: "num_nodes: 2" in it.screen())  # code is bundled first
        assert "accelerators: H100:8" in it.screen()
        assert screen.preview is not None
        assert screen.preview.yaml in screen.preview.text  # the same bytes as in the plan


async def test_the_guide_asks_and_fills_the_advised_launch_into_the_form(here: Here) -> None:
    async with shown(here()) as it:
        screen = await opened(it, "ctrl+g")
        guide = it.app.screen
        assert isinstance(guide, GuideScreen)
        assert f"1 of {len(QUESTIONS)}   How large is the model?" in it.screen()
        await it.press("2", "backspace", "up", "down", "enter")  # up to 8 billion, by digit and by arrow
        await it.press(
            "1", "1", "1", "2", "4", "3"
        )  # dense, all parameters, short; A10, eight of them, four nodes
        assert "What parallelizes the model" in it.screen()
        await it.press("1")
        assert "Take hsdp" in it.screen()
        words = " ".join(it.screen().replace("│", " ").split())
        assert "HSDP with recomputed layers is the simplest that fits, with " in words
        assert "--set mesh.dp_replicate=4" in words
        assert "--network-tier" not in words  # an A10 has no faster network
        await it.press("enter")
        assert it.app.screen is screen
        assert screen.presets.current is not None
        assert screen.presets.current.name == "hsdp"
        form = screen.form
        assert (form.place, form.nproc, form.option("nnodes"), form.option("gpus")) == (
            "sky",
            "8",
            "4",
            "A10:8",
        )
        assert (form.params, form.hardware, form.seq) == ("8B", "8xA10", "4096")
        assert set(form.overrides) == {
            "mesh.dp_replicate=4", "precision.param=bf16", "batch.micro=1", "strategy.activation_checkpointing=true",
        }  # fmt: skip
        assert "[F5 memory]" in it.screen()


async def test_the_guide_says_adopt_for_a_plain_script(here: Here) -> None:
    async with shown(here()) as it:
        screen = await opened(it, "ctrl+g")
        await it.press("2", "1", "1", "1", "4", "4", "1", "2", "enter")
        assert screen.form.preset == "fsdp2"
        assert screen.form.option("adopt") == "true"


async def test_another_answer_of_the_guide_takes_back_the_first(here: Here) -> None:
    async with shown(here()) as it:
        screen = await opened(it, "ctrl+g")
        await it.press("2", "1", "1", "1", "2", "4", "3", "1", "enter")
        assert screen.form.overrides
        await it.press("ctrl+g", "1", "1", "1", "1", "4", "4", "1", "2", "enter")
        form = screen.form
        assert (form.preset, form.overrides, form.place, form.option("gpus")) == ("ddp", (), "", "")


async def test_the_guide_can_be_left(here: Here) -> None:
    async with shown(here()) as it:
        screen = await opened(it, "ctrl+g")
        await it.press("1", "1", "1", "1", "4", "1", "1", "1")
        assert "Take single" in it.screen()
        await it.press("escape")
        assert it.app.screen is screen
        assert screen.form == LaunchForm(preset="single", script="train.py")


async def test_a_guide_without_an_answer_takes_nothing(here: Here) -> None:
    async with shown(here()) as it:
        screen = await opened(it, "ctrl+g")
        await it.press("5", "1", "1", "3", "1", "1", "1", "1")
        assert "Nothing fits" in it.screen()
        assert "Take a smaller model, or GPUs with more memory." in it.screen()
        await it.press("enter", "escape")
        assert screen.form == LaunchForm(preset="single", script="train.py")


async def test_everything_that_was_changed_is_launched(rig: Start) -> None:
    async with shown(rig(play.running())) as it:
        screen = await scripted(it)
        screen.presets.go("fsdp2")
        await it.pilot.pause()
        await at_field(it, screen, f"{SET}mesh.tp")
        await it.press("2")
        await at_field(it, screen, f"{SET}strategy.wrap")
        await it.press(*"Block Head")
        await at_field(it, screen, f"{NAMED}no-p2p")
        await it.press("space")
        await it.until(lambda: screen.preview)
        await it.press("enter", "y")
        await it.until(lambda: it.source.launched)
        (form,) = it.source.launched
        assert form == LaunchForm(
            preset="fsdp2", script="train.py", overrides=('strategy.wrap=["Block", "Head"]', "mesh.tp=2"),
            nccl_presets=("no-p2p",),
        )  # fmt: skip


async def test_a_field_is_a_line_editor(rig: Start) -> None:
    async with shown(rig(play.running())) as it:
        screen = await scripted(it)
        form = screen.form_view
        await it.press("home", *"src/", "end", "backspace", *"x", "left", "delete", *"y --q", "ctrl+w")
        assert form.text == "src/train.py "
        await it.press("ctrl+a", "delete", "ctrl+k")
        assert form.text == ""
        await it.press(*"q?:/14", "ctrl+u")  # keys of the cockpit are letters here
        assert it.app.screen is screen
        form.post_message(Paste("run.py\nsecond line"))
        await it.until(lambda: form.text == "run.py")


@pytest.mark.torch
async def test_the_check_of_a_real_plan_is_shown(here: Here) -> None:
    async with shown(here(), 120, 40) as it:
        screen = await opened(it, "f4")
        await chosen(it, screen, "ddp")
        await at_field(it, screen, "option.env")
        await it.press(*"NCCL_P2P_DISABEL=1")
        await it.until(lambda: screen.preview and screen.preview.findings)
        assert screen.preview is not None
        for one in screen.preview.findings:
            assert one.id in it.screen()
            assert f"{one.severity} {one.id}" in it.screen()
        assert any("NCCL_P2P_DISABEL" in (one.where + one.text) for one in screen.preview.findings)
