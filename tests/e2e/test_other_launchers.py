"""Ranks are ranks whoever started them: torch's module, multiprocessing, a loop in the shell, a script of the shell."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import ports
import pytest

from .runs import Run, World

PORTS = Path(ports.__file__).read_text()
STEPS = """
import os, sys, time, torch
import torch.distributed as dist


def train(rank, world):
    dist.init_process_group("gloo", rank=rank, world_size=world)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(100_000):
        loss = model(torch.ones(4, 8)).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"rank {rank} step {step} loss {loss.item():.4f}", flush=True)
        if rank == 1 and "fail" in sys.argv:
            raise KeyError("weights")
        if rank == 1 and "exit" in sys.argv:
            dist.destroy_process_group()  # else torch may abort while the interpreter ends
            sys.exit(7)
        if "short" in sys.argv and step == 20:
            break
        time.sleep(0.05)
    dist.destroy_process_group()


"""
BY_VARIABLES = STEPS + 'train(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))\n'
SPAWNED = (
    STEPS
    + """
if __name__ == "__main__":
    from ports import free_port
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()))
    print("no rank yet", flush=True)
    if "fork" in sys.argv:
        torch.multiprocessing.start_processes(train, (2,), nprocs=2, start_method="fork")
    else:
        torch.multiprocessing.spawn(train, (2,), nprocs=2)
"""
)
LOOP = """
port=$(%s -c 'from ports import free_port; print(free_port())')
for rank in 0 1; do
  RANK=$rank LOCAL_RANK=$rank WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port %s "$@" &
  pids="$pids $!"
done
for pid in $pids; do wait $pid || code=$?; done
exit ${code:-0}
"""


def commands(world: World, *words: str) -> dict[str, list[str]]:
    """By launcher: a command that trains on two ranks."""
    by_variables, spawned = world.script("job.py", BY_VARIABLES), world.script("spawned.py", SPAWNED)
    world.script("ports.py", PORTS)
    loop = world.script("loop.sh", LOOP % (sys.executable, sys.executable))
    return {
        "spawn": [sys.executable, spawned, *words],
        "fork": [sys.executable, spawned, "fork", *words],
        "loop": ["sh", loop, by_variables, *words],
    }


def train_on_two(status: dict[str, Any], attempt: int = 1) -> bool:
    """Whether both ranks have made some steps in that attempt."""
    ranks = status["ranks"] if status["attempt"] == attempt else []
    return [rank["rank"] for rank in ranks] == [0, 1] and all((rank["step"] or 0) > 3 for rank in ranks)


def own_pids(status: dict[str, Any]) -> set[int]:
    return {rank["pid"] for rank in status["ranks"]}


@pytest.mark.real
def test_ranks_of_a_loop_in_the_shell_have_rows_steps_and_stacks(world: World) -> None:
    run = world.run("exec", "--", *commands(world)["loop"])
    first = run.eventually(train_on_two)
    assert [rank["hook"] for rank in first["ranks"]] == ["armed", "armed"]
    assert len(own_pids(first)) == 2
    stacks = run.distui("dump", "stacks").fine().out
    assert "train" in stacks
    assert not re.search(r"no stack|no hook", stacks), stacks
    run.distui("nccl", "INFO")  # gloo: that is answered, and hurts nobody
    run.distui("restart", "--env", "BATCH=4", "--yes").fine()
    again = run.eventually(lambda now: train_on_two(now, attempt=2))
    assert not own_pids(again) & own_pids(first)
    assert again["attempts"][1]["env_diff"]["BATCH"] == "4"
    run.stop().fine()
    assert {rank["state"] for rank in run.status()["ranks"]} <= {"stopped", "succeeded"}


@pytest.mark.long
def test_how_ranks_of_other_launchers_ended(world: World) -> None:
    run = world.run("exec", "--", *commands(world, "short")["fork"])
    assert run.wait() == 0
    assert [rank["state"] for rank in run.status()["ranks"]] == ["succeeded", "succeeded"]
    assert b"no rank yet" in run.file("node-0/attempt-001/command.out")
    starts = [one["time"] for one in run.events() if one["event"]["type"] == "AttemptStarted"]
    attempt = run.status()["attempts"][0]
    assert attempt["began"] == starts[0] < starts[-1], "the ranks joined the attempt of the command"
    assert attempt["lasted_s"] > starts[-1] - starts[0]

    run = world.run("exec", "--restarts", "0", "--", *commands(world, "fail")["spawn"])
    assert run.wait() == 1
    cause = run.status()["attempts"][0]["first_cause"]
    assert (cause["rank"], cause["kind"]) == (1, "exception")
    assert cause["where"].endswith("spawned.py:17")
    assert "KeyError" in cause["text"]

    run = world.run("exec", "--restarts", "0", "--", *commands(world, "exit")["loop"])
    assert run.wait() == 1
    status = run.status()
    ended = status["ranks"][1]
    assert (ended["state"], ended["exit_code"]) == ("failed", 7), "though the loop reaped it first"
    assert status["attempts"][0]["first_cause"]["rank"] == 1, "rank 0 only lost its connection"


@pytest.mark.long
def test_a_script_below_one_of_the_shell_is_rank_0(world: World) -> None:
    alone = (
        "import torch, time\nw = torch.nn.Parameter(torch.ones(1))\no = torch.optim.SGD([w], lr=0.1)\n"
        "for step in range(10_000):\n    w.pow(2).sum().backward()\n    o.step()\n    time.sleep(0.05)\n"
    )
    script = world.script("alone.py", alone)
    shell = world.script("train.sh", f"echo begins\n{sys.executable} {script}\necho ends\n")
    run = world.run("exec", "--", "sh", shell)
    status = run.eventually(lambda now: bool(now["ranks"]) and (now["ranks"][0]["step"] or 0) > 3)
    assert status["ranks"][0]["hook"] == "armed"
    assert "alone.py" in run.distui("dump", "stacks").fine().out
    run.stop().fine()


NO_RANKS = """
import os, subprocess, sys, time, torch
import torch.distributed as dist

if len(sys.argv) > 1:
    os.environ.update(RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT=sys.argv[1])
    dist.init_process_group("gloo")
    w = torch.nn.Parameter(torch.ones(1))
    o = torch.optim.SGD([w], lr=0.1)
    w.pow(2).sum().backward()
    o.step()
    print("a child is through", os.environ.get("DISTUI_JOINED") == str(os.getpid()), flush=True)
    sys.exit()
dist.init_process_group("gloo")
from ports import free_port
subprocess.run([sys.executable, __file__, str(free_port())], check=True)
print("up", flush=True)
time.sleep(600)
"""


@pytest.mark.long
def test_children_of_ranks_are_none(world: World) -> None:
    world.script("ports.py", PORTS)
    script = world.script("job.py", NO_RANKS)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    run = world.run("exec", "--", *torchrun, script)
    status = run.eventually(lambda now: len(now["ranks"]) == 2 and _up(run) == 2)
    assert own_pids(status) == own_pids(run.status())
    text = run.file("node-0/attempt-001/command.out").decode()
    assert text.count("a child is through False") == 2
    run.stop().fine()


def _up(run: Run) -> int:
    path = run.path / "node-0" / "attempt-001" / "command.out"
    return path.read_text().count("up\n") if path.exists() else 0
