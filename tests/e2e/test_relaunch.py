"""The launch of a run on this machine, done again from another shell and folder."""

from __future__ import annotations

import pytest

from .runs import World

TEXT = "import os\nprint(os.environ['GIVEN'], os.environ.get('STRANGE'), os.getcwd(), os.environ['DISTUI_RUN_ID'])\n"


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
