"""The launch of a run on this machine, done again from another shell and folder."""

from __future__ import annotations

import pytest

from .runs import Run, World

TEXT = "import os\nprint(os.environ['GIVEN'], os.environ.get('STRANGE'), os.getcwd(), os.environ['DISTUI_RUN_ID'])\n"


@pytest.mark.torch
@pytest.mark.long
def test_the_same_preset_and_options_again(world: World) -> None:
    words = ("--nproc-per-node", "2", "--env", "GIVEN=7", "--set", "restart.limit=1")
    run = world.run("launch", "ddp", *words, "--", world.script("job.py", TEXT), "--lr", "0.5")
    assert run.wait("done", 120) == 0, run.describe()
    world.distui("relaunch", run.name, "--detach").fine()
    newest = world.distui("ls", "--json").fine().json()[0]["run"]
    assert newest != run.id
    again = Run(world, newest, run.name, run.path.with_name(newest))
    assert again.wait("done", 120) == 0, again.describe()
    assert again.status()["plan"] == run.status()["plan"]
    assert f"7 None {world.work} {newest}" in again.distui("logs").fine().out


@pytest.mark.parametrize("verb", ["relaunch", "rerun"])
def test_the_same_launch_again(world: World, verb: str) -> None:
    run = world.execute(TEXT, "--env", "GIVEN=7")
    assert run.wait() == 0
    world.distui(verb, run.name, "--detach", env={"STRANGE": "1"}).fine()
    newest = world.distui("ls", "--json").fine().json()[0]
    assert newest["run"] != run.id
    assert world.distui("wait", newest["run"]).code == 0
    said = world.distui("logs", newest["run"]).fine().out
    assert f"7 None {world.work} {newest['run']}" in said
