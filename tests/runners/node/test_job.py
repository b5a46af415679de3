"""Two nodes on this host, started as SkyPilot starts them: real agents, real torchrun, gloo between 127.0.0.1 and .2."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from nodes_rig import Cluster, ledger, until
from patience import HANG_S

from distui.runners import local_agent
from distui.runners.errors import RunError
from distui.runners.model import Outcome, RunPhase
from distui.runners.node import job, package

pytestmark = pytest.mark.torch
FINITE = "import os, time\nprint('here', flush=True)\ntime.sleep(0.5)\n"


@pytest.fixture
def two() -> Iterator[Cluster]:
    cluster = Cluster(2)
    try:
        yield cluster
    finally:
        cluster.close()


def begun(cluster: Cluster, *nodes: int) -> Cluster:
    """Both jobs started, every rank stepping."""
    for node in nodes:
        cluster.job(node)
    cluster.steps(1)
    return cluster


@pytest.mark.long
async def test_each_node_keeps_the_environment_of_its_own_job(two: Cluster) -> None:
    """A change acts on all nodes at once, and lasts in a new runner of an agent that came later."""
    for node in (0, 1):
        two.job(node, DATASET=f"/data/{node}", HF_TOKEN=f"hf_{node}")
    two.steps(1)
    answers = await two.restart(0, 1, OMP_NUM_THREADS="4")
    assert [answer.ok for answer in answers] == [True, True], answers
    two.steps(2)
    agent = two.pid(1, "agent")
    os.kill(agent, signal.SIGKILL)
    until(lambda: two.pid(1, "agent") != agent, HANG_S, two.describe)
    os.kill(two.pid(1, "runner"), signal.SIGKILL)
    two.steps(3)
    for node in (0, 1):
        (rank,) = two.now(node).ranks.values()
        found = Path(f"/proc/{rank.pid}/environ").read_bytes().split(b"\0")
        for entry in (f"DATASET=/data/{node}", f"HF_TOKEN=hf_{node}", "OMP_NUM_THREADS=4"):
            assert entry.encode() in found, (node, entry)
        kept = (two.path(node) / "environ").read_bytes()
        assert f"DATASET=/data/{node}".encode() in kept
        assert b"hf_" not in kept


@pytest.mark.long
async def test_who_was_not_asked_follows_as_a_member(two: Cluster) -> None:
    begun(two, 0, 1)
    (answer,) = await two.restart(0)
    assert answer.ok, answer
    two.steps(2)
    assert ledger(two, 0) == [(1, "launch", 2), (2, "restart", 2)]
    assert ledger(two, 1) == [(1, "launch", 2), (2, "membership", 2)]
    assert two.now(1).failures == 0


@pytest.mark.long
def test_a_killed_rank_restarts_both(two: Cluster) -> None:
    begun(two, 0, 1)
    (rank,) = two.now(1).ranks.values()
    assert rank.pid is not None
    os.kill(rank.pid, signal.SIGKILL)
    two.steps(2)
    assert ledger(two, 1) == [(1, "launch", 2), (2, "failure", 2)]
    assert [number for number, _, _ in ledger(two, 0)] == [1, 2]
    cause = two.now(1).attempts[0].first_cause
    assert cause is not None
    assert (cause.node, cause.signal, cause.symptom) == (1, "SIGKILL", False)


@pytest.mark.long
def test_sigterm_stops_and_leaves_nothing(two: Cluster) -> None:
    begun(two, 0, 1)
    for process in two.jobs.values():
        process.send_signal(signal.SIGTERM)
    assert two.exit_codes(*two.jobs.values()) == [143, 143]
    assert [two.now(node).phase for node in (0, 1)] == [RunPhase.STOPPED] * 2
    until(lambda: not two.processes(), HANG_S, lambda: str(two.processes()))
    assert not list(two.sockets.iterdir())


@pytest.mark.long
def test_an_agent_that_dies_is_replaced_and_adopts(two: Cluster) -> None:
    begun(two, 0, 1)
    agent, runner = two.pid(1, "agent"), two.pid(1, "runner")
    os.kill(agent, signal.SIGKILL)
    until(lambda: two.pid(1, "agent") != agent, HANG_S, two.describe)
    until(lambda: "another one takes over" in two.said(1), HANG_S, two.describe)
    assert two.pid(1, "runner") == runner
    assert ledger(two, 1) == [(1, "launch", 2)]
    assert two.jobs[1].poll() is None


@pytest.mark.long
def test_the_jobs_end_with_what_the_run_came_to(tmp_path: Path) -> None:
    script = tmp_path / "short.py"
    script.write_text(FINITE)
    cluster = Cluster(2, script, ())
    try:
        jobs = [cluster.job(node) for node in (0, 1)]
        assert cluster.exit_codes(*jobs) == [0, 0], cluster.describe()
        assert "[rank 0] here" in cluster.said(0) + cluster.said(1)
        again = cluster.job(1)
        cluster.job(0)
        assert cluster.exit_codes(again) == [0], cluster.describe()
        state = cluster.now(1)
        assert [attempt.number for attempt in state.attempts] == [1, 2]
        assert [attempt.outcome for attempt in state.attempts] == [Outcome.SUCCEEDED] * 2
        assert state.phase is RunPhase.SUCCEEDED
        assert cluster.said(1).count("here") == 2  # the first attempt's output is not shown twice
    finally:
        cluster.close()


@pytest.mark.long
def test_a_failing_script_fails_the_jobs(tmp_path: Path) -> None:
    script = tmp_path / "wrong.py"
    script.write_text("raise SystemExit(7)\n")
    cluster = Cluster(2, script, (), restart_limit=0)
    try:
        jobs = [cluster.job(node) for node in (0, 1)]
        assert cluster.exit_codes(*jobs) == [1, 1], cluster.describe()
    finally:
        cluster.close()


@pytest.mark.long
def test_an_elastic_run_goes_on_with_one_and_takes_the_other_back() -> None:
    cluster = Cluster("1:2")
    try:
        begun(cluster, 0, 1)
        cluster.die(1)
        cluster.steps(2)
        assert ledger(cluster, 0)[-1][::2] == (2, 1)
        cluster.job(1)
        cluster.steps(3)
        assert ledger(cluster, 0)[-1] == (3, "membership", 2)
        assert ledger(cluster, 1)[-1][::2] == (3, 2)
    finally:
        cluster.close()


# --- what starts nothing -----------------------------------------------------------------------------------------


def refused(cluster: Cluster, monkeypatch: pytest.MonkeyPatch, **env: str) -> str:
    """The one sentence of a job that starts nothing."""
    for name in [*os.environ]:
        if name not in cluster.env:
            monkeypatch.delenv(name)
    for name, value in {**cluster.env, **cluster.skypilot(0), **env}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(RunError) as caught:
        job.job(cluster.record.run)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_what_starts_nothing(two: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    said = refused(two, monkeypatch, SKYPILOT_NODE_IPS="10.0.0.1", SKYPILOT_NUM_NODES="1")
    assert "SkyPilot gives 1 nodes, and the plan is for 2" in said
    with monkeypatch.context() as patch:
        patch.setattr(local_agent, "_torch_version", lambda python: None)
        assert "has no torch: install it there" in refused(two, patch)
    for path in (two.root / ".distui" / "jobs").iterdir():
        path.unlink()
    assert "cannot be read" in refused(two, monkeypatch)


# --- with nothing but a bundle, and started over ssh -------------------------------------------------------------


@pytest.mark.long
def test_a_start_from_a_bundle_is_detached_and_reached_by_the_bridge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `start` over ssh does it: the document and the secrets on stdin, nothing of distui installed."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    command = ("sh", str(package.build(tmp_path / "cache") / "node.sh"))
    cluster = Cluster(2)
    cluster.document["addresses"] = cluster.addresses
    cluster.document["plan"]["cwd"] = str(tmp_path)  # type: ignore[index]
    given = json.dumps({"job": cluster.document, "env": {"DISTUI_RELAY_KEY": "ab" * 32}})
    env = {**cluster.env, "DISTUI_PYTHON": sys.executable}
    try:
        starts = [
            subprocess.Popen(
                [*command, "start", cluster.record.run, str(node)],
                env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            )
            for node in (0, 1)
        ]  # fmt: skip
        for start in starts:
            out, err = start.communicate(given, timeout=HANG_S)
            assert (start.returncode, out, err) == (0, "", "")
        for node in (0, 1):
            assert (cluster.path(node) / "relay.key").read_text() == "ab" * 32
            assert (cluster.path(node) / "relay.key").stat().st_mode & 0o777 == 0o600
            bridge = subprocess.run(
                [*command, "attach", cluster.record.run8, str(node)],
                env=env, input=b"", capture_output=True, timeout=HANG_S, check=False,
            )  # fmt: skip
            assert bridge.returncode == 0, bridge.stderr
        until(lambda: all(cluster.now(node).ranks for node in (0, 1)), HANG_S, cluster.describe)
        for pid in cluster.processes():
            environment = Path(f"/proc/{pid}/environ").read_bytes()
            if b"DISTUI_RUNNER_PID=" in environment:
                assert b"DISTUI_RELAY_KEY" not in environment
                assert f"PYTHONPATH={cluster.root}".encode() in environment  # the hook's folder alone
                assert environment.count(b"lib-") == environment.count(b"/inrank/site")
    finally:
        for pid, words in cluster.processes().items():
            if "runners.node job" in words:
                os.kill(pid, signal.SIGTERM)
        cluster.close()
