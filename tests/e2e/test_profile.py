"""`distui profile` on real ranks, as a user types it: what comes, what is refused, and that training goes on."""

from __future__ import annotations

import gzip
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from trace_format import flaws

from distui.runners import api
from distui.runners.run.errors import RunError

from .runs import Run, Text, World, until

DDP = """
import time, torch
import torch.distributed as dist
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(4))))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
while True:
    if rank == 1:
        time.sleep(0.2)
    optimizer.zero_grad()
    with torch.profiler.record_function("fetch --password correct-horse-battery"):
        model(torch.randn(8, 64)).sum().backward()
    optimizer.step()
"""
pytestmark = pytest.mark.torch


@pytest.fixture
def training(world: World) -> Iterator[Run]:
    """Two ranks that train; rank 1 is slow."""
    script = world.script("ddp.py", DDP)
    run = world.run("launch", "ddp", "--nproc-per-node", "2", "--grace", "2", "--", script).healthy()
    yield run
    run.stop("--grace", "2").fine()


def trace(path: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(gzip.decompress(Path(path).read_bytes()))
    return content


@pytest.mark.real
def test_ranks_record_the_same_steps_and_what_they_say_is_shown(training: Run) -> None:
    run = training
    report = run.distui("profile", "--steps", "2", "--json").fine().json()
    assert (report["ok"], report["text"], report["missing"]) == (True, "profile of ranks 0, 1", {})
    first, second = report["ranks"]
    assert first["first_step"] == second["first_step"] > 0
    assert (len(first["steps"]), len(second["steps"])) == (2, 2)
    assert report["slowest"] == 1
    assert first["shares"]["not_overlapped"] > 0.5, "it waits for the other, and computes nothing meanwhile"
    assert second["idle"] > 2 * 0.2
    assert {"aten::addmm", "aten::mm"} <= {each["name"] for each in report["operators"]}
    assert [each["name"] for each in report["collectives"]] == ["gloo:all_reduce"]
    steps = [f"ProfilerStep#{first['first_step'] + after}" for after in (0, 1)]
    for rank, path in report["files"].items():
        content = trace(path)
        assert content["distributedInfo"]["rank"] == int(rank)
        assert content["distributedInfo"]["world_size"] == 2
        named = [each["name"] for each in content["traceEvents"]]
        assert [name for name in named if "ProfilerStep" in name] == steps
        assert flaws(content) == []
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    folder = Path(report["folder"])
    assert sorted(path.name for path in folder.iterdir()) == ["rank-0.json.gz", "rank-1.json.gz"]
    exported(run)
    lines = run.distui("profile", "--ranks", "1", "--steps", "1", "--out", "traces").fine().out.splitlines()
    assert lines[0].startswith("Step ")
    assert lines[0].endswith(" of rank 1.")
    titles = "rank per step computes communicates exposed comm idle own work"
    assert " ".join(lines[2].split()) == titles
    assert lines[-1].startswith("1 trace in traces: ")
    assert os.listdir(run.world.work / "traces") == ["rank-1.json.gz"]
    run.distui("profile", "--out", "traces").refused(2, "is there already")
    run.distui("profile", "--ranks", "0,7").refused(2, "There is no rank 7")
    run.distui("profile", "--steps", "101").refused(2, "1 to 100 steps")
    run.distui("profile", "--ranks", "1-0").refused(2, "not a list of ranks")
    late = run.distui("profile", "--timeout", "0", "--json").json()["missing"]
    assert [" not reached within 0 s" in why for why in late.values()] == [True, True], late
    before = run.distui("status", "--json").json()["ranks"][0]["step"]
    assert until(lambda: run.distui("status", "--json").json()["ranks"][0]["step"] > before)

    with run.world.shell((), {}, run.world.work, Text()):
        by_python(api.attach(run.name))


def by_python(run: api.Run) -> None:
    """The same from Python."""
    report = run.profile(steps=1, out=Path("python"))
    assert (report["ok"], report["folder"]) == (True, "python"), report
    assert [rank["rank"] for rank in report["ranks"]] == [0, 1]
    for rank in report["ranks"]:
        assert rank["shares"] is not None
        assert rank["shares"]["idle"] is not None
        assert 0 <= rank["shares"]["idle"] <= 1, rank
    assert sorted(report["files"]) == ["0", "1"]
    assert all(Path(file).exists() for file in report["files"].values())
    with pytest.raises(RunError, match="there is no rank 7"):
        run.profile(ranks=[0, 7])
    with pytest.raises(RunError, match=r"rank-0\.json\.gz is there already"):
        run.profile(out="python")


def exported(run: Run) -> None:
    """A bundle says how large its traces are."""
    assert "not in it: 2 traces of profiles, " in run.distui("export", "without.tar.gz").fine().out
    assert run.world.distui("status", "without.tar.gz", "--json").fine().json()["name"] == run.name
