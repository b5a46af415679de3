"""Looks at what every rank is doing, every few seconds: through its hook, else from outside."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import structs

from ..model import Pulse, PulseTick, RankPhase, Site
from . import outside
from .hooks import Hook, HookError
from .pyspy import PySpy
from .stalls import stalls

if TYPE_CHECKING:
    from .agent import Agent

EVERY_S, ATTENTIVE_S = 5.0, 2.0
"""Seconds between looks, and while a rank waits, is silent, stands still or does not come to its first step."""
ANSWER_S = 1.5
"""How long a hook may take."""
WHOLE_S = 15.0
"""Seconds between looks at every collective where nobody waits; see inrank/collectives.py for what they cost."""
SAMPLES = 10
"""Looks at a stack while attentive."""
EARLY_S, WAITS_S, STILL_S = 2.0, 5.0, 8.0
"""Ages of a collective that may come to wait, and of one that waits; seconds without a new one when a rank is still."""
BEGINS_S = 10.0, 300.0
"""Age of a process within which it is a slow beginner until its first step or collective."""
SIGNAL_S, SELDOM_S, OFTEN = 10.0, 60.0, 6
"""Seconds between signals to a rank that does not answer, for each may cut a call of C's short; the same after so many
of them."""
STOPPED = ("T", "t", "Z", "X", None)
"""States of processes that write no stack."""
QUIET_SHARE = 0.05
"""Of a core: who uses less without a hook stands still, and may wait."""


@dataclass(slots=True)
class _Known:
    """What one look at a rank's process has to know of those before. Times are monotonic seconds."""

    pid: int
    since: float
    world_size: str | None
    master: str | None
    silent: int = 0
    """Looks in a row that its hook did not answer, though it is connected."""
    signalled: float = -math.inf
    signals: int = 0
    """In this silence."""
    stack: tuple[Site, ...] = ()
    """From the newest signal of this silence."""
    enqueued: int = 0
    moved: float = 0.0
    """When a collective was called last, as far as the looks tell."""
    cpu_s: float | None = None
    looked: float = 0.0
    """Of the main thread, at the look before."""
    busy: float = 0.0
    """When it used its core last, as far as the looks tell."""


class Pulses:
    """Takes the pulses of this node's ranks for as long as the run lives."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self.spy = PySpy()
        self._known: dict[int, _Known] = {}
        self._attentive = self._waiting = False
        """Whether to look often; whether a rank waits for others, or is silent."""
        self._due = self._slot = 0.0

    async def run(self) -> None:
        """Tell a PulseTick every few seconds; cancel to stop."""
        try:
            while True:
                await self._rest()
                ranks = {
                    number: rank.pid
                    for number, rank in self._agent.state.ranks.items()
                    if rank.phase is RankPhase.RUNNING and rank.pid is not None
                }
                pulses = await self.look(ranks)
                if pulses:
                    self._agent.emit(PulseTick(pulses))
        finally:
            await self.spy.close()

    async def _rest(self) -> None:
        """Until the clock shows a multiple of the pace: all nodes look at about the same moment."""
        pace, now = ATTENTIVE_S if self._attentive else EVERY_S, time.time()
        due = (now // pace + 1) * pace
        if 0 < due - self._due < pace / 2:
            due += pace
        self._due = due
        await asyncio.sleep(due - now)

    async def look(self, ranks: Mapping[int, int]) -> tuple[Pulse, ...]:
        """One look at the processes of `ranks`, rank → pid; by rank."""
        self._remember(ranks)
        asked = self._question()
        pulses = await asyncio.gather(*(self._one(*each, asked) for each in sorted(ranks.items())))
        now = time.monotonic()
        early = [pulse for pulse in pulses if self._waits(pulse, EARLY_S)]
        waiting = [pulse for pulse in pulses if self._waits(pulse, WAITS_S)]
        slow = [pulse for pulse in pulses if self._begins(pulse, now)]
        still = [pulse for pulse in pulses if self._still(pulse, now)]
        self._waiting, self._attentive = bool(waiting), bool(early or slow or still)
        pids = {ranks[pulse.rank] for pulse in (*waiting, *slow)}
        found = await asyncio.to_thread(stalls, pids) if pids else {}
        return tuple(
            structs.replace(pulse, stalls=found[pulse.pid]) if pulse.pid in found else pulse
            for pulse in pulses
        )

    def _remember(self, ranks: Mapping[int, int]) -> None:
        self._known = {rank: known for rank, known in self._known.items() if ranks.get(rank) == known.pid}
        self.spy.keep(ranks.values())
        now = time.monotonic()
        for rank in ranks.keys() - self._known.keys():
            self._known[rank] = _Known(ranks[rank], now, *outside.meeting(ranks[rank]), moved=now, busy=now)
        if not ranks:
            self._attentive = self._waiting = False

    def _question(self) -> dict[str, Any]:
        """What the hooks are asked: the same of all, so that what they tell can be compared."""
        asked: dict[str, Any] = {"samples": SAMPLES if self._attentive else 1}
        slot = time.time() // WHOLE_S
        if self._waiting or slot != self._slot:
            asked |= {"whole": True, "sites": self._waiting}
        self._slot = slot
        return asked

    async def _one(self, rank: int, pid: int, asked: dict[str, Any]) -> Pulse:
        """A look at one rank; it takes ANSWER_S at most, and what a signal takes."""
        known, hook = self._known[rank], self._agent.hooks.by_rank.get(rank)
        answer = None if hook is None else await self._answer(hook, known, asked)
        seen, at = outside.look(pid), time.time()
        facts: dict[str, Any] = {
            "rank": rank,
            "at": at,
            "pid": pid,
            "state": seen.state,
            "read_bytes": seen.read_bytes,
            "written_bytes": seen.written_bytes,
        }
        given: dict[str, Any] = {"world_size": known.world_size, "master": known.master}
        if answer is not None:
            told = {key: value for key, value in answer.items() if value is not None}
            try:
                return msgspec.convert({**given, **told, **facts, "hook": True}, Pulse)
            except msgspec.ValidationError:
                pass  # whatever answers there is no hook of ours
        if hook is not None and known.silent > 1 and seen.state not in STOPPED:
            await self._signal(hook, known)
        stack = known.stack or self._from_outside(hook, known, seen)
        return Pulse(**facts, **given, stack=stack, cpu_s=seen.cpu_s, process_s=seen.process_s)

    def _from_outside(self, hook: Hook | None, known: _Known, seen: outside.Outside) -> tuple[Site, ...]:
        """The stack by py-spy, if it has one: of who is silent, and without a hook of who stands still, or anyone while
        a rank of this node waits.
        """
        now = time.monotonic()
        before, known.cpu_s = known.cpu_s, seen.cpu_s
        used = None if before is None or seen.cpu_s is None else seen.cpu_s - before
        if used is None or used > QUIET_SHARE * (now - known.looked):
            known.busy = now
        known.looked = now
        if hook is not None and hook.up:
            wanted = known.silent > 1
        else:
            wanted = now - known.since > STILL_S and (self._waiting or now - known.busy > STILL_S)
        return self.spy.sites(known.pid, wanted and seen.state not in STOPPED)

    async def _answer(self, hook: Hook, known: _Known, asked: dict[str, Any]) -> dict[str, Any] | None:
        """What the hook says; None when there is none, or it is silent."""
        try:
            answer = await hook.pulse(ANSWER_S, **asked)
        except HookError:
            known.silent = known.silent + 1 if hook.up else 0
            return None
        known.silent, known.signals, known.stack = 0, 0, ()
        return answer

    async def _signal(self, hook: Hook, known: _Known) -> None:
        """Have the rank write its stack, not too often; what it wrote last holds until it answers again."""
        now = time.monotonic()
        if now - known.signalled < (SIGNAL_S if known.signals < OFTEN else SELDOM_S):
            return
        known.signalled, known.signals = now, known.signals + 1
        with contextlib.suppress(HookError, OSError):
            known.stack = outside.sites(await hook.stacks_by_signal())

    def _waits(self, pulse: Pulse, seconds: float) -> bool:
        """Whether it is in a collective for longer, or silent."""
        return self._known[pulse.rank].silent > 0 or any(
            pulse.at - one.created > seconds for one in pulse.active
        )

    def _begins(self, pulse: Pulse, now: float) -> bool:
        """Whether it takes long to come to its first step or collective."""
        earliest, latest = BEGINS_S
        began = bool(pulse.step) or any(group.completed for group in pulse.groups)
        return earliest <= now - self._known[pulse.rank].since <= latest and not began

    def _still(self, pulse: Pulse, now: float) -> bool:
        """Whether it had collectives, and none is new."""
        known, enqueued = self._known[pulse.rank], sum(group.enqueued for group in pulse.groups)
        if enqueued != known.enqueued:
            known.enqueued, known.moved = enqueued, now
        return enqueued > 0 and now - known.moved > STILL_S
