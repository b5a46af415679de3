"""Two nodes on this host, started as SkyPilot starts them: real agents, real torchrun, gloo between 127.0.0.1 and .2."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from nodes_rig import Cluster, ledger, until
from patience import HANG_S

from distui.runners.node import job
from distui.runners.run import machine
from distui.runners.run.errors import RunError
from distui.runners.run.model import Outcome, RunPhase

pytestmark = pytest.mark.torch
FINITE = """
import os, time
print("here", flush=True)
time.sleep(0.5)
if os.environ["DISTUI_ATTEMPT"] == "2":
    raise SystemExit(7)
"""


@pytest.fixture
def two() -> Iterator[Cluster]:
    cluster = Cluster(2)
    try:
        yield cluster
    finally:
        cluster.close()


@pytest.mark.long
def test_the_life_of_two_nodes(two: Cluster) -> None:
    """A change of the environment acts on both and lasts; both outlive an agent, a runner and a rank."""
    for node in (0, 1):
        two.job(node, DATASET=f"/data/{node}", HF_TOKEN=f"hf_{node}")
    two.steps(1)
    answers = asyncio.run(two.restart(0, 1, OMP_NUM_THREADS="4"))
    assert [answer.ok for answer in answers] == [True, True], answers
    two.steps(2)

    agent, runner = two.pid(1, "agent"), two.pid(1, "runner")
    os.kill(agent, signal.SIGKILL)
    until(lambda: two.pid(1, "agent") != agent, HANG_S, two.describe)
    until(lambda: "another one takes over" in two.said(1), HANG_S, two.describe)
    assert two.pid(1, "runner") == runner
    assert ledger(two, 1) == [(1, "launch", 2), (2, "restart", 2)]
    assert two.jobs[1].poll() is None

    os.kill(runner, signal.SIGKILL)
    two.steps(3)
    for node in (0, 1):
        (rank,) = two.now(node).ranks.values()
        found = Path(f"/proc/{rank.pid}/environ").read_bytes().split(b"\0")
        for entry in (f"DATASET=/data/{node}", f"HF_TOKEN=hf_{node}", "OMP_NUM_THREADS=4"):
            assert entry.encode() in found, (node, entry)
        kept = (two.path(node) / "environ").read_bytes()
        assert f"DATASET=/data/{node}".encode() in kept
        assert b"hf_" not in kept

    (rank,) = two.now(1).ranks.values()
    assert rank.pid is not None
    os.kill(rank.pid, signal.SIGKILL)
    two.steps(4)
    assert ledger(two, 1)[-1] == (4, "failure", 2)
    assert [number for number, _, _ in ledger(two, 0)] == [1, 2, 3, 4]
    cause = two.now(1).attempts[2].first_cause
    assert cause is not None
    assert (cause.node, cause.signal, cause.symptom) == (1, "SIGKILL", False)

    for process in two.jobs.values():
        process.send_signal(signal.SIGTERM)
    assert two.exit_codes(*two.jobs.values()) == [143, 143]
    assert [two.now(node).phase for node in (0, 1)] == [RunPhase.STOPPED] * 2
    until(lambda: not two.processes(), HANG_S, lambda: str(two.processes()))
    assert not list(two.sockets.iterdir())


@pytest.mark.long
def test_the_jobs_end_with_what_the_run_came_to(tmp_path: Path) -> None:
    script = tmp_path / "short.py"
    script.write_text(FINITE)
    cluster = Cluster(2, script, (), restart_limit=0)
    try:
        jobs = [cluster.job(node) for node in (0, 1)]
        assert cluster.exit_codes(*jobs) == [0, 0], cluster.describe()
        assert "[rank 0] here" in cluster.said(0) + cluster.said(1)
        jobs = [cluster.job(node) for node in (0, 1)]
        assert cluster.exit_codes(*jobs) == [1, 1], cluster.describe()
        state = cluster.now(1)
        assert [attempt.number for attempt in state.attempts] == [1, 2]
        assert [attempt.outcome for attempt in state.attempts] == [Outcome.SUCCEEDED, Outcome.FAILED]
        assert state.phase is RunPhase.FAILED
        assert cluster.said(1).count("here") == 2  # the first attempt's output is not shown twice
    finally:
        cluster.close()


@pytest.mark.long
def test_an_elastic_run_goes_on_with_one_and_takes_the_other_back() -> None:
    cluster = Cluster("1:2")
    try:
        for node in (0, 1):
            cluster.job(node)
        cluster.steps(1)
        cluster.die(1)
        cluster.steps(2)
        assert ledger(cluster, 0)[-1][::2] == (2, 1)
        cluster.job(1)
        cluster.steps(3)
        assert ledger(cluster, 0)[-1] == (3, "membership", 2)
        assert ledger(cluster, 1)[-1][::2] == (3, 2)
    finally:
        cluster.close()


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
        patch.setattr(machine, "torch_version", lambda python: None)
        assert "has no torch: install it there" in refused(two, patch)
    for path in (two.root / ".distui" / "jobs").iterdir():
        path.unlink()
    assert "cannot be read" in refused(two, monkeypatch)
