"""The launch of a run done again from another shell and folder: every kind of run, with and without changes."""

from __future__ import annotations

import json

import pytest

from .runs import Run, World, contents
from .written import without_agent, write


def again(world: World, run: Run, *words: str, env: dict[str, str] | None = None) -> Run:
    """What a rerun started, from another directory."""
    elsewhere = world.root / "elsewhere"
    elsewhere.mkdir(exist_ok=True)
    world.distui("rerun", run.id, "--detach", *words, env=env, cwd=elsewhere).fine()
    newest = world.newest_run()
    assert newest.id != run.id
    return newest


def printed(run: Run) -> str:
    """What its one process wrote."""
    assert run.wait() == 0
    return run.file("node-0/attempt-001/rank-0.out").decode().strip()


@pytest.mark.real
def test_a_command_with_a_changed_environment_and_that_again(world: World) -> None:
    """What restarts changed, what the rerun changes and what is unset: all last, in a rerun of the rerun, too."""
    text = "import os, time\nprint(*(os.environ.get(n) for n in ('GIVEN', 'LATER', 'WORN')), flush=True)\n"
    run = world.execute(
        text + "time.sleep(0 if os.environ.get('QUICK') else 600)\n", "--env", "GIVEN=7", "--env", "WORN=1"
    )
    assert run.wait("running") == 0
    run.distui("restart", "--yes", "--env", "LATER=by-restart").fine()
    run.stop().fine()
    second = again(world, run, "--env", "QUICK=1", "--unset", "WORN")
    assert printed(second) == "7 by-restart None"
    third = again(world, second, "--env", "GIVEN=8")
    assert printed(third) == "8 by-restart None"


def test_secrets_are_asked_for_and_kept_nowhere(world: World) -> None:
    secret = "hf_abcdefghijklmnopqrstuvwxyz0123456789"
    run = write(world, "exec", "--name", "s", "--env", f"HF_TOKEN={secret}", "--", "true")
    run.distui("rerun", "--env", "A=1").refused(2, "HF_TOKEN", "export")
    with without_agent():
        second = again(world, run, "--env", "A=1", env={"HF_TOKEN": secret})
        third = again(world, run, "--name", "t", "--unset", "HF_TOKEN")
    assert json.loads(second.file("plan.json"))["env"]["A"] == "1"
    assert "HF_TOKEN" not in json.loads(third.file("plan.json"))["env"]
    assert secret.encode() not in contents(world.root)
