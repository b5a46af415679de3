"""One profile of ranks on two nodes, which are both this machine: the same steps, and every trace in one folder."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path

import pytest

from distui.presets.plan import Place, Plan, command_plan
from distui.presets.request import Request
from distui.runners.profile import rank_traces
from distui.runners.run.commands import Profile
from distui.runners.run.model import CommandReceived
from distui.runners.run.state import RunState
from distui.runners.run.wire.client import new_id

from .site import Site, Whole

DDP = """
import os, torch
torch.set_num_threads(1)
import torch.distributed as dist
node = int(os.environ["DISTUI_NODE"])
dist.init_process_group("gloo", init_method=f"file://{os.path.dirname(__file__)}/store", rank=node, world_size=2)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
while True:
    model(torch.randn(8, 64)).sum().backward()
    optimizer.step()
"""
pytestmark = [pytest.mark.long, pytest.mark.torch]


class Hooked(Whole):
    """The same with hooks in its ranks."""

    def planned(self, command: tuple[str, ...], name: str, place: Place, nodes: int) -> Plan:
        request = Request(name=name, grace_s=2.0)
        return replace(command_plan(command, request, place), nnodes=nodes)


def stepping(state: RunState) -> bool:
    return len(state.ranks) == 2 and all(rank.sample and rank.sample.step for rank in state.ranks.values())


async def test_ranks_of_all_nodes_record_the_same_steps(site: Site, tmp_path: Path) -> None:
    run = Hooked(site, site.script(DDP))
    run.start()
    async with run.viewer() as viewer:
        await viewer.until(stepping)
        done = await viewer.link.send(Profile(new_id(), steps=2))
        assert done.ok, done.text
        assert done.text == "profile of ranks 0, 1"
        answered = rank_traces.traces(done)
        assert [trace.file.partition("/")[0] for trace in answered.values()] == ["node-0", "node-1"]
        assert rank_traces.steps_text(answered).startswith("steps ")
        fetched = await rank_traces.fetched(viewer.link.send, answered, tmp_path / "here")
        assert fetched == rank_traces.Fetched(str(tmp_path / "here"))
        for rank, trace in answered.items():
            packed = (tmp_path / "here" / f"rank-{rank}.json.gz").read_bytes()
            assert packed == (run.parts[rank].path / trace.file).read_bytes()
            assert json.loads(gzip.decompress(packed))["distributedInfo"]["rank"] == rank

        outside = Profile(new_id(), (0,), part="read", folder="node-0/../plan.json")
        refused = await viewer.link.send(outside)
        assert (refused.ok, "is not a trace of a profile" in refused.text) == (False, True)
        one = await viewer.link.send(Profile(new_id(), (1,), steps=1))
        assert (one.ok, one.text) == (True, "profile of rank 1")
        await viewer.stop()
    asked = [stamped.event.verb for stamped in run.journal() if isinstance(stamped.event, CommandReceived)]
    assert asked.count("profile") == 2, "what a node is asked for is in no journal of the whole run"
