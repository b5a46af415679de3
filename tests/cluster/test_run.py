"""A run on two nodes through SkyPilot, from the launch to the record: what both nodes do, seen from one place."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator

import pytest
from desk import Desk, Status, read, stepping, told


@pytest.fixture(scope="module")
def calm(desk: Desk) -> Iterator[str]:
    """A run of this file's own. The viewer that launched it is killed while the cluster is being provisioned."""
    null = subprocess.DEVNULL
    with desk.cluster.popen(
        desk.words("ddp", "--name", "calm", "--env-on", "c2:SECOND=yes"),
        cwd=desk.folder,
        stdin=null,
        stdout=null,
        stderr=null,
    ) as viewer:
        desk.cluster.wait(lambda: bool(provisioning(desk)), "the hub asks for a cluster", 60)
        os.killpg(viewer.pid, signal.SIGKILL)
    (run,) = provisioning(desk)
    found = desk.until(run, stepping, 300)
    assert found["plan"]["nnodes"] == 2
    yield run
    desk.distui("stop", run, "--yes")


def provisioning(desk: Desk) -> list[str]:
    """Runs named calm whose first stage has begun."""
    runs = desk.run_dir("").glob("*-calm-*/journal.jsonl")
    return [path.parent.name for path in runs if '"stage":"provision"' in path.read_text()]


def started(found: Status, attempt: int) -> bool:
    return bool(found["attempt"] == attempt and stepping(found))


def test_both_nodes_are_there(desk: Desk, calm: str) -> None:
    found = desk.status(calm)
    assert [(node["node"], node["host"], node["state"]) for node in found["nodes"]] == [
        (0, "c1", "up"), (1, "c2", "up"),
    ]  # fmt: skip
    assert [(rank["rank"], rank["node"], rank["local_rank"]) for rank in found["ranks"]] == [
        (0, 0, 0), (1, 1, 0),
    ]  # fmt: skip
    assert all(node["host_metrics"] is not None for node in found["nodes"])
    assert [len(desk.ranks(host)) for host in ("c1", "c2")] == [1, 1]
    second = [rank.environ().get("SECOND") for host in ("c1", "c2") for rank in desk.ranks(host)]
    assert second == [None, "yes"]
    for node in (0, 1):
        desk.taken_over_whole(calm, node)


def test_logs_by_node_and_by_rank(desk: Desk, calm: str) -> None:
    assert "rank 1 of 2" in desk.ok("logs", calm, "--node", "1")
    assert "rank 0 of 2" not in desk.ok("logs", calm, "--node", "1")
    assert "rank 0 of 2" in desk.ok("logs", calm, "--rank", "0")
    both = desk.ok("logs", calm, "--grep", "of 2")
    assert both.count("rank 0 of 2") == both.count("rank 1 of 2") == 1


def test_a_restart_changes_the_environment_on_both_nodes(desk: Desk, calm: str) -> None:
    before = desk.status(calm)["attempt"]
    text = desk.ok("restart", calm, "--env", "SEEN=yes", "--yes")
    assert f"restarted: attempt {before + 1}, 2 ranks on 2 nodes running" in text
    found = desk.until(calm, lambda found: started(found, before + 1), 60)
    assert found["attempts"][-1]["env_diff"] == {"SEEN": "yes"}
    for node, host in enumerate(("c1", "c2")):
        assert [rank.environ()["SEEN"] for rank in desk.ranks(host)] == ["yes"]
        numbers = [
            one["event"]["attempt"]
            for one in read(desk.part_dir(calm, node))
            if one["event"]["type"] == "AttemptStarted"
        ]
        assert numbers == list(range(1, before + 2)), "both nodes number attempts alike"


def test_nccl_is_told_to_all_nodes(desk: Desk, calm: str) -> None:
    before = desk.status(calm)["attempt"]
    text = desk.ok("nccl", calm, "INFO")
    assert text.count("backend is gloo: NCCL_DEBUG=INFO is set for the next start") == 1
    assert json.loads(desk.ok("restart", calm, "--yes", "--json"))["ok"] is True
    desk.until(calm, lambda found: started(found, before + 1), 60)
    for host in ("c1", "c2"):
        assert [rank.environ()["NCCL_DEBUG"] for rank in desk.ranks(host)] == ["INFO"]


def test_what_is_printed_of_two_nodes_is_in_the_schemas(desk: Desk, calm: str) -> None:
    """Whatever `Desk.distui` prints with --json is checked; here those verbs that no other test asks."""
    lacks = json.loads(desk.ok("diagnose", "calm", "--json"))["live"]["missing"]
    assert lacks == [
        "the logs of attempt 3 on nodes 0, 1 were not read yet: `distui logs calm` fetches them"
    ]
    for line in (
        "wait calm --until healthy", "events calm", "logs calm --tail 5", "metrics calm", "metrics calm --list",
        "diagnose calm", "dump calm stacks", "dump calm memory", "dump calm flight", "signal calm CONT",
        "nccl calm WARN --for 1", "note calm busy", "tag calm +keep", "notify log calm", "diff calm calm",
        "export calm calm.tar.gz --force", "status calm.tar.gz", "rerun calm --name later --dry-run",
    ):  # fmt: skip
        assert json.loads(desk.ok(*line.split(), "--json").splitlines()[-1]), line
    for verb in (("plan",), ("launch", "--dry-run")):
        words = desk.words("ddp", "--name", "dry", "--json", *verb[1:])[2:]
        assert json.loads(desk.ok(verb[0], *words))["plan"]["name"] == "dry"
    diagnosis = json.loads(desk.ok("diagnose", "calm", "--json"))
    assert (diagnosis["live"]["attempt"], diagnosis["live"]["missing"]) == (3, [])
    assert {name.split("/")[1] for name in diagnosis["files"]} == {"attempt-003"}
    profiled = json.loads(desk.ok("profile", "calm", "--steps", "1", "--json"))
    assert ([rank["rank"] for rank in profiled["ranks"]], profiled["missing"]) == ([0, 1], {})
    series = json.loads(desk.ok("metrics", "calm", "--json"))["series"]
    assert {one["node"] for one in series if one["metric"] == "host.cpu"} == {0, 1}


def test_skypilot_says_the_same(desk: Desk, calm: str) -> None:
    job = desk.status(calm)["cluster"]["job"]
    assert desk.job(job) == "RUNNING"
    shown = desk.sky("logs", desk.name, str(job), "--no-follow")
    for rank in (0, 1):
        assert f"[rank {rank}] rank {rank} of 2" in shown


def test_stop_is_a_cancel_for_skypilot(desk: Desk, calm: str) -> None:
    job = desk.status(calm)["cluster"]["job"]
    assert desk.ok("stop", calm, "--yes") == "stopped: no process of the run is left\n"
    assert [desk.ranks(host) for host in ("c1", "c2")] == [[], []]
    found = desk.status(calm)
    assert (found["state"], {node["outcome"] for node in found["nodes"]}) == ("stopped", {"stopped"})
    desk.listed_as_cancelled(calm, job)
    for node in (0, 1):
        desk.taken_over_whole(calm, node)


def test_the_record_is_whole_when_the_run_is_over(desk: Desk, calm: str) -> None:
    for node in (0, 1):
        assert desk.log(calm, node, 3) == desk.written(calm, node, 3)
    rows = [row for row in json.loads(desk.ok("ls", "--json")) if row["run"] == calm]
    assert [(row["state"], row["ranks"]) for row in rows] == [("stopped", 2)]
    assert "stop requested" in desk.ok("events", calm)
    assert json.loads(desk.ok("diagnose", "calm", "--json"))["live"]["state"] == "stopped"


def test_a_second_run_takes_the_same_cluster(desk: Desk, training: str) -> None:
    """fsdp2 this time; how `training` was launched."""
    found = desk.status(training)
    assert found["cluster"]["name"] == desk.name
    assert found["cluster"]["job"] > 1, told(found)
    assert found["plan"]["preset"] == "fsdp2"
    text = (desk.run_dir(training) / "launch.log").read_text()
    assert "Considered resources" not in text, "nothing was provisioned for it"
    assert "fsdp2" in desk.ok("logs", training, "--rank", "1", "--grep", "of 2")
