"""Save, then restart: the script is asked the way the plan says, and nothing is restarted without a new checkpoint."""

from __future__ import annotations

import os
import pty
import subprocess

import pytest
from patience import HANG_S

from .runs import DISTUI, EXAMPLES, Run, World, until

pytestmark = pytest.mark.torch

LOOP = """
import os, signal, sys, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
rank, asked = dist.get_rank(), []
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
{begin}
step = 0
while True:
    optimizer.zero_grad()
    model(torch.ones(2, 64)).sum().backward()
    optimizer.step()
    step += 1
    vote = torch.tensor([float({wanted})])
    dist.all_reduce(vote)
    if vote.item() > 0:
        asked.clear()
        {forget}
        if rank == 0:
            torch.save({{"model": model.state_dict(), "step": step}}, f"step-{{step}}.pt.tmp")
            os.replace(f"step-{{step}}.pt.tmp", f"step-{{step}}.pt")
        print(f"saved at {{step}}", flush=True)
    time.sleep(0.05)
"""
BY_SIGNAL = LOOP.format(
    begin="signal.signal(signal.SIGUSR1, lambda *_: asked.append(1))", wanted="bool(asked)", forget="pass"
)
BY_FILE = LOOP.format(
    begin="",
    wanted='rank == 0 and os.path.exists("now.save")',
    forget='rank == 0 and os.remove("now.save")',
)
WAITS = """
import os, signal, time
{begin}
open(f"ready-{{os.environ['RANK']}}", "w").close()
time.sleep(600)
"""
IGNORES = WAITS.format(begin="signal.signal(signal.SIGUSR1, lambda *_: None)")
NO_HANDLER = WAITS.format(begin="")


def training(world: World, text: str, *options: str) -> Run:
    script = world.script("train.py", text)
    return world.run(
        "launch", "ddp", "--nproc-per-node", "2", "--grace", "5", *options, "--", script
    ).healthy()


def waiting(world: World, text: str, *options: str) -> Run:
    """Where nothing comes to be saved: ranks that need no torch for it."""
    script = world.script("train.py", text)
    run = world.run("launch", "ddp", "--nproc-per-node", "2", "--grace", "5", *options, "--", script)
    assert until(lambda: len(list(world.work.glob("ready-*"))) == 2), run.describe()
    assert run.wait("running") == 0, "and their agent knows"
    return run


def saved(world: World) -> list[str]:
    return sorted(path.name for path in world.work.glob("step-*.pt"))


@pytest.mark.parametrize(
    ("text", "way", "words"),
    [
        pytest.param(BY_SIGNAL, "usr1", "SIGUSR1", marks=pytest.mark.long),
        pytest.param(BY_FILE, "FILE:now.save", "FILE:now.save", marks=pytest.mark.real),
    ],
    ids=["signal", "file"],
)
def test_a_script_saves_on_demand_and_is_restarted_then(
    world: World, text: str, way: str, words: str
) -> None:
    run = training(world, text, "--save-on", way)
    assert run.status()["plan"]["save_on"] == words
    assert saved(world) == []  # it saves only when it is asked

    done = run.distui("restart", "--save-first", "--yes").fine().out
    (name,) = saved(world)
    step = int(name.removeprefix("step-").removesuffix(".pt"))
    assert done.startswith(f"saved at step {step:,}: "), done
    assert name in done
    assert "s after it was asked for; restarted: attempt 2, 2 ranks running" in done
    kinds = [told["event"]["type"] for told in run.events()]
    order = [kind for kind in kinds if kind in ("CheckpointSaved", "AttemptStarted")]
    assert order == ["AttemptStarted", "CheckpointSaved", "AttemptStarted"]

    if text == BY_FILE:
        return
    run.healthy()  # before that it has no handler
    again = run.distui("restart", "--save-first", "--yes").fine().out  # an old checkpoint is no answer
    assert "attempt 3" in again


@pytest.mark.long
def test_without_a_save_nothing_is_restarted(world: World) -> None:
    run = waiting(world, IGNORES, "--save-on", "SIGUSR1")
    said = run.distui("restart", "--save-first", "--save-timeout", "2", "--yes").refused(1)
    assert said == "distui: No save came within 2 s (SIGUSR1 to every rank); nothing was restarted"
    assert run.status()["attempt"] == 1


@pytest.mark.long
def test_a_signal_that_would_end_the_ranks_is_not_sent(world: World) -> None:
    run = waiting(world, NO_HANDLER, "--save-on", "SIGUSR1")
    said = run.distui("restart", "--save-first", "--yes").refused(1, "ranks 0, 1", "no handler")
    assert said.endswith("nothing was asked; nothing was restarted")
    status = run.status()
    assert (status["attempt"], {rank["state"] for rank in status["ranks"]}) == (1, {"running"})


@pytest.mark.long
def test_a_file_that_cannot_be_touched(world: World) -> None:
    run = waiting(world, NO_HANDLER, "--save-on", "FILE:nowhere/now.save")
    said = run.distui("restart", "--save-first", "--yes").refused(1, "nowhere/now.save was not touched")
    assert said.endswith("nothing was restarted")
    assert run.status()["attempt"] == 1


@pytest.mark.long
def test_a_run_whose_plan_does_not_say_how(world: World) -> None:
    run = waiting(world, NO_HANDLER)
    run.distui("restart", "--save-first", "--yes").refused(2, "--save-on SIGUSR1")
    run.distui("restart", "--save-timeout", "5", "--yes").refused(2, "add --save-first")
    assert run.status()["attempt"] == 1
    for bad, why in (
        ("KILL", "no process can catch it"),
        ("NOPE", "no such signal"),
        ("FILE:", "names no file"),
    ):
        world.distui("plan", "ddp", "--save-on", bad, "--", "train.py").refused(2, why)


@pytest.mark.long
def test_the_example_saves_on_demand(world: World) -> None:
    folder = world.work / "saved"
    run = world.run(
        "launch", "ddp", "--nproc-per-node", "2", "--save-on", "SIGUSR1", "--", str(EXAMPLES / "chargpt.py"),
        "--checkpoint-dir", str(folder), "--checkpoint-every", "0", "--steps", "100000", "--step-delay", "0.02",
    ).healthy()  # fmt: skip
    done = run.distui("restart", "--save-first", "--yes").fine().out
    assert done.startswith("saved at step "), done
    run.healthy()
    assert "resumed from step" in run.file("node-0/attempt-002/rank-0.out").decode()


@pytest.mark.long
def test_an_answer_holds_only_for_the_run_that_was_asked_about(world: World) -> None:
    run = waiting(world, NO_HANDLER)
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [DISTUI, "restart", run.name], stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env=world.env, cwd=world.work,
    )  # fmt: skip
    assert process.stderr is not None
    question = b""
    while b"[y/N]" not in question:
        question += os.read(process.stderr.fileno(), 4096)
    assert b"Restart 2 ranks" in question
    run.distui("restart", "--yes").fine()  # meanwhile, from elsewhere
    os.write(ours, b"y\n")
    _, err = process.communicate(timeout=HANG_S)
    os.close(ours)
    os.close(theirs)
    assert process.returncode == 1
    assert b"Attempt 2 has begun meanwhile: nothing was done" in err, err
    assert run.status()["attempt"] == 2
