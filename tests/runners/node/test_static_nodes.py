"""Two nodes under the static rendezvous: their ranks keep their numbers, and restart together, again and again."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from nodes_rig import Cluster

from distui.presets.load import load
from distui.presets.plan import Place, Plan, Request, make_plan
from distui.presets.render import rendezvous_port
from distui.runners import journal
from distui.runners.local_agent import free_port
from distui.runners.model import AttemptStarted

pytestmark = pytest.mark.torch


class Numbered(Cluster):
    """Nodes that meet by the numbers they were given."""

    def _plan(
        self, nnodes: int | str, script: Path, args: tuple[str, ...], place: Mapping[str, Any]
    ) -> Plan:
        where = Place(
            run=self.record.run, run_dir="", port=rendezvous_port(self.record.run8), ras_port=free_port(),
            gpus=0, cores=2, cwd="", python="", nodes=None, script_source=script.read_bytes(),
        )  # fmt: skip
        request = Request(script=str(script), args=args, nnodes=nnodes, nproc_per_node=1, grace_s=3.0)
        more = ("launcher.rendezvous=static", "restart.backoff_s=0.1")
        return make_plan(load("ddp", more, cwd=Path("/"), env={"HOME": "/nonexistent"}), request, where)


def started(cluster: Cluster, node: int) -> list[AttemptStarted]:
    events = (stamped.event for stamped in journal.read(cluster.path(node)))
    return [event for event in events if isinstance(event, AttemptStarted)]


@pytest.mark.long
def test_restarts_and_a_failure_bring_both_nodes_back() -> None:
    cluster = Numbered()
    try:
        for node in (1, 0):
            cluster.job(node)
        cluster.steps(1)
        asyncio.run(cluster.restart(0, 1))
        cluster.steps(2)
        asyncio.run(cluster.restart(1))
        cluster.steps(3)
        os.kill(cluster.now(0).ranks[0].pid or 0, signal.SIGKILL)
        cluster.steps(4)
        for node in (0, 1):
            found = started(cluster, node)
            assert [one.attempt for one in found] == [1, 2, 3, 4], cluster.describe()
            assert [[rank.rank for rank in one.ranks] for one in found] == [[node]] * 4
            assert [one.world_size for one in found] == [2] * 4
    finally:
        cluster.close()
