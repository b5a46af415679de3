"""Two nodes started as PBS's mpiexec would: found by PBS_NODEFILE and the numbers that it gives; and a disagreement."""

from __future__ import annotations

import json

import pytest
from nodes_rig import Cluster, until
from patience import HANG_S

pytestmark = pytest.mark.torch


class Pbs(Cluster):
    """Nodes of a job of PBS, two slots each."""

    def skypilot(self, node: int) -> dict[str, str]:
        path = self.root / "nodefile"
        path.write_text("".join(f"{address}\n" * 2 for address in self.addresses))
        return {
            "PBS_JOBID": "7.head",
            "PBS_NODEFILE": str(path),
            "PMI_RANK": str(node),
            "PMI_SIZE": str(self.count),
        }


@pytest.mark.long
def test_both_nodes_meet_and_a_stranger_is_refused() -> None:
    cluster = Pbs()
    try:
        for node in (0, 1):
            cluster.job(node)
        cluster.steps(1)
        for node in (0, 1):
            plan = json.loads((cluster.path(node) / "plan.json").read_text())
            seat = (plan["node"], plan["env"]["DISTUI_NODE"], plan["env"]["DISTUI_HEAD"])
            assert seat == (node, str(node), "127.0.0.1")
            assert f"{cluster.addresses[node]}" in plan["argv"]
        stranger = cluster.job(1, PMI_RANK="0", NODE_RANK="1")
        until(lambda: stranger.poll() is not None, HANG_S, cluster.describe)
        assert stranger.returncode == 2
        assert "PBS says node 0, and NODE_RANK is 1: they disagree" in cluster.said(1)
    finally:
        cluster.close()
