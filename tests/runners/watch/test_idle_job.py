"""Idle ranks of a job that distui did not start: where they wait. A rank that works is never read."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from msgspec.structs import replace

from distui.presets.finding import Finding
from distui.runners.agent import pyspy
from distui.runners.agent.process_samples import Outside
from distui.runners.agent.pyspy import PySpy, PySpyError, StackDump, read
from distui.runners.run.model import FindingCleared, FindingRaised, Stamped
from distui.runners.run.pulse import Pulse, Work
from distui.runners.run.state import RunState
from distui.runners.watch.foreign_jobs import Output, RankProcess, Scan, WatchedJob
from distui.runners.watch.idle_job import IdleJob
from distui.runners.watch.outside_pulses import OutsidePulses
from distui.runners.watch.scan_changes import begin

DISTRIBUTED = "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
ALL_REDUCE = (("all_reduce", DISTRIBUTED, 3252), ("main", "/job/train.py", 20))
RECV = (("recv", DISTRIBUTED, 2799), ("main", "/job/train.py", 31))
ACCEPT = (
    ("socket.accept", "/usr/lib/python3.11/socket.py", 294),
    ("serve", "/job/train.py", 6),
    ("main", "/job/train.py", 18),
)
FRAME = '{{"name": "{}", "filename": "{}", "line": {}}}'


@dataclass
class Process:
    """What a rank does from now on."""

    stack: tuple[tuple[str, str, int], ...] = ALL_REDUCE
    cpu: float = 0.0
    """Cores."""
    bytes_s: float = 0.0
    state: str = "S"
    refusal: str = ""
    """Why py-spy cannot read it."""
    waits: dict[str, Any] = field(default_factory=dict)
    """Fields of a pulse about the system call of its main thread."""
    used: float = 0.0
    moved: float = 0.0


class Machine:
    """A host with the ranks of one job, which lives as long as the test says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *ranks: Process, world_size: int = 0) -> None:
        self.ranks = dict(enumerate(ranks))
        self.dumps: list[tuple[int, float]] = []
        """Rank, and seconds since the beginning."""
        self.began = self.counted = asyncio.get_running_loop().time()
        self.printed = -1e9
        self.state = RunState()
        monkeypatch.setattr(pyspy, "_dump", self._dump)
        env = {"WORLD_SIZE": str(world_size or len(ranks))}
        output = Output(None, "a pipe")
        processes = {
            rank: RankProcess(rank, rank, 100 + rank, 1, ("python", "train.py"), env, output, output)
            for rank in self.ranks
        }
        size = world_size or len(ranks)
        job = WatchedJob("job", "torchrun", frozenset(), "/job", size, None, processes, 0.0)
        watched, events = begin(job, Scan(0.0), "gpu-a")
        self.state.apply_all(events)
        pulses = OutsidePulses(PySpy(), self._read, self._waits)
        self.job = IdleJob(self.state, self._found, lambda: self.printed, pulses)
        self.job.watch(watched)

    @property
    def seconds(self) -> float:
        return asyncio.get_running_loop().time() - self.began

    @property
    def findings(self) -> list[Finding]:
        return list(self.state.findings.values())

    @property
    def alarms(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.alarm]

    def _found(self, event: FindingRaised | FindingCleared) -> None:
        self.state.apply(Stamped(time=0.0, event=event))

    def _read(self, pids: Sequence[int]) -> Mapping[int, tuple[Outside, Work | None]]:
        return {pid: self._sample(self.ranks[pid - 100], pid) for pid in pids}

    def _sample(self, rank: Process, pid: int) -> tuple[Outside, Work]:
        moved = int(rank.moved)
        work = Work(main_disk=moved, main_written=moved, main_wakes=int(1 + rank.used * 100))
        return Outside(rank.state, rank.used, rank.used, 0, moved, members=(pid,)), work

    def _waits(self, pulses: Sequence[Pulse], ranks: Iterable[int]) -> list[Pulse]:
        return [replace(pulse, **self.ranks[pulse.rank].waits) for pulse in pulses]

    async def _dump(self, pid: int) -> StackDump:
        rank = self.ranks[pid - 100]
        self.dumps.append((pid - 100, self.seconds))
        if rank.refusal:
            raise PySpyError(rank.refusal)
        frames = ", ".join(FRAME.format(*frame) for frame in rank.stack)
        written = f'[{{"thread_id": 1, "os_thread_id": {pid}, "frames": [{frames}]}}]'
        return read(written.encode(), pid, asyncio.get_running_loop().time())

    async def live(self, seconds: float, printed_each: float = 0.0) -> None:
        """Let the ranks do what they do, and sample them every five seconds."""
        for _ in range(round(seconds / 5)):
            await asyncio.sleep(5.0)
            for rank in self.ranks.values():
                rank.used += 5 * rank.cpu
                rank.moved += 5 * rank.bytes_s
            if printed_each and self.seconds % printed_each < 5.0:
                loop = asyncio.get_running_loop()
                self.printed = loop.wall_time()  # type: ignore[attr-defined]
            await self.job.sample()


async def test_the_rank_that_the_others_wait_for_is_named_with_its_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = Machine(monkeypatch, Process(), Process(ACCEPT), Process())
    await job.live(30.0)
    assert (job.dumps, job.findings) == ([], [])
    await job.live(15.0)
    (found,) = job.findings
    assert (found.id, found.severity, found.rank, found.waiting) == ("hang-not-joined", "error", 1, (0, 2))
    assert found.text == (
        "rank 1 waits for the network at train.py:6 serve; ranks 0, 2 wait for it in all_reduce"
    )
    assert "stack of rank 1: socket.py:294 accept, train.py:6 serve, train.py:18 main" in found.evidence
    assert found.evidence[-1] == "stacks by py-spy, CPU time and bytes from /proc"
    since, text = found.since, found.text
    await job.live(1200.0)
    assert [(again.since, again.text) for again in job.findings] == [(since, text)]
    times = [seconds for rank, seconds in job.dumps if rank == 1]
    assert times[:3] == [35.0, 65.0, 365.0]
    assert len(times) == 5
    job.ranks[1].cpu = 1.0
    await job.live(10.0)
    assert job.findings == []


async def test_the_system_call_says_whom_a_rank_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asks = Process(ACCEPT, waits={"call": "read", "descriptor": 5, "on": "10.0.0.9:5000"})
    job = Machine(monkeypatch, Process(), asks)
    await job.live(60.0)
    assert job.findings[0].text.startswith(
        "rank 1 waits for an answer of 10.0.0.9:5000 at train.py:6 serve;"
    )
    assert job.findings[0].remedy == "check 10.0.0.9:5000 and the network to it"


async def test_two_ranks_in_accept_are_a_finding_after_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Machine(monkeypatch, Process(ACCEPT), Process(ACCEPT))
    await job.live(60.0)
    assert job.findings == []
    await job.live(10.0)
    (found,) = job.findings
    assert (found.id, found.severity, found.ranks) == ("hang-idle", "warning", (0, 1))
    assert found.text == "no output and 0 % CPU: ranks 0, 1 wait for the network at train.py:6 serve"


@pytest.mark.parametrize("stack", [ALL_REDUCE, RECV])
async def test_ranks_that_all_wait_in_one_call(
    monkeypatch: pytest.MonkeyPatch, stack: tuple[tuple[str, str, int], ...]
) -> None:
    job = Machine(monkeypatch, Process(stack), Process(stack))
    await job.live(70.0)
    assert [found.ranks for found in job.alarms] == [(0, 1)]
    # With ranks on other hosts it is unknown whether any of them works.
    parted = Machine(monkeypatch, Process(stack), Process(stack), world_size=4)
    await parted.live(400.0)
    assert parted.alarms == []
    assert "may be on other hosts" in parted.findings[0].text


@pytest.mark.parametrize(
    "at_work",
    [
        Process(ACCEPT, cpu=1.0),
        Process(ACCEPT, cpu=0.02),
        Process(ACCEPT, bytes_s=4096.0),
        Process(ACCEPT, state="R"),
    ],
)
async def test_a_rank_that_works_is_neither_read_nor_reported(
    monkeypatch: pytest.MonkeyPatch, at_work: Process
) -> None:
    job = Machine(monkeypatch, at_work, Process())
    await job.live(900.0)
    assert job.alarms == []
    assert {rank for rank, _ in job.dumps} == {1}


async def test_a_rank_that_idles_beside_working_ranks_is_an_alarm_after_five_minutes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = Machine(monkeypatch, Process(cpu=1.0), Process(ACCEPT))
    await job.live(70.0)
    (found,) = job.findings
    assert (found.id, found.severity, found.ranks, found.rank) == ("hang-idle", "note", (), 1)
    assert found.text == (
        "no output and 0 % CPU: rank 1 waits for the network at train.py:6 serve; rank 0 has worked since"
    )
    await job.live(240.0)
    assert [finding.rank for finding in job.alarms] == [1]
    assert {rank for rank, _ in job.dumps} == {1}


async def test_long_steps_and_rare_output_are_no_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Machine(monkeypatch, Process(), Process())
    for _ in range(12):
        job.ranks[0].cpu = job.ranks[1].cpu = 1.0
        await job.live(5.0, printed_each=90.0)
        job.ranks[1].cpu = 0.0
        await job.live(40.0, printed_each=90.0)
        assert job.findings == []
    assert {rank for rank, _ in job.dumps} <= {1}


async def test_a_job_that_writes_output_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Machine(monkeypatch, Process(), Process(ACCEPT))
    await job.live(600.0, printed_each=20.0)
    assert (job.dumps, job.findings) == ([], [])


@pytest.mark.parametrize(
    ("why", "remedy"),
    [
        (pyspy.RIGHT, "sudo sysctl kernel.yama.ptrace_scope=0"),
        (pyspy.MISSING, "pip install py-spy"),
        ("py-spy was not done within 5 s", "press w"),
    ],
)
async def test_a_stack_that_cannot_be_read_is_said_once_and_blames_nobody(
    monkeypatch: pytest.MonkeyPatch, why: str, remedy: str
) -> None:
    job = Machine(monkeypatch, Process(), Process(ACCEPT, refusal=why))
    await job.live(400.0)
    (found,) = job.findings
    assert (found.id, found.severity, found.ranks) == ("hang-no-verdict", "note", (1,))
    assert found.text == (
        "ranks 0, 1 use no CPU and write no output; the reason is unknown, because the stack of rank 1 "
        f"cannot be read: {why}"
    )
    assert remedy in found.remedy


async def test_a_stopped_rank_is_continued_by_its_pid(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Machine(monkeypatch, Process(), Process(state="T"))
    await job.live(60.0)
    (found,) = job.findings
    assert (found.id, found.rank) == ("hang-stopped", 1)
    assert found.remedy == "continue it: `kill -CONT 101`"
    assert {rank for rank, _ in job.dumps} == {0}


async def test_a_rank_that_waits_for_gradients_of_one_that_works_is_not_blamed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    graph = "/venv/lib/python3.11/site-packages/torch/autograd/graph.py"
    backward = (("_engine_run_backward", graph, 824), ALL_REDUCE[1])
    job = Machine(monkeypatch, Process(backward), Process(cpu=1.0))
    await job.live(90.0)
    assert job.findings == []


async def look(job: Machine) -> float:
    """Let a viewer ask once, while the ranks do what they do; the seconds until its answer."""
    began = job.seconds
    asked = asyncio.create_task(job.job.look())
    while not asked.done():
        await asyncio.sleep(0.5)
        for rank in job.ranks.values():
            rank.used += 0.5 * rank.cpu
    await asked
    return job.seconds - began


async def test_a_viewer_that_asks_once_gets_the_same_verdict_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Machine(monkeypatch, Process(), Process(ACCEPT), Process())
    assert await look(job) < 28.0
    (found,) = job.findings
    assert (found.id, found.severity, found.rank, found.waiting) == ("hang-not-joined", "error", 1, (0, 2))
    assert "stack of rank 1: socket.py:294 accept, train.py:6 serve, train.py:18 main" in found.evidence


async def test_idle_ranks_without_a_verdict_are_a_note_then(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Machine(monkeypatch, Process(ACCEPT), Process(ACCEPT))
    await look(job)
    (found,) = job.findings
    assert (found.id, found.severity, found.ranks) == ("hang-idle", "note", (0, 1))


async def test_a_viewer_of_a_job_that_works_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Machine(monkeypatch, Process(cpu=1.0), Process(cpu=1.0))
    assert await look(job) <= 4.0
    assert (job.findings, job.dumps) == ([], [])
