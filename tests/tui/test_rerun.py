"""`r` on an ended run: the question with what differs, the start, the form."""

from __future__ import annotations

import asyncio

import scripted as play
from conftest import Start, shown
from test_runs_list import several_runs

from distui.runners.comparison.rerun_changes import LaunchChange
from distui.runners.launch.launch_form import LaunchForm
from distui.runners.launch.recent import CopiedForm
from distui.runners.run.errors import LaunchError
from distui.tui.screens.launch import LaunchScreen
from distui.tui.screens.rerun import RerunScreen
from distui.tui.screens.runs import RunsScreen


async def test_an_ended_run_starts_again_after_a_question_with_the_differences(rig: Start) -> None:
    it = rig(play.finished())
    it.source.changed = [
        LaunchChange("restarts: limit", "5", "3"),
        LaunchChange("file train.py", "0a", "0b"),
        LaunchChange("--env SEED", None, "7"),
    ]
    async with shown(it, 120, 40):
        await it.until(lambda: "FINISHED" in it.screen() or "SUCCEEDED" in it.screen())
        await it.press("r")
        assert isinstance(it.app.screen, RerunScreen)
        await it.until(lambda: "5 → 3" in it.screen())
        text = it.screen()
        assert "Run minigpt again?" in text
        assert "changed" in text
        assert "new: 7" in text
        await it.press("enter")
        assert it.source.rerun_of == [], "Enter cancels"
        it.source.changed = []
        await it.press("r")
        await it.until(lambda: "nothing changes" in it.screen())
        await it.press("y")
        await it.until(lambda: it.source.rerun_of)
        assert it.source.rerun_of == ["r-1a2b3c4d"]
        await it.until(lambda: it.run.id == "r-new")


async def test_the_start_shows_its_progress_and_a_refusal_stays(rig: Start) -> None:
    it = rig(play.finished())
    gate = asyncio.Event()

    async def slow(run_id: str) -> str:
        await gate.wait()
        raise LaunchError("there is no script train.py in /work: give its path from there")

    it.source.rerun = slow  # type: ignore[method-assign]
    async with shown(it, 120, 40):
        await it.until(lambda: "SUCCEEDED" in it.screen() or "FINISHED" in it.screen())
        await it.press("r", "y")
        await it.until(lambda: "planning the launch, then starting its agent …" in it.screen())
        gate.set()
        await it.until(lambda: "here is no script train.py" in it.screen())
        assert "starting its agent" not in it.screen()
        await asyncio.sleep(30)
        assert "here is no script train.py" in it.screen()
        assert it.run.id == "r-1a2b3c4d"


async def test_why_a_run_cannot_be_planned_again_is_in_the_question(rig: Start) -> None:
    it = rig(play.finished(), runs=several_runs())
    it.source.refuse = "HF_TOKEN: secrets are never stored: export it here"
    async with shown(it, 120, 40):
        await it.press("R")
        screen = it.app.screen
        assert isinstance(screen, RunsScreen)
        while screen.list.current is None or screen.list.current.live:
            await it.press("down")
        await it.press("r")
        await it.until(lambda: "HF_TOKEN: secrets are never stored" in it.screen())


async def test_e_opens_the_form_of_this_run_and_never_another(rig: Start) -> None:
    it = rig(play.finished())
    form = LaunchForm(preset="ddp", script="pkg.train", options={"module": "true", "grace_s": "7"})
    copied = CopiedForm(form, "copied from minigpt · also: -m --grace 7")
    it.source.form_of = lambda run_id: copied  # type: ignore[method-assign]
    async with shown(it, 120, 40):
        await it.until(lambda: "SUCCEEDED" in it.screen() or "FINISHED" in it.screen())
        await it.press("r", "e")
        screen = it.app.screen
        assert isinstance(screen, LaunchScreen)
        assert screen.form == form
        await it.until(lambda: "also: -m --grace 7" in it.screen())
        await it.press("escape")

        def refuse(run_id: str) -> CopiedForm:
            raise LaunchError("the command of minigpt holds secrets, which are never stored")

        it.source.form_of = refuse  # type: ignore[method-assign]
        await it.press("r", "e")
        assert not isinstance(it.app.screen, LaunchScreen)
        await it.until(lambda: "he command of minigpt holds secrets" in it.screen())


async def test_e_on_a_run_of_a_command_opens_a_form_in_which_the_command_is_locked(rig: Start) -> None:
    it = rig(play.finished())
    form = LaunchForm(command=("bash", "run.sh", "a b"), options={"name": "nightly", "grace_s": "7"})
    copied = CopiedForm(form, "copied from nightly · also: --grace 7")
    it.source.form_of = lambda run_id: copied  # type: ignore[method-assign]
    async with shown(it, 120, 40):
        await it.until(lambda: "SUCCEEDED" in it.screen() or "FINISHED" in it.screen())
        await it.press("r", "e")
        await it.until(lambda: "command                  bash run.sh 'a b'" in it.screen())
        screen = it.app.screen
        assert isinstance(screen, LaunchScreen)
        assert "presets" not in it.screen()
        await it.press("x", "backspace", "left")
        assert screen.form == form, "the command is locked"
        await it.press("down", "x")
        assert screen.form.option("name") == "nightlyx"
        await it.press("ctrl+r")
        await it.until(lambda: "repeats a run without a preset" in it.screen())
        await it.press("ctrl+g")
        assert isinstance(it.app.screen, LaunchScreen), "no guide"
        await it.until(lambda: screen.preview is not None)
        await it.press("enter", "y")
        await it.until(lambda: it.source.launched)
        assert it.source.launched == [screen.form]


async def test_a_new_run_beside_a_run_of_a_command_begins_with_a_preset(rig: Start) -> None:
    it = rig(play.finished())
    copied = CopiedForm(LaunchForm(command=("bash", "run.sh")), "copied from nightly")
    it.source.form_of = lambda run_id: copied  # type: ignore[method-assign]
    async with shown(it, 120, 40):
        await it.until(lambda: "SUCCEEDED" in it.screen() or "FINISHED" in it.screen())
        await it.press("ctrl+n")
        await it.until(lambda: "─ presets " in it.screen())
        assert "bash run.sh" not in it.screen()
