"""When NCCL's RAS may be asked, and how. Its server lives in libnccl beside a GPU: here a socket speaks its lines."""

from __future__ import annotations

import asyncio
import socket

import pytest
from each import for_each
from ports import free_port

from distui.runners.agent import ras_watch as watch
from distui.runners.diagnosis import ras
from distui.runners.run.model import Collective, ProcessGroup, Pulse, RankPhase, RankPlace
from distui.runners.run.state import Rank, RunState

from .test_ras import GONE, report

NOW = 1_800_000_000.0


def waiting(
    version: str | None = "2.29.7", seq: int = 43, completed: int = 42, age: float = 20.0
) -> RunState:
    """Two ranks that wait in a collective."""
    state = RunState()
    for number in range(2):
        rank = state.ranks[number] = Rank(
            RankPlace(number, number), RankPhase.RUNNING, nccl_version=version
        )
        active = (Collective("0", seq, "all_reduce", created=NOW - age),)
        rank.pulse = Pulse(number, NOW, groups=(ProcessGroup("0", (0, 1), seq, completed),), active=active)
    return state


def test_ranks_that_wait_may_be_asked_for() -> None:
    assert watch.refusal(waiting(), NOW) == ""


@for_each(
    ("state", "why"),
    [
        (waiting(None), "not known"),
        (waiting("2.21.5"), "crashed"),
        (waiting("2.28.3"), "crashed"),
        (waiting(completed=0), "first collective"),
        (waiting(seq=1), "first collective"),
        (waiting(age=1.0), "no rank waits"),
        (RunState(), "not every rank"),
    ],
)
def test_it_is_not_asked_where_that_could_harm_or_is_of_no_use(state: RunState, why: str) -> None:
    assert why in watch.refusal(state, NOW)


def test_it_is_not_asked_while_a_rank_is_not_seen() -> None:
    state = waiting()
    state.ranks[1].pulse = None
    assert "first collective" in watch.refusal(state, NOW)


async def served(text: str, heard: list[str], at: socket.socket | None = None) -> asyncio.Server:
    """A port that speaks the protocol of RAS; `at`: a bound socket for it."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := (await reader.readline()).decode().strip():
            heard.append(line)
            if line == "VERBOSE STATUS":
                writer.write(text.encode())
                break
            writer.write(b"SERVER PROTOCOL 2\n" if line.startswith("CLIENT") else b"OK\n")
        await writer.drain()
        writer.close()

    if at is not None:
        return await asyncio.start_server(serve, sock=at)
    return await asyncio.start_server(serve, "127.0.0.1", 0)


async def test_a_report_is_fetched() -> None:
    heard: list[str] = []
    server = await served(report([200, 199]), heard)
    async with server:
        said = await watch.ask(server.sockets[0].getsockname()[1])
    assert said.communicators[0].hash == "0x673bdeadbeef"
    assert "SET FORMAT json" in heard


async def test_where_a_stopped_rank_gets_the_question_another_is_asked_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The kernel chooses who of those that share the port is asked: two sockets stand in for two ranks."""
    monkeypatch.setattr(watch, "ASKED", 40)  # of 8 in a row all land on the silent one once in 256 times
    monkeypatch.setattr(watch, "ANSWERS_S", 0.3)
    heard: list[str] = []
    with socket.socket() as silent, socket.socket() as lives:
        for each in (silent, lives):
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            each.bind(("127.0.0.1", 0 if each is silent else silent.getsockname()[1]))
        silent.listen()
        server = await served(report([200, 199]), heard, lives)
        async with server:
            for _ in range(4):  # among so many questions one lands on the silent socket, all but surely
                said = await watch.ask(lives.getsockname()[1])
                assert said.communicators[0].hash == "0x673bdeadbeef"


async def test_where_nobody_answers_the_question_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "ANSWERS_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(TimeoutError):
        await watch.ask(silent.getsockname()[1], ("127.0.0.1",))


async def test_nobody_there_is_an_error_of_the_system() -> None:
    with pytest.raises(OSError):
        await watch.ask(free_port())


def test_only_what_did_not_move_between_two_reports_is_told() -> None:
    still = ras.parse(report([200, 200, 199, 200]))
    moved = ras.parse(report([201, 201, 200, 201]))
    assert watch.judge(moved, still, 0) is None
    finding = watch.judge(still, still, 0)
    assert finding is not None
    assert (finding.severity, finding.role, finding.ranks) == ("note", "hint", (2,))
    assert "rank 2 launched AllReduce 199 times, most ranks 200 times" in finding.evidence[0]


def test_a_rank_that_is_silent_in_both_is_told() -> None:
    gone = ras.parse(report([200, 200, 200], GONE.format(comma="", dead="true")))
    assert watch.judge(ras.parse(report([200, 200, 200])), gone, 0) is None
    finding = watch.judge(gone, gone, 0)
    assert finding is not None
    assert finding.evidence == ("rank 3 (pid 14 gpu-b) is taken for dead",)
