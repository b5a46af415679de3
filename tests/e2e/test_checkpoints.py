"""Checkpoints that scripts save are known: what, where, at which step, whole or torn; nothing else is taken for one."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest
from doubles.fake_runner import FakeRunners
from doubles.served import doubled, own_directories, planned, served

from distui.runners.agent.checkpoint_watch import CheckpointWatch
from distui.runners.run import clock
from distui.runners.run.model import CheckpointSaved

from .runs import Run, World

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


def checkpoints(run: Run) -> list[dict[str, Any]]:
    return [event["checkpoint"] for event in run.of("CheckpointSaved")]


def by_name(saved: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {Path(each["path"]).name: each for each in saved}


@pytest.mark.real
def test_saves_are_reported_with_step_and_size(world: World) -> None:
    script = world.script("train.py", SAVES)
    run = world.run("launch", "ddp", "--nproc-per-node", "2", "--restarts", "0", "--", script)
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


def report(path: Path, **more: object) -> str:
    """A line that the hook of a rank writes about a save."""
    return json.dumps({"path": str(path), "source": "torch.save", "begin": clock.now(), **more}) + "\n"


async def test_a_save_that_its_rank_did_not_survive_is_torn(tmp_path: Path) -> None:
    async with doubled(nproc_per_node=1, restart_limit=0) as (run, runners):
        await run.hooked()
        path = tmp_path / "step-1.pt"
        path.write_bytes(b"half")
        runners.newest.writes(0, report(path, state="began", count=1, step=1), "saves")
        runners.newest.exits(0, -9)
        await run.until(lambda state: state.phase.ended)
        (torn,) = [event.checkpoint for event in run.all_of(CheckpointSaved)]
        assert (torn.path, torn.complete, torn.step, torn.rank) == (str(path), False, 1, 0)


async def test_an_agent_that_comes_later_reports_no_save_again(tmp_path: Path) -> None:
    async with doubled(nproc_per_node=1) as (run, runners):
        await run.hooked()
        for step in (10, 20):
            path = tmp_path / f"step-{step}.pt"
            path.write_bytes(b"whole")
            about = path.stat()
            file = (about.st_dev, about.st_ino, about.st_size)
            done = report(path, state="done", end=clock.now(), count=step, step=step, file=file)
            runners.newest.writes(0, done, "saves")
            await asyncio.sleep(30.0)
        later = asyncio.create_task(CheckpointWatch(run.agent.served).run())
        await asyncio.sleep(30.0)
        later.cancel()
        assert [event.checkpoint.step for event in run.all_of(CheckpointSaved)] == [10, 20]


async def test_a_folder_is_watched_where_no_hook_reports() -> None:
    with own_directories() as base:
        script, old, new = base / "train.py", base / "out/checkpoint-1", base / "out/checkpoint-5"
        script.write_text("import torch\n")
        old.mkdir(parents=True)
        os.utime(old, (1, 1))  # of an earlier run
        async with served(*planned(script, "--save_dir", str(base / "out")), FakeRunners()) as run:
            await run.hooked()
            new.mkdir()
            for path, size in ((new / "model.safetensors", 1000), (base / "out/step-6.pt.tmp", 10)):
                path.write_bytes(bytes(size))
                os.utime(path, (clock.now(), clock.now()))
            os.utime(new, (clock.now(), clock.now()))
            await run.until(lambda state: state.checkpoints)
            (saved,) = [event.checkpoint for event in run.all_of(CheckpointSaved)]
            assert (saved.path, saved.step, saved.size, saved.source) == (str(new), 5, 1000, "folder")
