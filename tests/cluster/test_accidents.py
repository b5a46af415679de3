"""What goes wrong between two nodes and the one who watches, and what distui makes of it. The run goes on."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from desk import API_SERVER, Desk, Status, stepping, told, typed_ssh
from slurm.cluster import Cluster

AHEAD_S = 300
SKEW = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>
/* This process's clock is 5 minutes ahead, its children's is not. */
__attribute__((constructor)) static void once(void) { unsetenv("LD_PRELOAD"); }
int clock_gettime(clockid_t id, struct timespec *at) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int said = real(id, at);
    if (!said && id == CLOCK_REALTIME) at->tv_sec += 300;
    return said;
}
time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at) *at = now.tv_sec;
    return now.tv_sec;
}
"""


@pytest.fixture
def cables(cluster: Cluster) -> Iterator[Cluster]:
    """A rig whose nodes are plugged in again afterwards."""
    yield cluster
    for host in cluster.nodes:
        cluster.plug(host)


def links(found: Status) -> list[str]:
    return [node["state"] for node in found["nodes"]]


def pids(desk: Desk) -> list[list[int]]:
    return [[rank.pid for rank in desk.ranks(host)] for host in ("c1", "c2")]


def test_a_cable_is_pulled_for_twenty_seconds(cables: Cluster, desk: Desk, training: str) -> None:
    before = pids(desk)
    attempt = desk.until(training, stepping, 60)["attempt"]
    cables.unplug("c2")
    pulled = time.monotonic()
    found = desk.until(training, lambda found: links(found) == ["up", "lost"], 40)
    assert (
        found["nodes"][1]["problem"]
        == f"{desk.name}-worker1 does not answer: is it up, and the network between?"
    )
    assert found["ranks"][1]["step"], "what was known last is still shown"
    assert found["nodes"][1]["age_s"] > 3
    said = desk.refused("restart", training, "--yes")
    assert "node 1 (c2) does not answer" in said
    time.sleep(max(0.0, 20 - (time.monotonic() - pulled)))
    cables.plug("c2")
    desk.until(training, lambda found: links(found) == ["up", "up"], 60)
    found = desk.until(training, stepping, 60)
    assert found["attempt"] == attempt
    assert pids(desk) == before, "the ranks waited for each other, and went on"
    for node in (0, 1):
        desk.taken_over_whole(training, node)
        shown = desk.log(training, node, attempt)
        assert shown == desk.written(training, node, attempt)[: len(shown)]
        numbers = [int(line.split()[1]) for line in shown if line.startswith("line ")]
        assert numbers == list(range(len(numbers)))
        assert len(numbers) > 50


def test_a_killed_rank_restarts_both_nodes(desk: Desk, training: str) -> None:
    before, processes = desk.status(training)["attempt"], pids(desk)
    (rank,) = desk.ranks("c2")
    rank.kill()
    found = desk.until(training, lambda found: found["attempt"] == before + 1 and stepping(found), 90)
    cause = found["attempts"][-2]["first_cause"]
    assert (cause["rank"], cause["node"], cause["signal"]) == (1, 1, "SIGKILL")
    assert found["attempts"][-1]["cause"] == "failure"
    assert not {pid for node in processes for pid in node} & {pid for node in pids(desk) for pid in node}


def test_the_hub_is_killed(desk: Desk, training: str) -> None:
    """What happens while there is none stands in the nodes' journals, from which the next one takes it over."""
    before = desk.until(training, stepping, 60)["attempt"]
    assert desk.kill("client", ("distui.runners.hub run", training)) == 1
    (rank,) = desk.ranks("c1")
    rank.kill()
    began = f'"attempt":{before + 1}'.encode()
    journal = desk.part_dir(training, 1) / "journal.jsonl"
    desk.cluster.wait(lambda: began in journal.read_bytes(), "the group restarts without a hub", 60)
    found = desk.until(training, lambda found: found["attempt"] == before + 1 and stepping(found), 90)
    assert links(found) == ["up", "up"]
    for node in (0, 1):
        desk.taken_over_whole(training, node)
    assert len(desk.processes("client", "distui.runners.hub run", training)) == 1


def test_the_api_server_goes_and_comes(desk: Desk, training: str) -> None:
    """All links to a Slurm cluster lead through it."""
    before, attempt = pids(desk), desk.until(training, stepping, 60)["attempt"]
    assert sum(desk.kill("client", (word,)) for word in API_SERVER) > 5
    desk.until(training, lambda found: links(found) == ["lost", "lost"], 60)
    desk.cluster.start_api()
    desk.until(training, lambda found: links(found) == ["up", "up"], 90)
    found = desk.until(training, stepping, 30)
    assert found["attempt"] == attempt
    assert pids(desk) == before
    for node in (0, 1):
        desk.taken_over_whole(training, node)


def test_a_key_that_does_not_fit(desk: Desk, training: str, tmp_path: Path) -> None:
    key = desk.cluster.home / f".sky/generated/ssh-keys/{desk.name}.key"
    good, other = key.read_bytes(), tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", other], check=True)
    key.write_bytes(other.read_bytes())
    try:
        desk.kill("client", ("distui.runners.hub run", training))
        found = desk.until(training, lambda found: links(found) == ["lost", "lost"], 90)
        assert "does not accept your key" in found["nodes"][0]["problem"], told(found)
    finally:
        key.write_bytes(good)
    desk.until(training, lambda found: links(found) == ["up", "up"], 60)


def test_it_is_stopped_from_the_head(desk: Desk, training: str) -> None:
    """The runners carry that to the other node while their own ranks end; here it is heard, and SkyPilot told."""
    job = desk.status(training)["cluster"]["job"]
    done = typed_ssh(desk.cluster, desk.name, "~/.distui/distui stop train --yes")
    assert (done.returncode, done.stdout) == (0, "stopped: no process of the run is left\n"), done.stderr
    found = desk.until(training, lambda found: found["ended"] is not None, 60)
    assert (found["state"], [node["outcome"] for node in found["nodes"]]) == ("stopped", ["stopped"] * 2)
    desk.listed_as_cancelled(training, job)


def test_a_clock_ahead_and_a_disk_full(desk: Desk, training: str, tmp_path: Path) -> None:
    """Of one node's agent, and under it. A run of its own on the same cluster: these are there from the start."""
    state = inner_home(desk) + "/.local/state/distui"
    with skewed(desk, tmp_path), small_disk(desk, state):
        run = desk.launch("ddp", "skewed")
        found = desk.until(run, stepping, 300)
        (finding,) = [one for one in found["findings"] if one["id"] == "clock-skew"]
        assert finding["node"] == 1
        ahead = re.search(r"the clock of c2 is ([\d.]+)", finding["text"])
        assert ahead is not None, finding
        assert AHEAD_S - 10 < float(ahead[1]) < AHEAD_S + 1, "less by the time that the word is on its way"
        assert "ahead" in finding["text"]
        in_order(desk, run)
        desk.cluster.on("c2", ["sh", "-c", f"cat /dev/zero > {state}/filler"])
        found = desk.until(
            run, lambda found: any(one["id"] == "disk-full" for one in found["findings"]), 60
        )
        (finding,) = [one for one in found["findings"] if one["id"] == "disk-full"]
        assert (finding["node"], found["state"]) == (1, "running")
        step = found["ranks"][1]["step"]
        desk.until(run, lambda found: (found["ranks"][1]["step"] or 0) > step + 5, 60)
        desk.cluster.on("c2", ["rm", f"{state}/filler"])
        desk.until(run, lambda found: all(one["id"] != "disk-full" for one in found["findings"]), 60)
        desk.ok("restart", run, "--yes")
        desk.until(run, lambda found: found["attempt"] == 2 and stepping(found), 60)
        job = found["cluster"]["job"]
        desk.sky("cancel", "-y", desk.name, str(job))
        found = desk.until(run, lambda found: found["ended"] is not None, 60)
        assert found["state"] == "stopped", told(found)
        said = (
            f"job {job} on {desk.name} was cancelled through SkyPilot",
            "stopped on the nodes, not from here",
        )
        assert found["text"] in said


def inner_home(desk: Desk) -> str:
    """The cluster's home folder, as its nodes see it."""
    (home,) = (desk.cluster.shared_home / ".sky_clusters").glob(f"{desk.name}-*")
    return f"{desk.cluster.inner_home}/.sky_clusters/{home.name}"


@contextmanager
def skewed(desk: Desk, folder: Path) -> Iterator[None]:
    """distui's own processes on c2 have a clock that is ahead: the interpreter that c2 remembers is a wrapper."""
    (folder / "skew.c").write_text(SKEW)
    home = inner_home(desk)
    outside = desk.cluster.shared_home / ".sky_clusters" / Path(home).name
    library, wrapper = outside / "skew.so", outside / "skewed-python"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, folder / "skew.c", "-ldl"], check=True)
    known = outside / ".distui/python-c2"
    real = known.read_text().strip()
    wrapper.write_text(f'#!/bin/bash\nLD_PRELOAD={home}/skew.so exec -a {home}/skewed-python {real} "$@"\n')
    wrapper.chmod(0o755)
    known.write_text(f"{home}/skewed-python\n")
    try:
        yield
    finally:
        known.write_text(f"{real}\n")


@contextmanager
def small_disk(desk: Desk, folder: str) -> Iterator[None]:
    """On c2 alone, 4 MiB are all that there is in a folder."""
    mounted = desk.cluster.on("c2", ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", folder])
    assert mounted.returncode == 0, mounted.stderr
    try:
        yield
    finally:
        desk.cluster.on("c2", ["umount", "-l", folder])


def in_order(desk: Desk, run: str) -> None:
    """What both agents saw at once stands together in the merged journal, and not in the nodes' own."""
    began = {
        one.get("node", 0): one["time"]
        for one in desk.journal(run)
        if one["event"]["type"] == "HookChanged"
    }
    assert abs(began[0] - began[1]) < 10
    path = f"{inner_home(desk)}/.local/state/distui/runs/{run}.n1/journal.jsonl"
    lines = desk.cluster.on("c2", ["cat", path]).stdout.splitlines()
    own = [one["time"] for one in map(json.loads, lines) if one["event"]["type"] == "HookChanged"]
    assert own[-1] - began[0] > AHEAD_S - 10
