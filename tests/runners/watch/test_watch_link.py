"""A watched job through its link, with real processes."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import patience
import pytest
from watch_jobs import Jobs, kill
from watch_jobs import jobs as jobs

from distui.runners.agent import pyspy
from distui.runners.diagnosis.stack_text import merged_stacks
from distui.runners.run.commands import Dump, ReadLog, Stop
from distui.runners.run.model import CaughtUp, RankPhase, RunPhase, Stamped
from distui.runners.run.state import RunState
from distui.runners.run.wire.client import Link
from distui.runners.watch import idle_job, outside_pulses
from distui.runners.watch.foreign_jobs import find_job, scan
from distui.runners.watch.watch_link import WatchLink


async def until(
    events: AsyncIterator[Stamped],
    state: RunState,
    reached: Callable[[RunState], object],
) -> None:
    async with asyncio.timeout(patience.HANG_S):
        while not reached(state):
            state.apply(await anext(events))


@pytest.mark.real
async def test_a_job_is_watched_and_cannot_be_commanded(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pyspy, "LIMIT_S", 60.0)  # also on a busy machine py-spy is done in time
    child = jobs.rank(WORLD_SIZE="1")
    jobs.await_ranks(1)
    watch = WatchLink(find_job(scan(), child.pid), interval=0.05)
    link: Link = watch
    assert link.readonly
    state, events = RunState(), link.events()
    await until(
        events, state, lambda s: s.live and s.log_sizes and s.nodes[0].metrics and s.ranks[0].sample
    )
    await until(events, state, lambda s: s.nodes[0].gpus or s.nodes[0].gpu_problem)
    assert state.phase is RunPhase.RUNNING
    sample = state.ranks[0].sample
    assert sample is not None
    assert sample.rss_bytes
    (file,) = state.log_sizes
    assert file == "node-0/attempt-001/rank-0.out"
    window = await link.read_log(ReadLog(file, 0))
    assert (window.file, window.data, window.error) == (file, b"rank 0 begins\n", "")
    missing = await link.read_log(ReadLog("node-0/attempt-001/rank-0.err", 0))
    assert "a pipe" in missing.error
    outside = await link.read_log(ReadLog("../../etc/passwd", 0))
    assert outside.error
    assert not outside.data
    answer = await link.send(Stop(id="7"))
    assert (answer.id, answer.ok) == ("7", False)
    assert "did not start this job" in answer.text
    assert child.poll() is None
    with monkeypatch.context() as patched:
        patched.setattr(pyspy, "find", lambda pid: None)
        without = await link.send(Dump(id="10", what="stacks"))
    assert not without.ok
    assert without.text == f"no stacks of a job that distui did not start: rank 0: {pyspy.MISSING}"
    stacks = await link.send(Dump(id="8", what="stacks"))
    assert (stacks.id, stacks.ok, stacks.text) == ("8", True, "stacks of 1 rank")
    assert merged_stacks({0: stacks.data["0"]})[0].frames
    nobody = await link.send(Dump(id="9", what="stacks", ranks=(5,)))
    assert (nobody.ok, nobody.data) == (False, {})
    assert child.poll() is None
    await link.close()
    async with asyncio.timeout(patience.HANG_S):
        assert all([not isinstance(stamped.event, CaughtUp) async for stamped in events])

    # A viewer that comes back misses nothing.
    second = RunState().apply_all([stamped async for stamped in link.events()])
    assert (second.run, second.seq, second.ranks[0].pid) == (state.run, state.seq, child.pid)
    assert [stamped.seq async for stamped in link.events(after=second.seq)] == [0]


@pytest.mark.real
@pytest.mark.torch
async def test_torchrun_with_a_restart_and_then_its_end(jobs: Jobs, tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    options = [
        "--standalone",
        "--nproc-per-node=2",
        "--max-restarts=1",
        "--monitor-interval=0.1",
        "--redirects=3",
    ]
    script = [str(jobs.script), str(jobs.ready), "1"]
    torchrun = [sys.executable, "-m", "torch.distributed.run", *options, f"--log-dir={logs}", *script]
    launcher = jobs.start(torchrun)
    jobs.await_ranks(2)
    job = find_job(scan(), launcher.pid)
    assert (job.launcher, {pid for pid, _ in job.launchers}) == ("torchrun", {launcher.pid})
    link = WatchLink(job, interval=0.05, gpus=False)
    state, events = RunState(), link.events()
    await until(events, state, lambda s: s.live and len(s.log_sizes) == 4)
    assert {rank: at.phase for rank, at in state.ranks.items()} == dict.fromkeys((0, 1), RankPhase.RUNNING)
    assert state.plan is not None
    assert state.plan.command.startswith(str(jobs.script))
    assert (await link.read_log(ReadLog("node-0/attempt-001/rank-1.out", 0))).data == b"rank 1 begins\n"
    kill(job.ranks[1].pid)
    await asyncio.to_thread(jobs.await_ranks, 2)
    await until(events, state, lambda s: s.attempt == 2 and s.phase is RunPhase.RUNNING)
    assert [attempt.cause for attempt in state.attempts] == ["launch", "failure"]
    assert (await link.read_log(ReadLog("node-0/attempt-002/rank-1.out", 0))).data == b"rank 1 begins\n"
    pid = state.ranks[0].pid
    assert pid is not None
    kill(pid)
    await until(events, state, lambda s: s.phase.ended)
    assert state.phase is RunPhase.ENDED
    assert {at.phase for at in state.ranks.values()} == {RankPhase.ENDED}
    assert {stamped.seq async for stamped in events} <= {0}  # the last samples, and no more history


ACCEPTS = """
import os, socket, sys, torch, torch.distributed as dist
def serve():
    with open(sys.argv[1], "w") as file:
        file.write("here ")
    socket.create_server(("127.0.0.1", 0)).accept()
dist.init_process_group("gloo")
print("rank", os.environ["RANK"], "begins", flush=True)
if dist.get_rank() == 1:
    serve()
dist.all_reduce(torch.ones(4))
"""


@pytest.mark.real
@pytest.mark.torch
async def test_the_rank_that_keeps_plain_torchrun_waiting_is_named(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pyspy, "LIMIT_S", 60.0)
    monkeypatch.setattr(idle_job, "PULSE_S", 3.0)
    monkeypatch.setattr(outside_pulses, "IDLE_S", 4.0)
    jobs.script.write_text(ACCEPTS)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    launcher = jobs.start([*torchrun, str(jobs.script), str(jobs.ready)])
    await asyncio.to_thread(jobs.await_ranks, 1)
    link = WatchLink(find_job(scan(), launcher.pid), interval=0.2, gpus=False)
    state, events = RunState(), link.events()
    await until(events, state, lambda s: any(finding.alarm for finding in s.findings.values()))
    (found,) = [finding for finding in state.findings.values() if finding.alarm]
    assert (found.id, found.rank, found.waiting) == ("hang-not-joined", 1, (0,))
    assert "at train.py:6 serve; rank 0 waits for it in all_reduce" in found.text
    assert any("socket.py" in line and "accept" in line for line in found.evidence)
    await link.close()
