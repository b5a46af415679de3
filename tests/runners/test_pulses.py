"""The agent's look at its ranks: whom it asks, how often, and what it sees without their help."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import patience
import pytest
from owner import owner

from distui.runners.agent import process_samples, pulses, pyspy
from distui.runners.agent.hook_clients import HookError, Hooks
from distui.runners.agent.pulses import Pulses
from distui.runners.agent.rank_lines import RankLines
from distui.runners.agent.tcp_stalls import address, parse, stalls
from distui.runners.diagnosis import stack_text
from distui.runners.run.log_files import file_id
from distui.runners.run.model import HookChanged, RankChanged, RankPhase
from distui.runners.run.pulse import OwnLine, Site, Stall
from distui.runners.run.state import RunState

NOBODY = 4_200_000
"""Above the largest pid of Linux."""
HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode"
MADE = f"""{HEAD}
   0: 0100007F:733C 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 101 1 0 100 0 0 10 0
   1: 0A00000A:D431 0B00000A:733C 02 00000001:00000000 01:0000031C 00000005     0        0 102 2 0 3200 0 0 1 7
   2: 0A00000A:D432 0B00000A:733C 01 00000000:00000000 02:000A0000 00000000     0        0 103 2 0 20 4 30 10 -1
   3: 0A00000A:D433 0B00000A:733C 01 00010000:00000000 01:00000100 00000003     0        0 104 2 0 20 4 30 10 -1
   4: 0A00000A:D434 0B00000A:733C 06 00000000:00000000 03:00000100 00000000     0        0 0 3 0
   5: cut short
"""


def test_of_all_connections_those_that_wait_are_read() -> None:
    assert parse(MADE) == {
        "102": Stall("10.0.0.10:54321", "10.0.0.11:29500", "SYN_SENT", 5, 1),
        "104": Stall("10.0.0.10:54323", "10.0.0.11:29500", "ESTABLISHED", 3, 65536),
    }
    assert parse(HEAD) == {}
    assert parse("") == {}


def test_addresses_are_read_in_both_versions() -> None:
    assert address("0100007F:0050") == "127.0.0.1:80"
    assert address("00000000000000000000000001000000:0050") == "[::1]:80"
    assert address("0000000000000000FFFF00000A00000A:733C") == "10.0.0.10:29500"
    assert address("000080FE00000000FF005450B6ADFEA0:0016") == "[fe80::5054:ff:a0fe:adb6]:22"


@pytest.fixture
def full() -> Iterator[tuple[str, int]]:
    """An address that answers no more: the queue of its server is full, and the kernel drops what comes."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        with socket.create_connection(server.getsockname()):
            yield server.getsockname()


def test_a_connect_that_nobody_answers_is_seen(full: tuple[str, int]) -> None:
    with socket.socket() as client:
        client.setblocking(False)
        client.connect_ex(full)
        (found,) = stalls([os.getpid()])[os.getpid()]
        assert found.state == "SYN_SENT"
        assert found.remote == f"{full[0]}:{full[1]}"
        assert found.local == ":".join(map(str, client.getsockname()))
        assert stalls([os.getppid()]).get(os.getppid()) is None  # these sockets are not its own


def test_what_the_other_end_does_not_read_is_seen() -> None:
    with (
        socket.create_server(("::1", 0), family=socket.AF_INET6) as server,
        socket.create_connection(server.getsockname()[:2]) as client,
    ):
        assert stalls([os.getpid()]) == {}
        peer, _ = server.accept()
        client.setblocking(False)
        with peer:
            with contextlib.suppress(BlockingIOError):
                while True:
                    client.send(bytes(1 << 16))
            (found,) = stalls([os.getpid()])[os.getpid()]
    assert found.state == "ESTABLISHED"
    assert found.remote.startswith("[::1]:")
    assert found.unsent > 1 << 16


def test_a_process_that_is_gone_has_nothing() -> None:
    assert stalls([NOBODY]) == {}
    assert process_samples.sample(NOBODY) == process_samples.Outside(None, None, None, None, None)
    assert process_samples.world_of(NOBODY) == (None, None)


def until(happened: Callable[[], bool]) -> None:
    """Wait for what another process does."""
    began = time.monotonic()
    while not happened():
        assert time.monotonic() - began < patience.HANG_S
        time.sleep(0.01)


def stop(pid: int) -> None:
    """Stop a child of this process, and wait until it is."""
    os.kill(pid, signal.SIGSTOP)
    os.waitid(os.P_PID, pid, os.WSTOPPED)


@pytest.mark.real
def test_what_children_wrote_is_told_with_the_parents(tmp_path: Path) -> None:
    """Of the workers of a data loader those that wait for a task are not busy."""
    script = f"""
import os, select, sys, time
for wait in (lambda: select.poll().poll(), lambda: time.sleep(600), lambda: time.sleep(600)):
    if os.fork() == 0:
        open("/proc/self/comm", "w").write("pt_data_worker")
        wait()
if os.fork() == 0:
    with open({str(tmp_path / "file")!r}, "wb") as file:
        file.write(bytes(1 << 20)); file.flush(); os.fsync(file.fileno())
    print("written", flush=True)
    sys.stdin.read()
    os._exit(0)
sys.stdin.read()
"""
    assert process_samples.sample(os.getpid()).workers_busy is None
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        env={**os.environ, "WORLD_SIZE": "4", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"},
    )  # fmt: skip
    try:
        assert process.stdout is not None
        process.stdout.readline()
        until(lambda: process_samples.sample(process.pid).state == "S")
        until(lambda: process_samples.sample(process.pid).workers_busy == 2)
        seen = process_samples.sample(process.pid)
        assert len(process_samples.tree(process.pid)) == 5
        assert seen.written_bytes is not None
        assert seen.written_bytes >= 1 << 20
        assert seen.process_s is not None
        assert process_samples.world_of(process.pid) == ("4", "10.0.0.1:29500")
        stop(process.pid)
        assert process_samples.sample(process.pid).state == "T"
    finally:
        for pid in process_samples.tree(process.pid)[::-1]:
            os.kill(pid, signal.SIGKILL)
        process.communicate()


def test_the_main_thread_is_read_from_what_faulthandler_writes() -> None:
    text = """Thread 0x00007f01 (most recent call first):
  File "/x/inrank/hook.py", line 9 in serve

Current thread 0x00007f02 (most recent call first):
  File "<frozen importlib._bootstrap>", line 241 in _call_with_frames_removed
  File "/x/my train.py", line ??? in <module>
"""
    assert stack_text.sites(text) == (
        Site("<frozen importlib._bootstrap>", 241, "_call_with_frames_removed"),
        Site("/x/my train.py", 0, "<module>"),
    )
    assert stack_text.sites("") == ()


class Rank:
    """The hook's end of a socket: it answers when and what the test says."""

    def __init__(self, pid: int) -> None:
        self.pid, self.faulthandler = pid, False
        self.asked: list[dict[str, Any]] = []
        self.serving: list[asyncio.Task[Any] | None] = []
        self.free = asyncio.Event()
        self.free.set()
        self.answer: dict[str, Any] = {"stack": [["a.py", 1, "f"]], "sites": 1, "samples": 1, "step": 3}

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.serving.append(asyncio.current_task())
        hello = {"pid": self.pid, "armed": False, "nccl": {}, "faulthandler": self.faulthandler}
        writer.write(json.dumps(hello).encode() + b"\n")
        with contextlib.suppress(ConnectionError):  # whoever asked left without the answer
            while line := await reader.readline():
                self.asked.append(json.loads(line))
                await self.free.wait()
                writer.write(json.dumps(dict(self.answer, id=self.asked[-1]["id"])).encode() + b"\n")
        writer.close()


@asynccontextmanager
async def looked(directory: Path, *ranks: Rank) -> AsyncIterator[tuple[Pulses, dict[int, int]]]:
    """Pulses of an agent whose hooks are connected to `ranks`, and their pids."""
    up = asyncio.Event()

    def changed(event: HookChanged) -> None:
        if all(hook.up for hook in hooks.by_rank.values()):
            up.set()

    hooks = Hooks(directory, str(directory / "h"), changed, owner())
    servers = []
    for number, rank in enumerate(ranks):
        servers.append(await asyncio.start_unix_server(rank.serve, directory / f"h.r{number}"))
        hooks.follow(RankChanged(1, number, RankPhase.RUNNING, number, rank.pid))
    try:
        await up.wait()
        lines = RankLines(directory, 0, lambda file: None)
        taking = Pulses(RunState(), hooks, lambda event: None, lines)
        yield taking, {number: rank.pid for number, rank in enumerate(ranks)}
    finally:
        for rank in ranks:
            rank.free.set()
        for number in range(len(ranks)):
            hooks.forget(number)
        for server in servers:
            server.close()
        await asyncio.gather(*(task for rank in ranks for task in rank.serving if task is not None))


async def test_a_silent_rank_is_asked_once_and_the_others_are_looked_at_closely(
    socket_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pyspy, "find", lambda pid: None)  # it would read this process
    other, silent = Rank(os.getpid()), Rank(os.getpid())
    async with looked(socket_folder, other, silent) as (taking, pids):
        first = await taking.take(pids)
        assert [one.hook for one in first] == [True, True]
        assert first[0].stack == (Site("a.py", 1, "f"),)
        assert (other.asked[0]["samples"], other.asked[0]["whole"], other.asked[0]["sites"]) == (
            1,
            True,
            False,
        )
        silent.free.clear()
        for _ in range(3):
            one, two = await taking.take(pids)
            assert (one.hook, two.hook, two.stack) == (True, False, ())
        assert len(silent.asked) == 2
        assert (other.asked[-1]["samples"], other.asked[-1]["sites"]) == (pulses.SAMPLES, True)
        silent.free.set()
        while (owed := taking._hooks.by_rank[1]._open_pulse) is not None and not owed.done:
            await asyncio.sleep(0.01)
        assert [one.hook for one in await taking.take(pids)] == [True, True]
        assert len(silent.asked) == 3


async def test_what_ranks_wrote_is_read_of_those_that_wait_and_of_nobody_else(socket_folder: Path) -> None:
    ranks = Rank(os.getpid()), Rank(os.getpid())
    for number in (0, 1):
        log = socket_folder / file_id(0, 0, number, "err")
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text(f"skipping batch {number}\n")
    async with looked(socket_folder, *ranks) as (taking, pids):
        assert [each.wrote for each in await taking.take(pids)] == [(), ()]
        waits = {"group": "0", "seq": 7, "op": "all_reduce", "created": 1.0}
        ranks[1].answer = {**ranks[1].answer, "active": [waits]}
        assert [each.wrote for each in await taking.take(pids)] == [(), (OwnLine("skipping batch 1"),)]


async def test_threads_are_of_use_only_where_a_rank_does_not_wait_for_others(socket_folder: Path) -> None:
    living, dead = (
        ["uploader", [["up.py", 3, "run"]], ""],
        ["producer", [["in.py", 9, "run"]], "KeyError: 'x'"],
    )
    waits = {"group": "0", "seq": 7, "op": "all_reduce", "created": 1.0}
    ranks = Rank(os.getpid()), Rank(os.getpid())
    for rank in ranks:
        rank.answer = {**rank.answer, "threads": [dead, living]}
    stack = [["/x/torch/distributed/distributed_c10d.py", 3252, "all_reduce"], ["a.py", 1, "f"]]
    ranks[1].answer |= {"stack": stack, "active": [waits]}
    async with looked(socket_folder, *ranks) as (taking, pids):
        names = [[thread.name for thread in each.threads] for each in await taking.take(pids)]
        assert names == [["producer", "uploader"], ["producer"]]


async def test_a_rank_whose_hook_is_older_lives_and_tells_nothing(socket_folder: Path) -> None:
    old = Rank(os.getpid())
    old.answer = {"error": "unknown request 'pulse'"}
    async with looked(socket_folder, old) as (taking, pids):
        (told,) = await taking.take(pids)
        assert (told.hook, told.stack, told.step, told.recorder) == (True, (), None, None)


async def test_a_rank_without_a_hook_is_seen_from_outside(socket_folder: Path) -> None:
    async with looked(socket_folder, Rank(os.getpid())) as (taking, pids):
        _, other = await taking.take({**pids, 5: os.getpid()})
        assert (other.rank, other.hook, other.recorder, other.stack) == (5, False, None, ())
        assert other.state is not None
        assert other.process_s is not None
        assert await taking.take({}) == ()


@pytest.mark.real
async def test_no_signal_goes_to_a_rank_that_would_die_of_it_or_that_is_stopped(
    socket_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pulses, "ANSWER_S", 0.1)
    code = "import sys; sys.stdin.read()"
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdin=subprocess.PIPE)
    rank = Rank(process.pid)
    async with looked(socket_folder, rank) as (taking, pids):
        rank.free.clear()
        for _ in range(4):
            (told,) = await taking.take(pids)
            assert not told.hook
        taking._hooks.by_rank[0].hello["faulthandler"] = True  # as it says; the signal would end it
        stop(process.pid)
        for _ in range(4):
            (told,) = await taking.take(pids)
            assert (told.hook, told.state, told.stack) == (False, "T", ())
        with pytest.raises(HookError, match="is stopped"):
            await taking._hooks.by_rank[0].stacks_by_signal()
        process.send_signal(signal.SIGCONT)
    await process.communicate(b"")
    assert process.returncode == 0
