"""The current activity of each rank: stack, sockets and CPU time, primarily from outside the process."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import math
import os
import re
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from msgspec import structs

from ..diagnosis.activity import Kind, place
from ..diagnosis.rank_dumps import main_frames, threads
from ..run import clock
from ..run.freshness import PULSE_S
from ..run.model import Event, OwnLine, Pulse, PulseTick, RankPhase, Site, Stall
from ..run.proc import read_io, read_once, read_stat
from ..run.processes import environ_of
from ..run.state import RunState
from .hook_clients import HookClient, HookError, Hooks
from .pyspy import PySpy
from .rank_lines import RankLines
from .wait_shares import WaitShares

MOST_PROCESSES = 256
"""Most processes per rank to read."""
WORKER = "pt_data_worker"
"""Name of torch's data loader processes. Older versions set no name."""
_FRAME = re.compile(r"(.*):(\d+|\?\?\?) (.*)")


@dataclass(frozen=True, slots=True)
class Outside:
    """One sample of a process. None means that it has exited or is not readable."""

    state: str | None
    cpu_s: float | None
    """CPU seconds of the main thread."""
    process_s: float | None
    read_bytes: int | None
    written_bytes: int | None
    waits_in: str | None = None
    """Kernel function that the main thread waits in. None if it runs, or if the kernel hides the name."""
    workers_busy: int | None = None
    """See Pulse."""


def sample(pid: int, proc: str = "/proc") -> Outside:
    """Sample a process. Read and written bytes include its children's."""
    stat, main = read_stat(pid, proc), read_stat(pid, f"{proc}/{pid}/task")
    members = tree(pid, proc) if stat is not None else []
    counts = [read_io(member, proc) for member in members] or [None]
    readable = [count for count in counts if count is not None]
    return Outside(
        None if stat is None else stat.state,
        None if main is None else main.cpu_s,
        None if stat is None else stat.cpu_s,
        sum(count[0] for count in readable) if counts[0] is not None else None,
        sum(count[1] for count in readable) if counts[0] is not None else None,
        _waits_in(pid, proc),
        _workers_busy(members[1:], proc),
    )


def _waits_in(pid: int, proc: str) -> str | None:
    name = (read_once(f"{proc}/{pid}/wchan") or b"").decode("ascii", "replace").strip()
    return name if name not in ("", "0") else None


def _workers_busy(pids: Iterable[int], proc: str) -> int | None:
    """Return the number of torch data loader workers that are not in poll, waiting for a task. None if unknown."""
    busy = []
    for pid in pids:
        stat = read_stat(pid, proc)
        if stat is None or stat.name != WORKER:
            continue
        waits_in = _waits_in(pid, proc)
        if waits_in is None and stat.state == "S":
            return None
        busy.append("poll" not in (waits_in or ""))
    return sum(busy) if busy else None


class FileLocks:
    """The kernel's file locks and their visible holders: see proc_locks(5)."""

    def __init__(self, proc: str = "/proc") -> None:
        try:
            text = Path(proc, "locks").read_text(encoding="ascii", errors="replace")
        except OSError:
            text = ""
        lines = [line.split() for line in text.splitlines()]
        held = [line for line in lines if len(line) > 5 and line[1] != "->" and _is_pid(line[4])]
        numbered = {line[0]: int(line[4]) for line in held}
        waiting = [line for line in lines if len(line) > 5 and line[1] == "->" and line[5].isdigit()]
        self._waiting = {int(line[5]): numbered[line[0]] for line in waiting if line[0] in numbered}
        """Waiting process → holder. Its line has "->" and the number of the lock."""
        self._files = {line[5]: int(line[4]) for line in reversed(held)}
        """Device and inode of a file → holder of its first lock."""

    def holder(self, pid: int, path: str) -> int | None:
        """Return the holder of the lock that a process waits for, in the kernel or by polling, or None if unknown."""
        if pid in self._waiting:
            return self._waiting[pid]
        try:
            status = os.stat(path)
        except (OSError, ValueError):
            return None
        device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}"
        return self._files.get(f"{device}:{status.st_ino}")


def _is_pid(word: str) -> bool:
    return word.isdigit() and word != "0"


def _program(pid: int, proc: str = "/proc") -> str:
    """Return only the program's name: arguments may hold secrets."""
    return (read_once(f"{proc}/{pid}/comm") or b"").decode("utf-8", "replace").strip()


def tree(pid: int, proc: str = "/proc") -> list[int]:
    """Return the process and its descendants that main threads forked, such as data loader workers."""
    pids = [pid]
    for parent in pids:
        listed = read_once(f"{proc}/{parent}/task/{parent}/children") or b""
        pids += [int(word) for word in listed.split()]
        if len(pids) > MOST_PROCESSES:
            break
    return pids


def world_of(pid: int) -> tuple[str | None, str | None]:
    """Return the initial WORLD_SIZE and MASTER_ADDR:MASTER_PORT of a process."""
    env = environ_of(pid)
    master = env.get("MASTER_ADDR")
    return env.get("WORLD_SIZE"), None if master is None else f"{master}:{env.get('MASTER_PORT', '')}"


def sites(text: str) -> tuple[Site, ...]:
    """Return the main thread's frames in faulthandler's text, innermost first, or () if it is missing."""
    return _sites(main_frames(text))


def _sites(frames: Iterable[str]) -> tuple[Site, ...]:
    hits = (_FRAME.fullmatch(frame) for frame in frames)
    return tuple(
        Site(hit[1], int(hit[2]) if hit[2].isdigit() else 0, hit[3]) for hit in hits if hit is not None
    )


def _lean(pulse: Pulse) -> Pulse:
    """Remove the threads of a rank in a collective, except dead ones. They are 3 kB of every pulse."""
    waits = place(pulse.stack).kind in (Kind.COLLECTIVE, Kind.TORCH) and any(
        not call.done for call in pulse.active
    )
    if not waits or not pulse.threads:
        return pulse
    return structs.replace(pulse, threads=tuple(thread for thread in pulse.threads if thread.error))


def _with_stalls(pulse: Pulse, stalled: Mapping[int, tuple[Stall, ...]]) -> Pulse:
    its = stalled.get(pulse.pid or 0)
    return structs.replace(pulse, stalls=its) if its is not None else pulse


def _with_holder(pulse: Pulse, locks: FileLocks | None, own: Mapping[int, int]) -> Pulse:
    """Add the holder of the file lock that it waits for: a rank (`own`: pid of a child → of its rank) or any process."""
    if locks is None or pulse.call != "lock":
        return pulse
    holder = locks.holder(pulse.pid or 0, pulse.on)
    if holder is None:
        return pulse
    return structs.replace(
        pulse, holder=own.get(holder, holder), holder_name="" if holder in own else _program(holder)
    )


def _with_lines(pulse: Pulse, wrote: Mapping[int, tuple[OwnLine, ...]]) -> Pulse:
    its = wrote.get(pulse.rank)
    return structs.replace(pulse, wrote=its) if its is not None else pulse


def crash_sites(text: str) -> tuple[Site, ...]:
    """Return the thread that a signal killed in faulthandler's text, or else the newest one with frames."""
    stacks = [thread for thread in threads(text) if thread.frames]
    at = next((thread for thread in stacks if thread.current), stacks[-1] if stacks else None)
    return _sites(at.frames if at is not None else ())


# TCP connections that wait for the other end, from /proc. Formats: the kernel's proc_net_tcp.


STATES = {"01": "ESTABLISHED", "02": "SYN_SENT"}
MOST_STALLS = 16
"""Most stalls per process to report."""
TABLES = ("tcp", "tcp6")

Table = Mapping[str, Stall]
"""The stalled connections of one network namespace, by their socket's inode."""


def parse(text: str) -> dict[str, Stall]:
    """Return the waiting connections in /proc/net/tcp or tcp6: unanswered, retransmitted, or not acknowledged."""
    by_inode = {}
    for line in text.splitlines():
        fields = line.split()
        if len(fields) < 10 or fields[3] not in STATES:
            continue
        unsent, retransmits = int(fields[4].partition(":")[0], 16), int(fields[6], 16)
        if fields[3] == "02" or retransmits or unsent:
            ends = address(fields[1]), address(fields[2])
            by_inode[fields[9]] = Stall(*ends, STATES[fields[3]], retransmits, unsent)
    return by_inode


def address(text: str) -> str:
    """Return "10.0.0.1:29500" for "0100000A:733C": 32-bit words in host byte order, and a hexadecimal port."""
    words, _, port = text.partition(":")
    raw = b"".join(struct.pack("=I", int(words[at : at + 8], 16)) for at in range(0, len(words), 8))
    host = ipaddress.ip_address(raw)
    mapped = getattr(host, "ipv4_mapped", None)
    if mapped is not None or host.version == 4:
        return f"{mapped or host}:{int(port, 16)}"
    return f"[{host}]:{int(port, 16)}"


def sockets(pid: int, proc: str = "/proc") -> set[str]:
    """Return the inodes of a process's open sockets. Empty if it has exited or belongs to another user."""
    inodes = set()
    with contextlib.suppress(OSError):
        for entry in os.scandir(f"{proc}/{pid}/fd"):
            with contextlib.suppress(OSError):
                target = os.readlink(entry.path)
                if target.startswith("socket:["):
                    inodes.add(target[8:-1])
    return inodes


def stalls(pids: Iterable[int], proc: str = "/proc") -> dict[int, tuple[Stall, ...]]:
    """Return the stalled connections per process, most retransmits first. Each namespace is read once."""
    tables: dict[int, Table] = {}
    by_pid: dict[int, tuple[Stall, ...]] = {}
    for pid in pids:
        try:
            space = os.stat(f"{proc}/{pid}/ns/net").st_ino
        except OSError:
            continue
        if space not in tables:
            tables[space] = _table(pid, proc)
        if not tables[space]:
            continue
        own = [tables[space][inode] for inode in sockets(pid, proc) & tables[space].keys()]
        if own:
            own.sort(key=lambda stall: (-stall.retransmits, stall.state, stall.local, stall.remote))
            by_pid[pid] = tuple(own[:MOST_STALLS])
    return by_pid


def _table(pid: int, proc: str) -> Table:
    table: dict[str, Stall] = {}
    for name in TABLES:
        with contextlib.suppress(OSError), open(f"{proc}/{pid}/net/{name}", encoding="ascii") as file:
            table |= parse(file.read())
    return table


EVERY_S, ATTENTIVE_S = PULSE_S, 2.0
"""Seconds between samples: normally, and while a rank waits, is silent, makes no progress or starts slowly."""
ANSWER_S = 1.5
"""Longest time for a hook's answer, in seconds."""
WHOLE_S = 15.0
"""Seconds between samples of all collectives if no rank waits. See inrank/rank_pulse.py for their cost."""
SAMPLES = 10
"""Stack samples per pulse while attentive."""
EARLY_S, WAITS_S, STILL_S = 2.0, 5.0, 8.0
"""Seconds in a collective: early, and waiting. Seconds without a new collective that make a rank still."""
BEGINS_S = 10.0, 300.0
"""Age range of a process, in seconds, in which a rank without a step or collective is a slow starter."""
SIGNAL_S, SELDOM_S, OFTEN = 10.0, 60.0, 6
"""Seconds between signals to a silent rank's hook, and between later ones after OFTEN signals."""
STOPPED = ("T", "t", "Z", "X", None)
"""States of processes that write no stack."""
QUIET_SHARE = 0.05
"""Share of a core below which a rank without a hook is still and may wait."""


@dataclass(slots=True)
class _PulseState:
    """The state that one pulse of a process keeps for the next. Times are monotonic seconds."""

    pid: int
    since: float
    world_size: str | None
    master: str | None
    silent: int = 0
    """Consecutive pulses without an answer from its connected hook."""
    signalled: float = -math.inf
    signals: int = 0
    """Number of signals during this silence."""
    stack: tuple[Site, ...] = ()
    """Stack of the newest signal of this silence."""
    enqueued: int = 0
    moved: float = 0.0
    """Observed time of the last call of a collective."""
    cpu_s: float | None = None
    sampled: float = 0.0
    """Time of the previous sample of the main thread."""
    busy: float = 0.0
    """Observed time of the last use of its core."""


class Pulses:
    """Takes the pulses of this node's ranks during the run."""

    def __init__(
        self, state: RunState, hooks: Hooks, emit: Callable[[Event], None], lines: RankLines | None = None
    ) -> None:
        """`lines` reads the output of waiting ranks. None keeps no output."""
        self._state, self._hooks, self._emit, self._lines = state, hooks, emit, lines
        self.spy = PySpy()
        self.shares = WaitShares()
        self._ranks: dict[int, _PulseState] = {}
        self._attentive = self._waiting = False
        """Pace of the samples, and True if a rank waits for others or is silent."""
        self._due = self._slot = 0.0

    async def run(self) -> None:
        """Emit a PulseTick every few seconds until cancelled."""
        while True:
            await self._rest()
            ranks = {
                number: rank.pid
                for number, rank in self._state.ranks.items()
                if rank.phase is RankPhase.RUNNING and rank.pid is not None
            }
            pulses = await self.take(ranks)
            self.shares.take(pulses)
            if pulses:
                self._emit(PulseTick(pulses))

    async def _rest(self) -> None:
        """Sleep until the clock is a multiple of the interval, so that all nodes sample at about the same time."""
        pace, now = ATTENTIVE_S if self._attentive else EVERY_S, clock.now()
        due = (now // pace + 1) * pace
        if 0 < due - self._due < pace / 2:
            due += pace
        self._due = due
        await asyncio.sleep(due - now)

    async def take(self, ranks: Mapping[int, int]) -> tuple[Pulse, ...]:
        """Take one pulse of each process in `ranks`, rank → pid. Sorted by rank."""
        self._remember(ranks)
        asked = self._question()
        pulses = await asyncio.gather(*(self._pulse(*each, asked) for each in sorted(ranks.items())))
        now = clock.monotonic()
        early = [pulse for pulse in pulses if self._waits(pulse, EARLY_S)]
        waiting = [pulse for pulse in pulses if self._waits(pulse, WAITS_S)]
        slow = [pulse for pulse in pulses if self._begins(pulse, now)]
        still = [pulse for pulse in pulses if self._still(pulse, now)]
        self._waiting, self._attentive = bool(waiting), bool(early or slow or still)
        pids = {ranks[pulse.rank] for pulse in (*waiting, *slow)}
        stalled = await asyncio.to_thread(stalls, pids) if pids else {}
        locks = FileLocks() if any(pulse.call == "lock" for pulse in pulses) else None
        own = {member: pid for pid in ranks.values() for member in tree(pid)} if locks is not None else {}
        steps = {pulse.rank: pulse.last_step for pulse in (*waiting, *still)}
        wrote = (
            await self._lines.of(self._state.attempt, steps) if steps and self._lines is not None else {}
        )
        return tuple(
            _with_lines(_with_holder(_with_stalls(_lean(pulse), stalled), locks, own), wrote)
            for pulse in pulses
        )

    def _remember(self, ranks: Mapping[int, int]) -> None:
        self._ranks = {rank: state for rank, state in self._ranks.items() if ranks.get(rank) == state.pid}
        self.spy.keep(ranks.values())
        now = clock.monotonic()
        for rank in ranks.keys() - self._ranks.keys():
            self._ranks[rank] = _PulseState(ranks[rank], now, *world_of(ranks[rank]), moved=now, busy=now)
        if not ranks:
            self._attentive = self._waiting = False

    def _question(self) -> dict[str, Any]:
        """Return the question to the hooks. All get one question, so that their answers are comparable."""
        asked: dict[str, Any] = {"samples": SAMPLES if self._attentive else 1}
        slot = clock.now() // WHOLE_S
        if self._waiting or slot != self._slot:
            asked |= {"whole": True, "sites": self._waiting}
        self._slot = slot
        return asked

    async def _pulse(self, rank: int, pid: int, asked: dict[str, Any]) -> Pulse:
        """Take the pulse of one rank, within ANSWER_S and the time of a signal."""
        state, hook = self._ranks[rank], self._hooks.by_rank.get(rank)
        answer = None if hook is None else await self._answer(hook, state, asked)
        seen, at = sample(pid), clock.now()
        facts: dict[str, Any] = {
            "rank": rank,
            "at": at,
            "pid": pid,
            "state": seen.state,
            "read_bytes": seen.read_bytes,
            "written_bytes": seen.written_bytes,
            "waits_in": seen.waits_in,
            "workers_busy": seen.workers_busy,
        }
        given: dict[str, Any] = {"world_size": state.world_size, "master": state.master}
        if answer is not None:
            answered = {key: value for key, value in answer.items() if value is not None}
            try:
                return msgspec.convert({**given, **answered, **facts, "hook": True}, Pulse)
            except msgspec.ValidationError:
                pass  # the answer is not from our hook
        stack, source = self._from_outside(hook, state, seen), "py-spy"
        if hook is not None and state.silent > 1 and seen.state not in STOPPED:
            if not stack and hook.may_signal() and not self.spy.may_see(pid):
                await self._signal(hook, state)
            stack, source = (stack, source) if stack else (state.stack, "signal")
        source = source if stack else ""
        return Pulse(
            **facts, **given, stack=stack, source=source, cpu_s=seen.cpu_s, process_s=seen.process_s
        )

    def _from_outside(self, hook: HookClient | None, state: _PulseState, seen: Outside) -> tuple[Site, ...]:
        """Return the stack from py-spy, or ().

        It is taken of silent ranks. Without a hook it is taken of still ranks, and of all ranks while one on this node
        waits.
        """
        now = clock.monotonic()
        before, state.cpu_s = state.cpu_s, seen.cpu_s
        used = None if before is None or seen.cpu_s is None else seen.cpu_s - before
        if used is None or used > QUIET_SHARE * (now - state.sampled):
            state.busy = now
        state.sampled = now
        if hook is not None and hook.up:
            wanted = state.silent > 1
        else:
            wanted = now - state.since > STILL_S and (self._waiting or now - state.busy > STILL_S)
        return self.spy.sites(state.pid, wanted and seen.state not in STOPPED)

    async def _answer(
        self, hook: HookClient, state: _PulseState, asked: dict[str, Any]
    ) -> dict[str, Any] | None:
        """Return the hook's answer, or None if there is none."""
        try:
            answer = await hook.pulse(ANSWER_S, **asked)
        except HookError:
            state.silent = state.silent + 1 if hook.up else 0
            return None
        state.silent, state.signals, state.stack = 0, 0, ()
        return answer

    async def _signal(self, hook: HookClient, state: _PulseState) -> None:
        """Make the rank write its stack, at limited intervals. The last stack is valid until the rank answers.

        Only the hook's thread gets the signal, and only while it waits for the GIL. A thread that holds the GIL for so
        long is in C code, so that no Python frame changes during the dump.
        """
        now, thread = clock.monotonic(), hook.hello.get("thread")
        stat = None if thread is None else read_stat(thread, f"/proc/{state.pid}/task")
        if stat is None or stat.state == "R":
            return
        if now - state.signalled < (SIGNAL_S if state.signals < OFTEN else SELDOM_S):
            return
        state.signalled, state.signals = now, state.signals + 1
        with contextlib.suppress(HookError, OSError):
            state.stack = sites(await hook.stacks_by_signal())

    def _waits(self, pulse: Pulse, seconds: float) -> bool:
        """Return True if the rank is in a collective for longer, or silent."""
        return self._ranks[pulse.rank].silent > 0 or any(
            pulse.at - call.created > seconds for call in pulse.active
        )

    def _begins(self, pulse: Pulse, now: float) -> bool:
        """Return True if the first step or collective takes long."""
        earliest, latest = BEGINS_S
        began = bool(pulse.step) or any(group.completed for group in pulse.groups)
        return earliest <= now - self._ranks[pulse.rank].since <= latest and not began

    def _still(self, pulse: Pulse, now: float) -> bool:
        """Return True if the rank had collectives and starts no new one."""
        state, enqueued = self._ranks[pulse.rank], sum(group.enqueued for group in pulse.groups)
        if enqueued != state.enqueued:
            state.enqueued, state.moved = enqueued, now
        return enqueued > 0 and now - state.moved > STILL_S
