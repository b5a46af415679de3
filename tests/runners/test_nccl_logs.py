"""The ranks' logs, read while they grow: files in turns, what is told of them and when, and real runs."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import sys
from pathlib import Path

import pytest
from doubles.fake_runner import LiveNccl
from doubles.served import doubled
from inrank.conftest import own_directories as own_directories
from inrank.inrank_rig import driven, execute

from distui.presets.finding import Finding
from distui.runners.agent import log_tails as module
from distui.runners.agent.log_tails import NEWEST, Tails
from distui.runners.agent.nccl_logs import EVERY_S, RETRIED_S, RaisedFindings, rdma
from distui.runners.diagnosis import nccl_facts
from distui.runners.diagnosis.first_cause import judge
from distui.runners.diagnosis.nccl_facts import NcclFacts
from distui.runners.diagnosis.reading import Reading
from distui.runners.node import local_agent
from distui.runners.run import run_directories
from distui.runners.run.commands import Stop
from distui.runners.run.model import FindingRaised, NcclTick
from distui.runners.run.processes import gone
from distui.runners.run.state import RunState

HERE = "node-0/attempt-001"
INFO = "h:1:2 [0] NCCL INFO "
PORT = "h:1:2 [0] transport/net_ib.cc:93 NCCL WARN NET/IB : Got async event : port error"
CLOSED = "h:1:2 [0] misc/socket.cc:49 NCCL WARN socketProgress: Connection closed by remote peer h<42830>"
REFUSED = "h:1:2 [0] NCCL INFO misc/socket.cc:452 -> call to connect returned Connection refused, retrying"


class Ranks:
    """An attempt's folder, and who reads it."""

    def __init__(self, root: Path) -> None:
        self.folder = root / HERE
        self.folder.mkdir(parents=True)
        self.tails = Tails(root, 0, 1)

    def write(self, name: str, text: str | bytes) -> None:
        with (self.folder / name).open("ab") as file:
            file.write(text.encode() if isinstance(text, str) else text)

    def read(self) -> Reading:
        self.tails.scan()
        self.tails.drain()
        return self.tails.reading

    def found(self) -> dict[str, list[str]]:
        """Id of each rule that fired → file and line of its evidence."""
        return {
            one.id: [f"{its.file.rpartition('/')[2]}:{its.line}" for its in one.lines]
            for one in judge(self.tails.reading).findings
        }


@pytest.fixture
def ranks(tmp_path: Path) -> Ranks:
    return Ranks(tmp_path)


# ---- files


def test_what_grows_is_read_once_and_line_by_line(ranks: Ranks) -> None:
    ranks.write("rank-0.err", "x\nTraceback\n" + PORT[:40])
    ranks.write("rank-1.nccl", f"{INFO}Using network IB\n")
    assert (ranks.read().lines, ranks.found()) == (3, {})
    ranks.write("rank-0.err", PORT[40:] + "\n")
    ranks.write("rank-1.1.nccl", f"y\n{CLOSED}\n")
    assert ranks.read().lines == 6
    assert ranks.found() == {"ib-port-error": ["rank-0.err:3"], "sock-closed-by-peer": ["rank-1.1.nccl:2"]}
    assert {one.rank for one in judge(ranks.tails.reading).findings} == {0, 1}
    assert ranks.tails.scan() == 0
    assert ranks.read().lines == 6


def test_a_last_line_without_an_end_counts_at_the_end(ranks: Ranks) -> None:
    ranks.write("rank-0.nccl", PORT)
    ranks.read()
    assert ranks.found() == {}
    ranks.tails.end()
    assert ranks.found() == {"ib-port-error": ["rank-0.nccl:1"]}


def test_files_that_are_no_logs_are_left_alone(ranks: Ranks) -> None:
    ranks.write("rank-0.stacks", f"{PORT}\n")
    (ranks.folder / "rank-1.nccl").symlink_to(ranks.folder / "rank-0.stacks")
    assert (ranks.read().lines, ranks.tails.left) == (0, 0)


def test_a_file_that_is_written_anew_is_read_anew(ranks: Ranks) -> None:
    ranks.write("rank-0.nccl", "x\n" * 80)
    ranks.read()
    (ranks.folder / "rank-0.nccl").write_text(f"{PORT}\n")
    ranks.tails.scan()
    ranks.tails.end()
    assert ranks.found() == {"ib-port-error": ["rank-0.nccl:1"]}


def test_a_progress_bar_hides_nothing(ranks: Ranks) -> None:
    ranks.write("rank-0.err", b"\r 17%|###   | 3/9 [00:01, 1.2it/s]" * 5000 + b"\r")
    ranks.read()
    ranks.write("rank-0.err", f"\r{PORT}\n")
    ranks.read()
    assert ranks.found() == {"ib-port-error": ["rank-0.err:1"]}


def test_a_line_without_an_end_takes_no_memory(ranks: Ranks) -> None:
    ranks.write("rank-0.out", b"x" * (3 << 20))
    ranks.read()
    ranks.write("rank-0.out", f"\n{PORT}\n")
    assert ranks.read().lines == 2
    assert ranks.found() == {"ib-port-error": ["rank-0.out:2"]}


def test_a_file_that_vanishes_ends_nothing(ranks: Ranks) -> None:
    ranks.write("rank-0.out", "x\n")
    ranks.write("rank-1.out", "x\n")
    ranks.tails.scan()
    (ranks.folder / "rank-0.out").unlink()
    ranks.tails.drain()
    assert ranks.tails.reading.lines == 1


COLL = (
    INFO
    + "AllReduce: opCount 1f sendbuff 0x7f0 recvbuff 0x7f0 count 1024 datatype 7 op 0 root 0 comm 0x55 "
    "[nranks=2] stream 0x56\n"
)


def test_behind_a_flood_warnings_are_read_and_lines_are_counted(ranks: Ranks) -> None:
    behind = 16 << 20
    many = (behind // 2) // len(COLL)
    for rank in (0, 1):
        ranks.write(f"rank-{rank}.nccl", COLL * many)
    ranks.write("rank-0.nccl", f"{PORT}\n" + COLL * (4 * NEWEST // len(COLL)) + f"{CLOSED}\n")
    left = ranks.tails.scan()
    assert left > behind
    ranks.tails.drain(behind)
    assert ranks.tails.sampled
    assert ranks.tails.left == 0
    lines = many + 2 + 4 * NEWEST // len(COLL)
    assert ranks.found() == {
        "ib-port-error": [f"rank-0.nccl:{many + 1}"],
        "sock-closed-by-peer": [f"rank-0.nccl:{lines}"],
    }
    assert ranks.tails.reading.lines < 3 * NEWEST // len(COLL)


def test_less_than_that_is_read_whole(ranks: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LEAST_SHARE", 1 << 18)
    monkeypatch.setattr(module, "TURN_BYTES", 1 << 20)
    ranks.write("rank-0.nccl", COLL * ((3 << 20) // len(COLL)))
    ranks.read()
    assert ranks.tails.left > 0, "a turn is bounded"
    while ranks.tails.left:
        ranks.read()
    assert not ranks.tails.sampled
    assert ranks.tails.reading.nccl_lines == (3 << 20) // len(COLL)


def test_a_thread_that_reads_can_be_hurried(ranks: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BLOCK", 1 << 10)
    ranks.write("rank-0.nccl", COLL * 100)
    ranks.tails.scan()
    ranks.tails.hurry()
    ranks.tails.drain()
    assert 0 < ranks.tails.reading.lines < 10
    ranks.tails.end()
    assert ranks.tails.reading.lines == 100


# ---- what is told


def told(its: RaisedFindings, *lines: str, reading: Reading | None = None, now: float = 100.0) -> list[str]:
    """What is told of some lines: "id severity" or "-id"."""
    reading = reading or Reading()
    reading.switch_to(f"{HERE}/rank-3.nccl")
    reading.feed(lines)
    return [
        f"{event.finding.id} {event.finding.severity}"
        if isinstance(event, FindingRaised)
        else f"-{event.id}"
        for event in its.news(reading, now)
    ]


def test_a_cause_is_told_once_with_its_line_rank_and_node() -> None:
    its, reading = RaisedFindings(5), Reading()
    reading.switch_to(f"{HERE}/rank-3.nccl")
    reading.feed(["x", PORT])
    (event,) = its.news(reading, 100.0)
    assert isinstance(event, FindingRaised)
    rule = next(rule for rule in reading.book.rules if rule.id == "ib-port-error")
    assert event.finding == Finding(
        "ib-port-error", "error", rule.text, rank=3, node=5, remedy=rule.remedy,
        evidence=(f"{HERE}/rank-3.nccl:2: {PORT}",), since=100.0,
    )  # fmt: skip
    assert told(its, PORT, PORT, reading=reading) == []


def test_a_symptom_is_told_only_while_no_cause_is_known() -> None:
    its, reading = RaisedFindings(0), Reading()
    assert told(its, CLOSED, reading=reading) == ["sock-closed-by-peer note"]
    assert told(its, PORT, reading=reading) == ["ib-port-error error", "-sock-closed-by-peer"]
    assert told(its, CLOSED, reading=reading) == []
    assert told(RaisedFindings(0), PORT, CLOSED) == ["ib-port-error error"]


def test_facts_and_noise_are_not_told() -> None:
    lines = (
        INFO + "NCCL_IB_DISABLE set by environment to 1.",
        INFO + "NET/IB : No device found.",
        INFO + "NET/Plugin: No plugin found (libnccl-net.so)",
        INFO + "NCCL_TOPO_FILE set by environment to /opt/topo.xml",
        INFO + "init.cc:1012 -> 1",
    )
    assert told(RaisedFindings(0), *lines) == []


def test_a_peer_that_starts_late_is_no_alarm() -> None:
    its, reading = RaisedFindings(0), Reading()
    assert told(its, REFUSED, REFUSED, reading=reading) == []
    assert told(its, "x", reading=reading, now=100.0 + RETRIED_S + 1) == [], "it was met meanwhile"
    assert told(its, REFUSED, reading=reading, now=100.0 + RETRIED_S + 2) == ["sock-refused-retry warning"]


def test_what_was_raised_before_the_agent_died_is_not_raised_again() -> None:
    known = {"ib-port-error": Finding("ib-port-error", "error", "x", rank=1, node=0)}
    assert told(RaisedFindings(0, known), PORT, CLOSED) == []


def test_an_agent_that_is_behind_says_so_once() -> None:
    its = RaisedFindings(0)
    (event,) = its.behind(70_000_000, 1.0)
    assert isinstance(event, FindingRaised)
    assert (event.finding.id, event.finding.severity) == ("logs-behind", "note")
    assert "70 MB were not read yet" in event.finding.evidence[0]
    assert its.behind(90_000_000, 2.0) == []


def test_rdma_ports_that_are_active(tmp_path: Path) -> None:
    assert rdma(tmp_path) == ((), None)
    for device, port, state in (
        ("mlx5_1", 1, "4: ACTIVE"),
        ("mlx5_0", 1, "4: ACTIVE"),
        ("mlx5_0", 2, "1: DOWN"),
    ):
        path = tmp_path / "sys/class/infiniband" / device / "ports" / str(port) / "state"
        path.parent.mkdir(parents=True)
        path.write_text(f"{state}\n")
    (tmp_path / "sys/module/nvidia_peermem").mkdir(parents=True)
    assert rdma(tmp_path) == (("mlx5_0:1", "mlx5_1:1"), True)


# ---- real runs


def facts(state: RunState) -> NcclFacts | None:
    document = state.nodes[0].nccl if 0 in state.nodes else None
    return None if document is None else nccl_facts.decode(document)


def collectives(state: RunState) -> int:
    found = facts(state)
    return sum(sum(one.collectives.values()) for one in found.communicators) if found else 0


async def test_what_running_ranks_write_becomes_facts_without_a_pause() -> None:
    async with doubled(LiveNccl) as (run, runners):
        await run.hooked()
        assert facts(run.state) is None, "at WARN nothing is said"
        for count in range(1, 40):
            runners.newest.writes(0, COLL, "1.nccl")
            await asyncio.sleep(0.5)
            assert collectives(run.state) >= count - 2 * EVERY_S / 0.5
        found = facts(run.state)
        assert found is not None
        assert (found.behind, found.sampled) == (0, False)
        ticks = [stamped.time for stamped in run.told if isinstance(stamped.event, NcclTick)]
        assert all(b - a >= EVERY_S for a, b in itertools.pairwise(ticks))
        assert run.state.findings == {}


LAST = "h:1:2 [0] transport/net_ib.cc:97 NCCL WARN NET/IB : Got completion from peer h<1> with error 12, opcode 0"


async def test_a_line_of_a_running_rank_is_a_finding_and_the_last_one_counts_too() -> None:
    async with doubled() as (run, runners):
        await run.hooked()
        runners.newest.writes(0, f"{PORT}\n{CLOSED}\n", "err")
        await run.until(lambda s: [f.id for f in s.findings.values()] == ["ib-port-error"])
        (one,) = run.state.findings.values()
        assert one.evidence == (f"{HERE}/rank-0.err:1: {PORT}",)
        assert (one.severity, one.node) == ("error", 0)
        runners.newest.writes(0, LAST, "err")
        runners.newest.finishes()
        await run.until(lambda s: s.phase.ended)
        raised = [event.finding for event in run.all_of(FindingRaised)]
        assert [finding.id for finding in raised] == ["ib-port-error", "ib-retry-exceeded"]
        assert f"{HERE}/rank-0.err:3: {LAST}" in raised[1].evidence


WRITES = f"""
import time
print({PORT!r}, flush=True)
time.sleep(600)
"""


@pytest.mark.real
async def test_a_new_agent_reads_from_the_start_and_raises_nothing_twice(tmp_path: Path) -> None:
    script = tmp_path / "writes.py"
    script.write_text(WRITES)
    async with driven(execute(sys.executable, str(script))) as run:
        await run.until(lambda s: s.findings)
        first = run.state.agent_pid
        assert first is not None
        os.kill(first, signal.SIGKILL)
        assert await gone(first, 10.0)
        await run.link.close()
        entry = run_directories.at(run.path)
        assert entry is not None
        run.link = await local_agent.open_link(entry)
        going = asyncio.create_task(run.pump())
        await run.until(lambda s: s.agent_pid != first)
        with (run.path / HERE / "rank-0.out").open("a") as file:
            file.write(f"{LAST}\n")
        await run.until(lambda s: len(s.findings) == 2)
        raised = [e.event.finding.id for e in run.events if isinstance(e.event, FindingRaised) and e.seq]
        assert sorted(set(raised)) == ["ib-port-error", "ib-retry-exceeded"]
        journal = (run.path / "journal.jsonl").read_text()
        assert journal.count('"FindingRaised"') == 2
        (late,) = [one for one in run.state.findings.values() if one.id == "ib-retry-exceeded"]
        assert late.evidence[0].startswith(f"{HERE}/rank-0.out:2: ")
        await run.link.send(Stop("end", grace_s=1.0))
        await run.until(lambda s: s.phase.ended)
        await going
