"""The current activity of each rank: stack, sockets and CPU time, primarily from outside the process."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import structs

from ...presets.sanitize import clean_text
from ...presets.secrets import mask_text
from ..diagnosis.activity import Kind, position_of
from ..diagnosis.stack_text import script_threads, sites
from ..run import clock, file_locks
from ..run.freshness import PULSE_S
from ..run.model import Event, PulseTick, RankPhase
from ..run.proc import read_stat
from ..run.pulse import OwnLine, ProcessWait, Pulse, RankThread, Site, Stall
from ..run.state import RunState
from .awaited_files import locked_database, other_end
from .hook_clients import HookClient, HookError, Hooks
from .outside_waits import child_wait, wait_of
from .process_samples import Outside, program, sample, tree, workers, world_of
from .pyspy import PySpy
from .rank_lines import RankLines
from .tcp_stalls import stalls
from .wait_shares import WaitShares
from .work_counters import TcpBytes, counters, tcp_bytes


def _lean(pulse: Pulse) -> Pulse:
    """Remove the threads of a rank in a collective, except dead ones. They are 3 kB of every pulse."""
    waits = position_of(pulse.stack).kind in (Kind.COLLECTIVE, Kind.TORCH) and any(
        not call.done for call in pulse.active
    )
    if not waits or not pulse.threads:
        return pulse
    return structs.replace(pulse, threads=tuple(thread for thread in pulse.threads if thread.error))


def _completed(
    pulse: Pulse,
    held: Mapping[int, Mapping[str, Any]],
    stalled: Mapping[int, tuple[Stall, ...]],
    wrote: Mapping[int, tuple[OwnLine, ...]],
) -> Pulse:
    """Add the holder of its file lock, its stalled connections and its lines."""
    seen = dict(held.get(pulse.rank, {}))
    if pulse.pid is not None and pulse.pid in stalled:
        seen["stalls"] = stalled[pulse.pid]
    if pulse.rank in wrote:
        seen["wrote"] = wrote[pulse.rank]
    return structs.replace(pulse, **seen) if seen else pulse


_ASKED = ("lock", "sleep", "read", "write", "poll", "wait")
"""System calls of a rank that may wait for another process."""


def holders(pulses: Sequence[Pulse], ranks: Iterable[int]) -> dict[int, dict[str, Any]]:
    """Return the fields on what each rank waits for: the holder of its lock, or the other end of its pipe.

    The holder is a rank, given by its pid in `ranks`, for a child too, or any process.
    """
    held: dict[int, dict[str, Any]] = {}
    loading = [pulse for pulse in pulses if position_of(pulse.stack).kind is Kind.LOADER]
    for pulse in loading:
        worker = _worker_wait(pulse)
        if worker is not None:
            held[pulse.rank] = {"child": worker}
    asked = [pulse for pulse in pulses if pulse.call in _ASKED and pulse not in loading]
    own = {member: pid for pid in ranks for member in tree(pid)} if asked else {}
    for pulse in asked:
        seen, holder = _holder(pulse)
        if holder in own and own[holder] != pulse.pid:
            held[pulse.rank] = {**seen, "holder": own[holder], "holder_name": ""}
        elif holder is not None:
            held[pulse.rank] = {**seen, "holder": holder, "holder_name": program(holder)}
        elif seen:
            held[pulse.rank] = seen
    return held


def _worker_wait(pulse: Pulse) -> ProcessWait | None:
    """Return what a worker of the data loader that the rank waits for is blocked in, except for its next task."""
    pid = pulse.pid or 0
    waits = (child_wait(worker, pid) for worker in workers(tree(pid)[1:], "/proc"))
    return next((wait for wait in waits if wait is not None and wait.call != "poll"), None)


def _holder(pulse: Pulse) -> tuple[dict[str, Any], int | None]:
    """Return further fields on a rank's wait, and the pid of the process that it waits for, if it is known."""
    pid = pulse.pid or 0
    if pulse.call == "wait":
        return ({"child": child_wait(int(pulse.on), pid)} if pulse.on.isdecimal() else {}), None
    if pulse.call == "lock":
        return {}, file_locks.holder(file_locks.read(), pid, pulse.on)
    if pulse.call == "sleep":
        database = locked_database(pid)
        return ({}, None) if database is None else ({"call": "lock", "on": database.path}, database.holder)
    if pulse.on != "a pipe" or pulse.descriptor is None:
        return {}, None
    return {}, other_end(pid, pulse.descriptor, writes=pulse.call == "read")


def with_waits(pulses: Sequence[Pulse], ranks: Iterable[int]) -> list[Pulse]:
    """Return pulses with the system calls of their main threads. `ranks`: pids of all ranks of the job."""
    stalled = stalls(pulse.pid for pulse in pulses if pulse.pid is not None)
    waiting = [
        structs.replace(pulse, stalls=stalled.get(pulse.pid or 0, ()), **wait_of(pulse.pid or 0))
        for pulse in pulses
    ]
    held = holders(waiting, ranks)
    return [structs.replace(pulse, **held.get(pulse.rank, {})) for pulse in waiting]


EVERY_S, ATTENTIVE_S = PULSE_S, 2.0
"""Seconds between samples: normally, and while a rank waits, is silent, makes no progress or starts slowly."""
ANSWER_S = 1.5
"""Longest time for a hook's answer, in seconds."""
WHOLE_S = 15.0
"""Seconds between samples of all collectives if no rank waits. See inrank/collectives.py for their cost."""
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
    threads: tuple[RankThread, ...] = ()
    """Its other threads in the script's own code."""
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
        self, state: RunState, hooks: Hooks, emit: Callable[[Event], None], lines: RankLines
    ) -> None:
        """`lines` reads the output of waiting ranks."""
        self._state, self._hooks, self._emit, self._lines = state, hooks, emit, lines
        self.spy = PySpy()
        self.shares = WaitShares()
        self._ranks: dict[int, _PulseState] = {}
        self._attentive = self._waiting = False
        """Pace of the samples, and True if a rank waits for others or is silent."""
        self._due = self._slot = 0.0
        self._tcp: TcpBytes | None = None
        """Bytes of this node's TCP connections at the current pulses; None while no rank waits."""

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
            self.shares.take(pulses, self._state.world_size)
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
        self._tcp = await asyncio.to_thread(tcp_bytes) if self._attentive else None
        taken = await asyncio.gather(*(self._pulse(*each, asked) for each in sorted(ranks.items())))
        pulses = [_lean(pulse) for pulse in taken]
        waiting, slow, still = self._watch(pulses)
        pids = {ranks[pulse.rank] for pulse in (*waiting, *slow, *still)}
        stalled = await asyncio.to_thread(stalls, pids) if pids else {}
        held = await asyncio.to_thread(holders, pulses, ranks.values()) if self._attentive else {}
        wrote = await self._written({pulse.rank: pulse.last_step for pulse in (*waiting, *still)})
        return tuple(_completed(pulse, held, stalled, wrote) for pulse in pulses)

    def _watch(self, pulses: Sequence[Pulse]) -> tuple[list[Pulse], list[Pulse], list[Pulse]]:
        """Return the ranks that wait, start slowly, and are still. They decide the pace of the next samples."""
        now = clock.monotonic()
        waiting = [pulse for pulse in pulses if self._waits(pulse, WAITS_S)]
        slow = [pulse for pulse in pulses if self._begins(pulse, now)]
        still = [pulse for pulse in pulses if self._still(pulse, now)]
        early = any(self._waits(pulse, EARLY_S) for pulse in pulses)
        self._waiting, self._attentive = bool(waiting), bool(early or slow or still)
        return waiting, slow, still

    async def _written(self, steps: dict[int, float | None]) -> Mapping[int, tuple[OwnLine, ...]]:
        return await self._lines.of(self._state.attempt, steps) if steps else {}

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
        seen = sample(pid)
        facts: dict[str, Any] = {
            "rank": rank,
            "at": clock.now(),
            "pid": pid,
            "state": seen.state,
            "read_bytes": seen.read_bytes,
            "written_bytes": seen.written_bytes,
            "waits_in": seen.waits_in,
            "workers_busy": seen.workers_busy,
            "frozen": seen.frozen,
            "halted_workers": seen.halted_workers,
            "leaving": hook is not None and bool(hook.hello.get("leaving")),
        }
        if self._attentive and seen.members:
            facts["work"] = counters(seen.members, self._tcp)
        given: dict[str, Any] = {"world_size": state.world_size, "master": state.master}
        if answer is not None:
            answered = {key: value for key, value in answer.items() if value is not None}
            if isinstance(answered.get("handles"), str):
                answered["handles"] = clean_text(mask_text(answered["handles"]))
            with contextlib.suppress(msgspec.ValidationError):  # the answer may not be from our hook
                return msgspec.convert({**given, **answered, **facts, "hook": True}, Pulse)
        stack, source = await self._stack(hook, state, seen)
        threads = state.threads if source == "signal" else script_threads(self.spy.seen(pid))
        return Pulse(
            **facts,
            **given,
            stack=stack,
            source=source,
            threads=threads if stack else (),
            cpu_s=seen.cpu_s,
            process_s=seen.process_s,
        )

    async def _stack(
        self, hook: HookClient | None, state: _PulseState, seen: Outside
    ) -> tuple[tuple[Site, ...], str]:
        """Return the stack of a rank whose hook did not answer, with its source, or ((), "")."""
        stack = self._from_outside(hook, state, seen)
        if stack:
            return stack, "py-spy"
        if hook is None or state.silent <= 1 or seen.state in STOPPED:
            return (), ""
        if hook.may_signal() and not self.spy.may_see(state.pid):
            await self._signal(hook, state)
        return state.stack, "signal" if state.stack else ""

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
        state.silent, state.signals, state.stack, state.threads = 0, 0, (), ()
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
            text = await hook.stacks_by_signal()
            state.stack, state.threads = sites(text), script_threads(text)

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
