"""How a cluster ends: taken down by its name, or by a node that crashes; and what is left then."""

from __future__ import annotations

from collections.abc import Iterator

import psutil
import pytest
from desk import Desk, stepping, told
from slurm.cluster import Cluster


def test_down_asks_for_the_name(desk: Desk, training: str) -> None:
    desk.distui("stop", training, "--yes")
    wrong = desk.distui("down", "train", input="manny\n")
    assert wrong.returncode == 2
    assert "all on its disks: checkpoints, logs, data that was not copied" in wrong.stderr
    assert "'manny' is not the name of the cluster (many): nothing was done" in wrong.stderr
    done = desk.distui("down", "train", input="many\n")
    assert (done.returncode, done.stdout) == (0, "cluster many is down\n")
    assert desk.name not in desk.sky("status")
    desk.cluster.wait(lambda: desk.cluster.idle() == 2, "the nodes are free again", 60)


def test_the_record_needs_no_cluster(desk: Desk, training: str) -> None:
    found = desk.status(training)
    assert (found["state"], found["cluster"]["down"]) == ("stopped", True)
    assert [rank["node"] for rank in found["ranks"]] == [0, 1]
    for node in (0, 1):
        assert desk.log(training, node, found["attempt"])[-1].startswith(("line", "step", "checkpoint"))
    assert "a terminal" in desk.refused("replay", training)
    assert "is down already" in desk.ok("down", "train")


def test_nothing_is_left(desk: Desk, training: str) -> None:
    """Neither here nor on the nodes: no process of the run, no socket, no link."""
    for host in ("client", "c1", "c2"):
        for process in desk.cluster.processes(host):
            assert not of_run(process, training), " ".join(process.cmdline())
        sockets = desk.cluster.on(host, ["sh", "-c", "ls /tmp/distui-0 2>/dev/null"]).stdout.split()
        assert not [name for name in sockets if training.rpartition("-")[2] in name]


def of_run(process: psutil.Process, run: str) -> bool:
    try:
        line = " ".join(process.cmdline())
        return run in line or run in process.environ().get("DISTUI_RUN_ID", "")
    except psutil.Error:
        return False


@pytest.fixture(params=["c2", "c1"])
def broken(
    skypilot: Cluster, whole: Cluster, request: pytest.FixtureRequest
) -> Iterator[tuple[Desk, str, str]]:
    """A run on a cluster of its own, and which of its nodes a test breaks."""
    host = str(request.param)
    desk = Desk(whole, f"with-{host}")
    run = desk.launch("ddp", f"loses-{host}")
    desk.until(run, stepping, 300)
    yield desk, run, host
    desk.cluster.client(["sky", "down", "-y", "--purge", desk.name], 90)


def test_a_node_crashes(broken: tuple[Desk, str, str]) -> None:
    """Slurm ends the job and frees the other node; what SkyPilot says of it depends on who looks first."""
    desk, run, host = broken
    node = 0 if host == "c1" else 1
    seen = desk.log(run, node, 1)
    desk.cluster.crash(host)
    desk.until(run, lambda found: found["nodes"][node]["state"] == "lost", 60)
    found = desk.until(run, lambda found: found["state"] in ("failed", "lost"), 240, bad="")
    assert (found["ended"] is None) == (found["state"] == "lost"), "nobody saw when a lost run ended"
    assert f"`distui rerun loses-{host}`" in found["text"], told(found)
    assert host in found["text"] or f"cluster {desk.name} is gone" in found["text"]
    assert desk.log(run, node, 1)[: len(seen)] == seen, "what was read of its logs is kept"
