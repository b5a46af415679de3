"""A restart in place under every rendezvous that a preset may name: two ranks over gloo, restarted twice."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from distui.presets.load import load
from distui.presets.plan import Request, make_plan
from distui.runners import local_agent, run_directories
from distui.runners.model import AttemptStarted

from .inrank_rig import driven

pytestmark = pytest.mark.torch

MEETS = """
import os, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1) * (dist.get_rank() + 1)
dist.all_reduce(total)
print(f"met {int(total)} {os.environ['MASTER_PORT']} all of it", flush=True)
while True:
    dist.barrier()
    time.sleep(0.05)
"""


@pytest.mark.long
@pytest.mark.parametrize("rendezvous", ["static", "standalone"])
async def test_two_restarts_and_a_failure_come_back(own_directories: Path, rendezvous: str) -> None:
    script = own_directories / "meets.py"
    script.write_text(MEETS)
    record = run_directories.new_record("t")
    wish = Request(script=str(script), nproc_per_node=2, grace_s=5.0, python=sys.executable)
    preset = load("ddp", (f"launcher.rendezvous={rendezvous}", "restart.backoff_s=0.1"))
    plan = make_plan(preset, wish, local_agent.place(record, wish))
    assert ("--standalone" in plan.argv, "--master-port" in plan.argv) == (
        rendezvous == "standalone",
        rendezvous == "static",
    )
    async with driven((plan, record)) as run:
        ports = []
        for attempt in (1, 2, 3, 4):
            for rank in (0, 1):
                said = await run.wrote(f"rank-{rank}.out", "all of it", attempt)
                assert said.split()[:2] == ["met", "3"]
            ports.append(said.split()[2])
            if attempt < 3:
                assert (await run.restart(TURN=str(attempt))).ok
            elif attempt == 3:
                os.kill(run.state.ranks[1].pid or 0, signal.SIGKILL)
        started = [one.event for one in run.events if isinstance(one.event, AttemptStarted)]
        assert [one.cause for one in started] == ["launch", "restart", "restart", "failure"]
        assert {one.world_size for one in started} == {2}
        assert [one.failures for one in started] == [0, 0, 0, 1]
        assert len(set(ports)) == 4, "each group has a store of its own"
