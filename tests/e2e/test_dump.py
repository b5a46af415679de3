"""`distui dump` on real ranks: one rank sleeps, the other waits for it, and both are told as one view."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from .runs import Run, World, until

HANG = """
import sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
def asleep():
    print("here", flush=True)
    time.sleep(600)
def step():
    dist.all_reduce(torch.ones(20))
for _ in range(5):
    step()
if rank == 1:
    asleep()
print("here", flush=True)
step()
"""
pytestmark = pytest.mark.torch


@pytest.fixture
def hung(world: World) -> Iterator[Run]:
    """Two ranks, of which rank 1 sleeps and rank 0 waits."""
    script = world.script("hang.py", HANG)
    run = world.run("launch", "ddp", "--nproc-per-node", "2", "--grace", "2", "--", script)
    assert run.wait("running") == 0
    out = [f"node-0/attempt-001/rank-{rank}.out" for rank in (0, 1)]
    assert until(lambda: all(b"here" in run.file(name) for name in out)), run.describe()
    assert until(lambda: "hang.py:8" in run.distui("dump", "stacks", "--rank", "1").out)
    assert until(lambda: "Rank 0 waits in #6 all_reduce" in run.distui("dump", "flight").out)
    yield run
    run.stop("--grace", "2").fine()


@pytest.mark.real
def test_what_the_ranks_do_is_told_as_one_view(hung: Run) -> None:
    lines = hung.distui("dump", "stacks").fine().out.splitlines()
    assert lines[0] == "rank 0"
    there = lines.index("rank 1")
    step = next(
        at for at, line in enumerate(lines) if line.startswith("▏   step ") and line.endswith("hang.py:10")
    )
    assert step < there
    assert lines[step + 1].split() == ["▏", "dist.all_reduce(torch.ones(20))"]
    assert any(line.startswith("    all_reduce ") and "torch" in line for line in lines[:step])
    assert lines[there + 1].startswith("▏   asleep ")
    assert lines[there + 1].endswith("hang.py:8")
    assert lines[there + 2].split() == ["▏", "time.sleep(600)"]
    assert lines[there + 3].startswith("▏ › <module> ")
    assert lines[-1] == "▏ your code   › where the ranks diverge"
    raw = hung.distui("dump", "stacks", "--raw", "--rank", "1").fine().out
    assert raw.startswith("--- rank 1\n")
    assert "Thread 0x" in raw
    told = hung.distui("dump", "stacks", "--json").fine().json()
    assert [group["ranks"] for group in told["merged"]] == [[0], [1]]
    assert set(told["data"]) == {"0", "1"}

    said = hung.distui("dump", "flight").fine().out
    assert said.startswith("Group 0 (default_pg): 2 ranks")
    assert "Furthest behind is rank 1." in said
    assert "Rank 0 waits in #6 all_reduce Float[20] (" in said
    assert "hang.py:10 step) since " in said
    assert "; rank 1 has not called it." in said
    (group,) = hung.distui("dump", "flight", "--json").fine().json()["merged"]
    assert [(part["called"], part["completed"]) for part in group["parts"]] == [(6, 5), (5, 5)]
    assert group["divergences"] == []

    lines = hung.distui("dump", "memory").fine().out.splitlines()
    assert lines[0].split() == ["rank", "resident", "peak"]
    assert "Ranks 0, 1: no CUDA in this rank: there is no allocator to take a snapshot of." in lines
    told = hung.distui("dump", "memory", "--json").fine().json()
    assert all(50 << 20 < one["rss_bytes"] <= one["max_rss_bytes"] for one in told["merged"])
    recorders = json.loads(hung.distui("dump", "flight", "--json").fine().json()["data"]["0"])["recorders"]
    # torch for CUDA has an empty one of NCCL's beside it.
    (used,) = [each for each in recorders if each["entries"]]
    assert used["entries"][-1]["retired"] is False
    hung.distui("dump", "stacks", "--record").refused(2, "--record is for memory")
    hung.distui("dump", "flight", "--rank", "7").refused(2, "There is no rank 7")
