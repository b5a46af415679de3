"""From a session on a node that knows nothing but its own cluster: the whole run, through the relay."""

from __future__ import annotations

import json
import re
import subprocess
from contextlib import suppress

import psutil
from desk import Desk, Status, as_in_schema, stepping, typed_ssh

COMMAND = "~/.distui/distui"
"""What a launch's notes name."""


def on_node(desk: Desk, words: str, alias: str = "") -> subprocess.CompletedProcess[str]:
    """A verb in an ssh session on the head, or behind another alias."""
    done: subprocess.CompletedProcess[str] = typed_ssh(
        desk.cluster, alias or desk.name, f"{COMMAND} {words}"
    )
    return as_in_schema(words.split(), done)


def ok(desk: Desk, words: str) -> str:
    done = on_node(desk, words)
    assert done.returncode == 0, done.stdout + done.stderr
    return str(done.stdout)


def seen(desk: Desk, run: str) -> Status:
    found: Status = json.loads(ok(desk, f"status {run} --json"))
    return found


def test_the_launch_tells_of_the_command(desk: Desk, training: str) -> None:
    notes = " ".join(desk.status(training)["plan"]["notes"])
    assert f"`ssh {desk.name}`" in notes
    assert COMMAND in notes


def test_a_restart_is_the_first_that_is_asked_there(desk: Desk, training: str) -> None:
    """The hub on the head is made by that very verb, and has to reach the other node first."""
    before = desk.status(training)["attempt"]
    text = ok(desk, "restart train --env FROM=head --yes")
    assert re.fullmatch(rf"restarted: attempt {before + 1}, 2 ranks on 2 nodes running .*\n", text)
    desk.until(training, lambda found: found["attempt"] == before + 1 and stepping(found), 60)
    for host in ("c1", "c2"):
        assert [rank.environ()["FROM"] for rank in desk.ranks(host)] == ["head"]


def test_it_is_the_same_run_there(desk: Desk, training: str) -> None:
    (row,) = [row for row in json.loads(ok(desk, "ls --json")) if row["run"].startswith(training)]
    assert (row["name"], row["state"]) == ("train", "running")
    here, there = desk.status(training), seen(desk, training)
    for field in ("run", "name", "state", "attempt"):
        assert here[field] == there[field]
    assert [node["host"] for node in there["nodes"]] == ["c1", "c2"]
    assert [node["state"] for node in there["nodes"]] == ["up", "up"]
    places = [[(rank["rank"], rank["node"], rank["pid"]) for rank in one["ranks"]] for one in (here, there)]
    assert places[0] == places[1]


def test_logs_of_the_other_node_come_through_the_relay(desk: Desk, training: str) -> None:
    assert "rank 1 of 2" in ok(desk, f"logs {training} --node 1")


def test_nccl_reaches_all_nodes(desk: Desk, training: str) -> None:
    text = ok(desk, f"nccl {training} INFO")
    assert text.count("backend is gloo") == 1

    def nodes() -> set[int]:
        told = [one for one in desk.journal(training) if one["event"]["type"] == "NcclChanged"]
        return {one.get("node", 0) for one in told if one["event"]["level"] == "INFO"}

    desk.cluster.wait(lambda: nodes() == {0, 1}, "the hub hears it of both nodes", 20)


def test_no_port_was_opened(desk: Desk, training: str) -> None:
    """Only the rendezvous of the job itself, sshd, and what Slurm and SkyPilot have there."""
    theirs = ("sshd", "slurm", "sky", "python -u steady.py", "inrank/launch.py")
    for host in ("c1", "c2"):
        for process in desk.processes(host):
            with suppress(psutil.NoSuchProcess):  # sessions of the tests before come to their end
                listening = [one for one in process.net_connections("inet") if one.status == "LISTEN"]
                line = " ".join(process.cmdline())
                known = (
                    any(word in line for word in theirs) or not line
                )  # without memory it is leaving, too
                assert not listening or known, f"{host}: {line!r} of {process!r}: {listening}"


def test_a_session_on_the_other_node_is_sent_to_the_head(desk: Desk, training: str) -> None:
    done = on_node(desk, f"status {training}", f"{desk.name}-worker1")
    assert done.returncode == 4
    assert "ssh there and run distui" in done.stderr
