"""Who waits in which collective, who is missing there, and for whom those wait in turn."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ...model import Collective, ProcessGroup, Pulse, RankPhase
from . import arrivals, naming
from .naming import Kind
from .view import View

WAIT_S, MOST_S, GAPS = 8.0, 20.0, 5.0
"""A collective waits when it is older than GAPS times the usual gap between two, but within these bounds."""
FRESH_S = 2.0
"""A look at a missing rank counts when it was taken so long after the others began to wait."""
DEFAULT = "0"
ENDED = (RankPhase.SUCCEEDED, RankPhase.FAILED, RankPhase.KILLED, RankPhase.STOPPED, RankPhase.LOST)


class Key(NamedTuple):
    """A group: names alone may be equal for different ranks, and all ranks of a large group are slow to compare."""

    name: str
    size: int = 0
    """0: the ranks are not told."""
    first: int = 0
    last: int = 0


def key_of(group: ProcessGroup) -> Key:
    """The key of a group as a rank tells of it."""
    ranks = group.ranks
    return Key(group.name, len(ranks), ranks[0], ranks[-1]) if ranks else Key(group.name)


class RankWait(NamedTuple):
    """One rank in one collective that does not end."""

    rank: int
    key: Key
    call: Collective
    age: float
    """Seconds, by the rank's own clock."""
    recorded: bool = True
    """False where only the stack tells."""


class WaitPoint(NamedTuple):
    """Where ranks wait for each other: one collective of one group."""

    key: Key
    seq: int
    op: str = ""
    """Of sends, receives and what only stacks tell of: they have no number that ranks share."""


@dataclass(slots=True)
class Pending:
    """The ranks that wait at one point."""

    point: WaitPoint
    waits: dict[int, RankWait] = field(default_factory=dict)
    members: tuple[int, ...] = ()
    missing: tuple[int, ...] = ()
    """Members that have not called it; () where it has no number."""
    desc: str = ""
    since: float = 0.0
    """Unix time at which the first of them called it."""
    age: float = 0.0
    """Seconds that the first of them has waited, by its own clock."""

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(sorted(self.waits))

    @property
    def call(self) -> Collective:
        """As the lowest rank called it."""
        return self.waits[min(self.waits)].call

    @property
    def numbered(self) -> bool:
        return not self.point.op


@dataclass(slots=True)
class Waits:
    """All of it."""

    pending: dict[WaitPoint, Pending] = field(default_factory=dict)
    of: dict[int, RankWait] = field(default_factory=dict)
    """By rank."""
    called: dict[Key, dict[int, int]] = field(default_factory=dict)
    """Number of the collective that each rank called last, by group."""


def last_answer(pulses: Sequence[Pulse]) -> Pulse | None:
    """The newest pulse that the rank's hook gave."""
    return next((pulse for pulse in reversed(pulses) if pulse.hook), None)


def ended(view: View, rank: int) -> bool:
    """Whether the process of a rank has ended."""
    state = view.state.ranks.get(rank)
    return state is not None and state.phase in ENDED


def collect(view: View) -> Waits:
    """Everybody who waits. Cheap while nobody does."""
    waiting = Waits()
    for rank, pulses in view.history.items():
        wait = None if ended(view, rank) else _wait(rank, pulses)
        if wait is not None:
            waiting.of[rank] = wait
    if any(wait.age >= WAIT_S for wait in waiting.of.values()):
        waiting.called = _called(view)
        _meet(view, waiting)
    return waiting


def _wait(rank: int, pulses: Sequence[Pulse]) -> RankWait | None:
    answer = last_answer(pulses)
    if answer is None:
        return None
    groups = {group.name: group for group in answer.groups}
    for call in answer.active:  # oldest first
        group = groups.get(call.group)
        if call.done or (group is not None and not call.p2p and group.completed >= call.seq):
            continue
        key = key_of(group) if group is not None else Key(call.group)
        return RankWait(rank, key, call, pulses[-1].at - call.created)
    return _by_stack(rank, pulses)


def _by_stack(rank: int, pulses: Sequence[Pulse]) -> RankWait | None:
    """What no recorder tells of: sends and receives of gloo, barriers with a monitor, a torch without a recorder."""
    newest = pulses[-1]
    if not newest.hook or not naming.distributed(newest.stack):
        return None
    since = arrivals.still_since(pulses)
    if newest.at - since < WAIT_S:
        return None
    place = naming.place(newest.stack)
    if place.kind is not Kind.COLLECTIVE:
        return None
    sites = naming.users(newest.stack) if place.site is not None else ()
    call = Collective(group=DEFAULT, seq=0, op=place.op, created=since, sites=sites, p2p=True)
    return RankWait(rank, Key(DEFAULT), call, newest.at - since, recorded=False)


def patience(pulses: Iterable[Pulse]) -> float:
    """Seconds from which a collective of this rank waits."""
    made = sorted({call.created for pulse in pulses for call in pulse.recent})
    gaps = [after - before for before, after in itertools.pairwise(made)]
    usual = statistics.median(gaps) if len(gaps) >= 4 else 0.0
    return max(WAIT_S, min(GAPS * usual, MOST_S))


def _called(view: View) -> dict[Key, dict[int, int]]:
    numbers: dict[Key, dict[int, int]] = {}
    for rank, pulses in view.history.items():
        answer = last_answer(pulses)
        if answer is None:
            continue
        keys = {group.name: key_of(group) for group in answer.groups}
        for group in answer.groups:
            numbers.setdefault(keys[group.name], {})[rank] = group.enqueued
        calls = answer.active if answer.groups else (*answer.recent, *answer.active)
        for call in calls:
            if not call.p2p:
                by_rank = numbers.setdefault(keys.get(call.group, Key(call.group)), {})
                by_rank[rank] = max(by_rank.get(rank, 0), call.seq)
    return numbers


def _meet(view: View, waiting: Waits) -> None:
    for wait in waiting.of.values():
        call = wait.call
        point = WaitPoint(wait.key, 0, call.op) if call.p2p else WaitPoint(wait.key, call.seq)
        waiting.pending.setdefault(point, Pending(point)).waits[wait.rank] = wait
    for point, pending in list(waiting.pending.items()):
        pending.since = min(wait.call.created for wait in pending.waits.values())
        pending.age = max(wait.age for wait in pending.waits.values())
        limit = min(patience(view.history[rank]) for rank in list(pending.waits)[:4])
        if pending.age < limit:
            del waiting.pending[point]
            continue
        called = waiting.called.get(point.key, {})
        pending.members = _members(view, pending, called)
        pending.desc = _desc(view, pending)
        if pending.numbered:
            pending.missing = tuple(rank for rank in pending.members if called.get(rank, 0) < point.seq)


def _members(view: View, pending: Pending, called: Mapping[int, int]) -> tuple[int, ...]:
    key = pending.point.key
    if key.size:
        answer = last_answer(view.history[min(pending.waits)])
        groups = answer.groups if answer is not None else ()
        return next((group.ranks for group in groups if key_of(group) == key), ())
    return tuple(sorted(view.state.ranks if key.name.partition("/")[0] == DEFAULT else called))


def _desc(view: View, pending: Pending) -> str:
    name = pending.point.key.name
    answer = last_answer(view.history[min(pending.waits)])
    group: ProcessGroup | None = (
        next((group for group in answer.groups if group.name == name), None) if answer else None
    )
    if group is not None and group.desc and group.desc != "undefined":
        return group.desc
    return "default_pg" if name == DEFAULT else f"group {name}"


class Ends(NamedTuple):
    """Where the chains of waiting ranks end."""

    culprits: dict[int, tuple[Pending, ...]]
    """Ranks that wait for nobody, and the collectives that wait for them, the nearest first."""
    joined: tuple[Pending, ...]
    """Numbered collectives that nobody is missing from."""
    loose: tuple[Pending, ...]
    """Sends, receives and what only stacks tell of: for whom they wait is not known."""
    circles: tuple[tuple[Pending, ...], ...]
    """Collectives that wait for each other."""
    before: Mapping[WaitPoint, tuple[Pending, ...]]
    """Collectives that some rank of this one is missing from."""

    def leading(self, blocked: Iterable[Pending]) -> list[Pending]:
        """These and all that wait for them, the nearest first."""
        by_point = {pending.point: pending for pending in blocked}
        todo = list(by_point.values())
        for pending in todo:
            for further in self.before.get(pending.point, ()):
                if further.point not in by_point:
                    by_point[further.point] = further
                    todo.append(further)
        return todo


def ends(waiting: Waits) -> Ends:
    """Follow who waits for whom to the end. Linear in what is missing."""
    nearest: dict[int, list[Pending]] = {}
    joined: list[Pending] = []
    loose: list[Pending] = []
    after: dict[WaitPoint, list[WaitPoint]] = {}
    for point, pending in waiting.pending.items():
        if not pending.numbered:
            loose.append(pending)
        elif not pending.missing:
            joined.append(pending)
        further_on: dict[WaitPoint, None] = {}
        for rank in pending.missing:
            further = _onward(waiting, rank, point)
            if further is None:
                nearest.setdefault(rank, []).append(pending)
            else:
                further_on[further] = None
        after[point] = list(further_on)
    before: dict[WaitPoint, list[Pending]] = {}
    for point, onward in after.items():
        for further in onward:
            before.setdefault(further, []).append(waiting.pending[point])
    return Ends(
        {rank: tuple(blocked) for rank, blocked in nearest.items()},
        tuple(joined),
        tuple(loose),
        tuple(tuple(waiting.pending[point] for point in circle) for circle in _circles(after)),
        {point: tuple(blocked) for point, blocked in before.items()},
    )


def _onward(waiting: Waits, rank: int, point: WaitPoint) -> WaitPoint | None:
    """The point at which a missing rank waits itself."""
    wait = waiting.of.get(rank)
    if wait is None:
        return None
    further = WaitPoint(wait.key, 0, wait.call.op) if wait.call.p2p else WaitPoint(wait.key, wait.call.seq)
    return further if further in waiting.pending and further != point else None


def _circles(after: Mapping[WaitPoint, Sequence[WaitPoint]]) -> list[tuple[WaitPoint, ...]]:
    """Cycles of the wait-for graph, each reported once."""
    circles: list[tuple[WaitPoint, ...]] = []
    settled: set[WaitPoint] = set()
    for start in after:
        walk: dict[WaitPoint, int] = {}
        path: list[tuple[WaitPoint, int]] = [(start, 0)]
        while path:
            point, way = path.pop()
            if way == 0:
                if point in settled:
                    continue
                walk[point] = len(walk)
            if way < len(after[point]):
                path.append((point, way + 1))
                following = after[point][way]
                if following in walk:
                    circles.append(tuple(stop for stop in walk if walk[stop] >= walk[following]))
                elif following not in settled:
                    path.append((following, 0))
            else:
                settled.add(point)
                walk.pop(point, None)
    return circles
