"""Save, then restart: the script is asked the way the plan says, and nothing is restarted without a new checkpoint."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from doubles.served import Served, doubled

from distui.runners.agent import commands
from distui.runners.run import clock, saving
from distui.runners.run.commands import Restart
from distui.runners.run.model import AttemptStarted, Checkpoint, CheckpointSaved, CommandDone, RankPlace
from distui.tui.verbs import control

from .runs import EXAMPLES, World
from .written import Attempt, record, write


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs have this working directory."""
    monkeypatch.chdir(tmp_path)


async def saved_then_restarted(run: Served, seconds: float = 2.0) -> CommandDone:
    return await saving.saved_then(Restart("r"), seconds, run.link.send)


async def test_a_new_checkpoint_is_waited_for_and_an_old_one_is_no_answer() -> None:
    async with doubled(save_on="FILE:now.save") as (run, _):
        await run.hooked()

        def save(at: float) -> None:
            run.agent.served.emit(CheckpointSaved(1, Checkpoint("/step-7.pt", at, "folder", step=7)))

        save(clock.now() - 60)
        done = await saved_then_restarted(run)
        said = "no save came within 2 s (the file now.save is touched); nothing was restarted"
        assert (done.ok, done.text) == (False, said)
        assert run.state.attempt == 1
        assert Path(run.agent.served.plan.cwd, "now.save").exists()
        restarting = asyncio.create_task(saved_then_restarted(run, 60.0))
        await run.until(lambda state: state.open_commands)
        save(clock.now() + 1)
        done = await restarting
        assert done.text.startswith("saved at step 7: /step-7.pt, ")
        assert (done.ok, run.state.attempt) == (True, 2)


@pytest.mark.parametrize(
    ("way", "does", "words"),
    [
        (
            "SIGUSR1",
            "default",
            "SIGUSR1 would end ranks 0, 1, which have no handler for it: nothing was asked",
        ),
        ("SIGUSR1", "ignores", "ranks 0, 1 ignore SIGUSR1: nothing was asked"),
        ("FILE:nowhere/now.save", "", "nowhere/now.save was not touched: No such file or directory"),
        ("", "", "the plan does not define how its script saves"),
    ],
)
async def test_what_cannot_be_asked_is_not_and_nothing_is_restarted(
    monkeypatch: pytest.MonkeyPatch, way: str, does: str, words: str
) -> None:
    monkeypatch.setattr(commands, "disposition", lambda pid, number: does)
    async with doubled(save_on=way) as (run, _):
        await run.hooked()
        done = await saved_then_restarted(run)
        assert not done.ok
        assert words in done.text
        assert done.text.endswith("; nothing was restarted")
        assert run.state.attempt == 1


def test_a_run_whose_plan_does_not_say_how(world: World) -> None:
    run = write(world, "exec", "--", "true", attempts=[Attempt(None)])
    run.distui("restart", "--save-first", "--yes").refused(2, "--save-on SIGUSR1")
    run.distui("restart", "--save-timeout", "5", "--yes").refused(2, "add --save-first")


def test_an_answer_holds_only_for_the_run_that_was_asked_about(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = write(world, "exec", "--", "true", attempts=[Attempt(None)])

    def restarted_meanwhile(question: str, otherwise: str) -> bool:
        assert "Restart 1 rank" in question
        record(run, [AttemptStarted(2, "restart", 1, (RankPlace(0, 0, 0, None),), {})], begin=0.0)
        return True

    monkeypatch.setattr(control, "confirmed", restarted_meanwhile)
    done = world.distui("restart", run.id, terminal=True)
    assert (done.code, done.out) == (1, "")
    assert "Attempt 2 has begun meanwhile: nothing was done" in done.err


@pytest.mark.real
@pytest.mark.torch
def test_the_example_saves_on_demand_and_is_restarted_then(world: World) -> None:
    options = ("--nproc-per-node", "2", "--save-on", "usr1")
    script = (str(EXAMPLES / "chargpt.py"), "--checkpoint-dir", "saved", "--checkpoint-every", "0")
    run = world.run("launch", "ddp", *options, "--", *script, "--steps", "100000", "--step-delay", "0.02")
    run.healthy()
    assert run.status()["plan"]["save_on"] == "SIGUSR1"
    assert not list(world.work.glob("saved/*")), "it saves only when it is asked"
    done = run.distui("restart", "--save-first", "--yes").fine().out
    assert done.startswith("saved at step "), done
    assert "s after it was asked for; restarted: attempt 2, 2 ranks running" in done
    kinds = [told["event"]["type"] for told in run.events()]
    order = [kind for kind in kinds if kind in ("CheckpointSaved", "AttemptStarted")]
    assert order[:2] == ["AttemptStarted", "CheckpointSaved"]  # a second save may follow SIGTERM
    assert order.count("AttemptStarted") == 2
    run.healthy()
    assert "resumed from step" in run.file("node-0/attempt-002/rank-0.out").decode()
