"""The launch of a run done again from another shell and folder: every kind of run, with and without changes."""

from __future__ import annotations

import json

import pytest

from .cockpit import Cockpit, in_cockpit
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


@pytest.mark.real
def test_the_cockpit_starts_what_the_verb_starts(world: World) -> None:
    """Options that the launch form keeps far down, of a run that the form cannot hold."""
    run = world.execute("print(1)", "--grace", "7", "--no-hook", "--log-cap", "32MiB", "--restarts", "5")
    assert run.wait() == 0

    async def use(cockpit: Cockpit) -> None:
        await cockpit.until("SUCCEEDED")
        await cockpit.press("r")
        await cockpit.until("nothing changes")
        await cockpit.press("y")
        await cockpit.until("starting its agent")
        await cockpit.until(lambda text: "starting its agent" not in text and "SUCCEEDED" in text)

    in_cockpit(world, "attach", run.id, use=use).fine()
    again = world.newest_run()
    assert again.id != run.id
    assert again.wait() == 0
    before, after = (json.loads(each.file("plan.json")) for each in (run, again))
    for option in ("command", "cwd", "grace_s", "hook", "log_cap", "restart"):
        assert before[option] == after[option]
    assert (after["grace_s"], after["hook"], after["restart"]["limit"]) == (7.0, False, 5)
