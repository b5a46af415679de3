"""The launch of a run done again from another shell and folder: every kind of run, with and without changes."""

from __future__ import annotations

import sys

import pytest

from .runs import Run, World, contents

TEXT = "import os\nprint(os.environ['GIVEN'], os.environ.get('STRANGE'), os.getcwd(), os.environ['DISTUI_RUN_ID'])\n"


def again(
    world: World, run: Run, *words: str, verb: str = "rerun", env: dict[str, str] | None = None
) -> Run:
    """What a rerun started, from another directory."""
    elsewhere = world.root / "elsewhere"
    elsewhere.mkdir(exist_ok=True)
    world.distui(verb, run.id, "--detach", *words, env=env, cwd=elsewhere).fine()
    newest = world.distui("ls", "--json").fine().json()[0]
    assert newest["run"] != run.id
    return Run(world, newest["run"], newest["name"], run.path.with_name(newest["run"]))


def printed(run: Run) -> str:
    """What its one process wrote."""
    assert run.wait() == 0
    return run.file("node-0/attempt-001/rank-0.out").decode().strip()


@pytest.mark.torch
@pytest.mark.long
def test_the_same_preset_and_options_again(world: World) -> None:
    words = ("--nproc-per-node", "2", "--env", "GIVEN=7", "--set", "restart.limit=1")
    run = world.run("launch", "ddp", *words, "--", world.script("job.py", TEXT), "--lr", "0.5")
    assert run.wait() == 0, run.describe()
    second = again(world, run)
    assert second.wait() == 0, second.describe()
    assert second.status()["plan"] == run.status()["plan"]
    assert f"7 None {world.work} {second.id}" in second.distui("logs").fine().out


@pytest.mark.long
def test_the_same_command_again_by_the_old_name(world: World) -> None:
    run = world.execute(TEXT, "--env", "GIVEN=7")
    assert run.wait() == 0
    second = again(world, run, verb="relaunch", env={"STRANGE": "1"})
    assert printed(second) == f"7 None {world.work} {second.id}"


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


@pytest.mark.long
def test_secrets_are_asked_for_and_kept_nowhere(world: World) -> None:
    secret = "hf_abcdefghijklmnopqrstuvwxyz0123456789"
    text = "import os\nprint(len(os.environ.get('HF_TOKEN', '')))\n"
    script = world.script("job.py", text)
    run = world.run(
        "exec", "--name", "s", "--env", f"HF_TOKEN={secret}", "--", sys.executable, "-u", script
    )
    assert run.wait() == 0
    assert secret.encode() not in contents(run.path)
    run.distui("rerun", "--env", "A=1").refused(2, "HF_TOKEN", "export")
    second = again(world, run, "--env", "A=1", env={"HF_TOKEN": secret})
    assert printed(second) == str(len(secret))
    third = again(world, second, "--unset", "HF_TOKEN")
    assert printed(third) == "0"
