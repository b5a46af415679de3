"""Machines without SkyPilot: a run on hosts that are named, which have one home folder; one crashes and comes back."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from desk import FOR_EVER, Desk, Status, stepping, told
from slurm.cluster import Cluster


@pytest.fixture(scope="module")
def owned(cluster: Cluster) -> Iterator[tuple[Desk, str]]:
    """An elastic run on both nodes, and where it was typed."""
    desk = Desk(cluster, "owned")
    said = desk.ok(
        "launch", "ddp", "--hosts", "c1,c2", "--nnodes", "1:2", "--nproc-per-node", "1", "--workdir", ".",
        "--python", cluster.job_python, "--name", "owned", "--detach", "--json", "--", *FOR_EVER,
    )  # fmt: skip
    run = str(json.loads(said)["run"])
    desk.until(run, stepping, 120)
    yield desk, run
    desk.distui("stop", run, "--yes")


def alone(found: Status) -> bool:
    """Whether one node goes on by itself."""
    live = [rank for rank in found["ranks"] if rank["state"] == "running"]
    return found["attempt"] > 1 and len(live) == 1 and live[0]["node"] == 0 and (live[0]["step"] or 0) > 1


def test_doctor_has_both_hosts_reduce(cluster: Cluster) -> None:
    desk = Desk(cluster, "owned")
    words = ("doctor", "--hosts", "c1,c2", "--python", cluster.job_python, "--json")
    examined = json.loads(desk.distui(*words).stdout)
    assert [(node["name"], node["reached"]) for node in examined["nodes"]] == [("c1", True), ("c2", True)]
    (pair,) = examined["pairs"]
    assert (pair["members"], pair["right"], pair["problem"]) == (["c1", "c2"], True, None), examined


def test_both_hosts_take_part(owned: tuple[Desk, str]) -> None:
    desk, run = owned
    found = desk.status(run)
    assert [(node["node"], node["host"], node["state"]) for node in found["nodes"]] == [
        (0, "c1", "up"), (1, "c2", "up"),
    ]  # fmt: skip
    assert "rank 1 of 2" in desk.ok("logs", run, "--node", "1")
    rows = [
        row for row in json.loads(desk.ok("ls", "--host", "c1", "--json")) if row["run"].startswith(run)
    ]
    assert [(row["on"], row["state"]) for row in rows] == [("c1", "running")]
    assert run in desk.ok("ls", "--host", "c1")


def test_the_run_goes_on_without_a_host_and_with_it_again(owned: tuple[Desk, str], whole: Cluster) -> None:
    desk, run = owned
    whole.crash("c2")
    desk.until(run, lambda found: found["nodes"][1]["state"] == "lost", 60)
    # Nothing says good-bye: the rank that is left would wait in its collective for as long as that may take.
    assert "node 1 (c2) does not answer" in desk.refused("restart", run, "--yes")
    desk.ok("restart", run, "--reachable", "--yes")
    found = desk.until(run, alone, 60)
    assert [node["state"] for node in found["nodes"]] == ["up", "lost"], told(found)
    whole.boot("c2")
    desk.ok("restart", run, "--yes", timeout=150)
    found = desk.until(run, lambda now: stepping(now) and now["attempt"] > found["attempt"], 120)
    assert [node["state"] for node in found["nodes"]] == ["up", "up"], told(found)


def test_stop_leaves_nothing(owned: tuple[Desk, str]) -> None:
    desk, run = owned
    assert desk.ok("stop", run, "--yes") == "stopped: no process of the run is left\n"
    for host in ("c1", "c2"):
        assert not desk.ranks(host)
        desk.cluster.wait(
            lambda at=host: not desk.processes(at, run),  # type: ignore[misc]
            f"agent and job leave {host}",
            60,
            every=0.5,
        )
