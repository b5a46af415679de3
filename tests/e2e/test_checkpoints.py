"""Checkpoints that scripts save are known: what, where, at which step, whole or torn; nothing else is taken for one."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from .runs import EXAMPLES, Run, World, kill

pytestmark = pytest.mark.torch

TRAINS = """
import os, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def step():
    optimizer.zero_grad()
    model(torch.ones(2, 64)).sum().backward()
    optimizer.step()
"""

SAVES = f"""{TRAINS}
from torch import save  # the name is taken before anything is called
import torch.distributed.checkpoint as dcp
for _ in range(3):
    step()
if rank == 0:
    save({{"model": model.state_dict(), "iter_num": 30}}, "nano.pt.tmp")  # written under another name first
    os.replace("nano.pt.tmp", "nano.pt")
    torch.save([1.0, 2.0], "losses.pt")  # holds no tensor
    torch.save(torch.ones(9), "data.pt")  # data, no checkpoint
    torch.save(model.state_dict(), open("/dev/null", "wb"))
dist.barrier()
step()
dcp.save({{"model": model.state_dict()}}, checkpoint_id="step-4")
step()
class Slow:
    def __reduce__(self):
        time.sleep(2.5)
        return (dict, ())
dist.barrier()
torch.save({{"model": model.state_dict(), **({{"slow": Slow()}} if rank else {{}})}}, f"shard-{{rank}}.pt")
if rank == 0:
    try:
        torch.save(model.state_dict(), "/nowhere/step-1.pt")
    except RuntimeError as error:
        print("caught", error)
dist.barrier()
"""

DIES = f"""{TRAINS}
step()
class Bomb(torch.nn.Module):
    def __reduce__(self):
        os.kill(os.getpid(), 9)
if rank == 0:
    torch.save({{"model": model.state_dict(), "bomb": Bomb()}}, "step-1.pt")
dist.barrier()
"""


def checkpoints(run: Run) -> list[dict[str, Any]]:
    return [event["checkpoint"] for event in run.of("CheckpointSaved")]


def launched(world: World, text: str, ranks: int) -> Run:
    script = world.script("train.py", text)
    return world.run("launch", "ddp", "--nproc-per-node", str(ranks), "--restarts", "0", "--", script)


def by_name(saved: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {Path(each["path"]).name: each for each in saved}


@pytest.mark.real
def test_saves_are_reported_with_step_and_size(world: World) -> None:
    run = launched(world, SAVES, 2)
    assert run.wait() == 0, run.describe() + run.distui("logs").out
    saved = by_name(checkpoints(run))
    assert saved.pop("step-1.pt")["complete"] is False, "nothing was written"
    assert "caught Parent directory /nowhere does not exist" in run.distui("logs").out, (
        "the script sees its error"
    )
    assert set(saved) == {"nano.pt", "step-4", world.work.name}, saved

    nano = saved["nano.pt"]
    assert (nano["step"], nano["count"], nano["rank"], nano["source"]) == (30, 3, 0, "torch.save")
    assert nano["size"] == (world.work / "nano.pt").stat().st_size
    assert nano["at"] == pytest.approx((world.work / "nano.pt").stat().st_mtime, abs=2)

    dcp = saved["step-4"]
    assert (dcp["step"], dcp["count"], dcp["source"]) == (4, 4, "dcp")
    assert dcp["size"] == sum(path.stat().st_size for path in (world.work / "step-4").iterdir())
    shards = saved[world.work.name]  # one file of each rank is one checkpoint: their folder
    assert (shards["count"], shards["size"]) == (
        5,
        sum(path.stat().st_size for path in world.work.glob("shard-*.pt")),
    )
    assert all(each.get("complete", True) for each in saved.values())
    newest = run.status()["checkpoint"]
    assert (newest["path"], newest["saved"], newest["complete"]) == (str(world.work), 4, True)
    assert 0 <= newest["age_s"] < 120
    assert f"by torch.save, {world.work}" in run.distui("status").out


@pytest.mark.long
def test_a_save_that_its_rank_did_not_survive_is_torn(world: World) -> None:
    run = launched(world, DIES, 1)
    assert run.wait() != 0
    (torn,) = checkpoints(run)
    assert torn["complete"] is False
    assert (Path(torn["path"]).name, torn["step"], torn["rank"]) == ("step-1.pt", 1, 0)
    found = {finding["id"]: finding for finding in run.status()["findings"]}
    assert found["checkpoint-torn"]["rank"] == 0
    assert "step-1.pt is incomplete" in found["checkpoint-torn"]["text"]


@pytest.mark.long
def test_an_agent_that_comes_later_reports_each_once(world: World) -> None:
    args = ("--steps", "100000", "--step-delay", "0.05", "--checkpoint-every", "10")
    words = ("launch", "ddp", "--nproc-per-node", "1", "--", str(EXAMPLES / "chargpt.py"), *args)
    run = world.run(*words)
    run.eventually(lambda status: status["checkpoint"] and status["checkpoint"]["saved"] >= 2)
    kill(run.agent_pid())
    before = len(checkpoints(run))
    run.eventually(lambda status: status["checkpoint"]["saved"] > before + 1)
    run.stop().fine()
    saved = checkpoints(run)
    steps = [each["step"] for each in saved]
    assert steps == sorted(set(steps)), steps
    assert all(step % 10 == 0 for step in steps[:-1])  # the last one is saved on SIGTERM
    assert {each["count"] for each in saved} == set(steps)


@pytest.mark.long
def test_a_folder_is_watched_where_no_hook_reports(world: World) -> None:
    text = """
import pathlib, sys, time
folder = pathlib.Path(sys.argv[sys.argv.index("--save_dir") + 1])
(folder / "checkpoint-5").mkdir(parents=True)
(folder / "checkpoint-5" / "model.safetensors").write_bytes(bytes(1000))
(folder / "notes.txt").write_text("x")
(folder / "step-6.pt.tmp").write_bytes(bytes(10))
time.sleep(10000)
"""
    script = world.script("saves.py", text)
    old = world.work / "out" / "checkpoint-1"
    old.mkdir(parents=True)
    os.utime(old, (1, 1))  # of an earlier run
    run = world.run("exec", "--", sys.executable, "-u", script, "--save_dir", "out")
    run.eventually(lambda status: status["checkpoint"])
    (saved,) = checkpoints(run)
    assert saved["path"] == str(world.work / "out" / "checkpoint-5")
    assert (saved["step"], saved["size"], saved["source"]) == (5, 1000, "folder")
    run.stop().fine()
