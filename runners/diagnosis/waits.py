"""Collect waiting ranks, and follow them from collective to collective to the end of the chain."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ..run.model import RankPhase
from ..run.pulse import Collective, ProcessGroup, Pulse
from . import activity
from .activity import Kind
from .rank_dumps import DEFAULT
from .view import View

WAIT_S, MOST_S, GAPS = 8.0, 20.0, 5.0
"""A collective waits if it is older than GAPS times the usual gap between two, within these bounds."""
ENDED = (
    RankPhase.SUCCEEDED,
    RankPhase.FAILED,
    RankPhase.KILLED,
    RankPhase.STOPPED,
    RankPhase.LOST,
    RankPhase.ENDED,
)


class Key(NamedTuple):
    """A group. Names may repeat for different ranks, and comparing all ranks of a large group is slow."""

    name: str
    size: int = 0
    """0 if its ranks are unknown."""
    first: int = 0
    last: int = 0


def key_of(group: ProcessGroup) -> Key:
    """Return the key of a group, as a rank reports it."""
    ranks = group.ranks
    return Key(group.name, len(ranks), ranks[0], ranks[-1]) if ranks else Key(group.name)


class RankWait(NamedTuple):
    """One rank in one collective that does not complete."""

    rank: int
    key: Key
    call: Collective
    age: float
    """Seconds on the rank's own clock."""
    recorded: bool = True
    """False if only the stack or the counters show it, not the flight recorder."""


class WaitPoint(NamedTuple):
    """A meeting point of waiting ranks: one collective of one group."""

    key: Key
    seq: int
    op: str = ""
    """Operation of a send, receive or call without a sequence number that ranks share, else ""."""


@dataclass(slots=True)
class Pending:
    """The ranks that wait at one point."""

    point: WaitPoint
    waits: dict[int, RankWait] = field(default_factory=dict)
    members: tuple[int, ...] = ()
    missing: tuple[int, ...] = ()
    """Members that have not called it; () if the point has no number."""
    desc: str = ""
    since: float = 0.0
    """Unix time of the first rank's call."""
    age: float = 0.0
    """Seconds that the first rank has waited, on its own clock."""

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(sorted(self.waits))

    @property
    def call(self) -> Collective:
        """The call as the lowest rank made it."""
        return self.waits[min(self.waits)].call

    @property
    def numbered(self) -> bool:
        return not self.point.op


@dataclass(slots=True)
class Waits:
    pending: dict[WaitPoint, Pending] = field(default_factory=dict)
    of: dict[int, RankWait] = field(default_factory=dict)
    """Each waiting rank's wait."""
    called: dict[Key, dict[int, int]] = field(default_factory=dict)
    """Sequence number of each rank's last collective, by group and rank."""


def waiting_ranks(blocked: Iterable[Pending]) -> list[int]:
    """All ranks that wait at these points."""
    return sorted(set[int]().union(*(pending.waits for pending in blocked)))


def last_answer(pulses: Sequence[Pulse]) -> Pulse | None:
    """Return the newest pulse from the rank's hook."""
    return next((pulse for pulse in reversed(pulses) if pulse.hook), None)


def ended(view: View, rank: int) -> bool:
    state = view.state.ranks.get(rank)
    return state is not None and state.phase in ENDED


def collect(view: View) -> Waits:
    """Collect all waiting ranks. Cheap if no rank waits."""
    waiting = Waits()
    for rank, pulses in view.history.items():
        wait = None if ended(view, rank) else _wait(rank, pulses)
        if wait is not None:
            waiting.of[rank] = wait
    for wait in _by_counts(view):
        waiting.of.setdefault(wait.rank, wait)
    if any(wait.age >= WAIT_S for wait in waiting.of.values()):
        waiting.called = _called(view)
        _meet(view, waiting)
    return waiting


def _wait(rank: int, pulses: Sequence[Pulse]) -> RankWait | None:
    answer = last_answer(pulses)
    if answer is None or pulses[-1].leaving:
        return None
    call = activity.open_call(answer)
    if call is None:
        return _by_stack(rank, pulses)
    group = next((group for group in answer.groups if group.name == call.group), None)
    key = key_of(group) if group is not None else Key(call.group)
    return RankWait(rank, key, call, pulses[-1].at - call.created)


def _by_stack(rank: int, pulses: Sequence[Pulse]) -> RankWait | None:
    """Find waits without a record: gloo's sends and receives, monitored barriers, a torch without a recorder."""
    newest = pulses[-1]
    backward = newest.recorder is False and activity.in_backward(newest.stack)
    reducing = backward and activity.asleep_s(pulses) >= WAIT_S
    if not newest.hook or not (reducing or activity.may_wait_in_distributed(newest.stack)):
        return None
    since = activity.still_since(pulses)
    if newest.at - since < WAIT_S:
        return None
    place = activity.position_of(newest.stack)
    if not reducing and place.kind is not Kind.COLLECTIVE:
        return None
    sites = activity.telling_frames(newest.stack) if place.site is not None else ()
    op = place.op or "backward"
    call = Collective(group=DEFAULT, seq=0, op=op, created=since, sites=sites, p2p=True)
    return RankWait(rank, Key(DEFAULT), call, newest.at - since, recorded=False)


def _by_counts(view: View) -> Iterable[RankWait]:
    """Find waits in groups that torch only counts: a still rank with more calls than another member."""
    for key, called in _counted(view).items():
        is_whole = len(called) >= (key.size or len(view.state.ranks))
        least = min(called.values()) if is_whole else 0
        for rank, count in called.items():
            since = activity.still_since(view.history[rank])
            newest = view.history[rank][-1]
            if count > least and newest.at - since >= WAIT_S and not ended(view, rank):
                sites = activity.telling_frames(newest.stack)
                call = Collective(group=key.name, seq=count, op="collective", created=since, sites=sites)
                yield RankWait(rank, key, call, newest.at - since, recorded=False)


def _counted(view: View) -> dict[Key, dict[int, int]]:
    """Return each rank's number of calls in the groups that torch only counts."""
    counts: dict[Key, dict[int, int]] = {}
    for rank, pulses in view.history.items():
        answer = last_answer(pulses)
        for group in answer.groups if answer is not None else ():
            if group.completed < 0:
                counts.setdefault(key_of(group), {})[rank] = group.enqueued
    return counts


def patience(pulses: Iterable[Pulse]) -> float:
    """Seconds before a collective of this rank counts as waiting."""
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
    """The ends of the chains of waiting ranks."""

    culprits: Mapping[int, Sequence[Pending]]
    """Ranks that do not wait, and the collectives that wait for them, the nearest first."""
    joined: Sequence[Pending]
    """Numbered collectives that every member has called."""
    loose: Sequence[Pending]
    """Sends, receives and calls without a number. The rank that they wait for is unknown."""
    circles: Sequence[Sequence[Pending]]
    """Collectives that wait for each other."""
    before: Mapping[WaitPoint, Sequence[Pending]]
    """The collectives that wait for a rank that is inside this one."""

    def leading(self, blocked: Iterable[Pending]) -> list[Pending]:
        """Return these collectives and all that wait for them, the nearest first."""
        by_point = {pending.point: pending for pending in blocked}
        todo = list(by_point.values())
        for pending in todo:
            for further in self.before.get(pending.point, ()):
                if further.point not in by_point:
                    by_point[further.point] = further
                    todo.append(further)
        return todo


def ends(waiting: Waits) -> Ends:
    """Follow the wait chain to its end. O(number of missing ranks)."""
    nearest: dict[int, list[Pending]] = {}
    after: dict[WaitPoint, list[WaitPoint]] = {}
    before: dict[WaitPoint, list[Pending]] = {}
    for point, pending in waiting.pending.items():
        onward: dict[WaitPoint, None] = {}
        for rank in pending.missing:
            further = _onward(waiting, rank, point)
            if further is None:
                nearest.setdefault(rank, []).append(pending)
            elif further not in onward:
                onward[further] = None
                before.setdefault(further, []).append(pending)
        after[point] = list(onward)
    circles = [[waiting.pending[point] for point in circle] for circle in _circles(after)]
    return Ends(
        nearest,
        [each for each in waiting.pending.values() if each.numbered and not each.missing],
        [each for each in waiting.pending.values() if not each.numbered],
        circles,
        before,
    )


def _onward(waiting: Waits, rank: int, point: WaitPoint) -> WaitPoint | None:
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
