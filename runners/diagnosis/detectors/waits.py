"""Who waits in which collective, who is missing there, and for whom those wait in turn."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ...model import Collective, ProcessGroup, Pulse, RankPhase
from . import arrivals, people
from .people import Kind
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


class Spot(NamedTuple):
    """Where ranks wait for each other: one collective of one group."""

    key: Key
    seq: int
    op: str = ""
    """Of sends, receives and what only stacks tell of: they have no number that ranks share."""


@dataclass(slots=True)
class Meeting:
    """The ranks that wait at one spot."""

    spot: Spot
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
        return not self.spot.op


@dataclass(slots=True)
class Waits:
    """All of it."""

    meetings: dict[Spot, Meeting] = field(default_factory=dict)
    of: dict[int, RankWait] = field(default_factory=dict)
    """By rank."""
    called: dict[Key, dict[int, int]] = field(default_factory=dict)
    """Number of the collective that each rank called last, by group."""


def last_answer(pulses: Sequence[Pulse]) -> Pulse | None:
    """The newest pulse that the rank's hook gave."""
    return next((one for one in reversed(pulses) if one.hook), None)


def ended(view: View, rank: int) -> bool:
    """Whether the process of a rank has ended."""
    known = view.state.ranks.get(rank)
    return known is not None and known.phase in ENDED


def look(view: View) -> Waits:
    """Everybody who waits. Cheap while nobody does."""
    found = Waits()
    for rank, pulses in view.history.items():
        wait = None if ended(view, rank) else _wait(rank, pulses)
        if wait is not None:
            found.of[rank] = wait
    if any(wait.age >= WAIT_S for wait in found.of.values()):
        found.called = _called(view)
        _meet(view, found)
    return found


def _wait(rank: int, pulses: Sequence[Pulse]) -> RankWait | None:
    told = last_answer(pulses)
    if told is None:
        return None
    groups = {group.name: group for group in told.groups}
    for call in told.active:  # oldest first
        group = groups.get(call.group)
        if call.done or (group is not None and not call.p2p and group.completed >= call.seq):
            continue
        key = key_of(group) if group is not None else Key(call.group)
        return RankWait(rank, key, call, pulses[-1].at - call.created)
    return _by_stack(rank, pulses)


def _by_stack(rank: int, pulses: Sequence[Pulse]) -> RankWait | None:
    """What no recorder tells of: sends and receives of gloo, barriers with a monitor, a torch without a recorder."""
    newest = pulses[-1]
    if not newest.hook or not people.distributed(newest.stack):
        return None
    since = arrivals.still_since(pulses)
    if newest.at - since < WAIT_S:
        return None
    place = people.place(newest.stack)
    if place.kind is not Kind.COLLECTIVE:
        return None
    sites = people.users(newest.stack) if place.site is not None else ()
    call = Collective(group=DEFAULT, seq=0, op=place.op, created=since, sites=sites, p2p=True)
    return RankWait(rank, Key(DEFAULT), call, newest.at - since, recorded=False)


def patience(pulses: Iterable[Pulse]) -> float:
    """Seconds from which a collective of this rank waits."""
    made = sorted({call.created for one in pulses for call in one.recent})
    gaps = [after - before for before, after in itertools.pairwise(made)]
    usual = statistics.median(gaps) if len(gaps) >= 4 else 0.0
    return max(WAIT_S, min(GAPS * usual, MOST_S))


def _called(view: View) -> dict[Key, dict[int, int]]:
    found: dict[Key, dict[int, int]] = {}
    for rank, pulses in view.history.items():
        told = last_answer(pulses)
        if told is None:
            continue
        keys = {group.name: key_of(group) for group in told.groups}
        for group in told.groups:
            found.setdefault(keys[group.name], {})[rank] = group.enqueued
        calls = told.active if told.groups else (*told.recent, *told.active)
        for call in calls:
            if not call.p2p:
                known = found.setdefault(keys.get(call.group, Key(call.group)), {})
                known[rank] = max(known.get(rank, 0), call.seq)
    return found


def _meet(view: View, found: Waits) -> None:
    for wait in found.of.values():
        call = wait.call
        spot = Spot(wait.key, 0, call.op) if call.p2p else Spot(wait.key, call.seq)
        found.meetings.setdefault(spot, Meeting(spot)).waits[wait.rank] = wait
    for spot, meeting in list(found.meetings.items()):
        meeting.since = min(wait.call.created for wait in meeting.waits.values())
        meeting.age = max(wait.age for wait in meeting.waits.values())
        limit = min(patience(view.history[rank]) for rank in list(meeting.waits)[:4])
        if meeting.age < limit:
            del found.meetings[spot]
            continue
        called = found.called.get(spot.key, {})
        meeting.members = _members(view, meeting, called)
        meeting.desc = _desc(view, meeting)
        if meeting.numbered:
            meeting.missing = tuple(rank for rank in meeting.members if called.get(rank, 0) < spot.seq)


def _members(view: View, meeting: Meeting, called: Mapping[int, int]) -> tuple[int, ...]:
    key = meeting.spot.key
    if key.size:
        told = last_answer(view.history[min(meeting.waits)])
        groups = told.groups if told is not None else ()
        return next((group.ranks for group in groups if key_of(group) == key), ())
    return tuple(sorted(view.state.ranks if key.name.partition("/")[0] == DEFAULT else called))


def _desc(view: View, meeting: Meeting) -> str:
    name = meeting.spot.key.name
    told = last_answer(view.history[min(meeting.waits)])
    group: ProcessGroup | None = (
        next((one for one in told.groups if one.name == name), None) if told else None
    )
    if group is not None and group.desc and group.desc != "undefined":
        return group.desc
    return "default_pg" if name == DEFAULT else f"group {name}"


class Ends(NamedTuple):
    """Where the chains of waiting ranks end."""

    culprits: dict[int, tuple[Meeting, ...]]
    """Ranks that wait for nobody, and the meetings that wait for them, the nearest first."""
    joined: tuple[Meeting, ...]
    """Numbered meetings that nobody is missing from."""
    loose: tuple[Meeting, ...]
    """Sends, receives and what only stacks tell of: for whom they wait is not known."""
    circles: tuple[tuple[Meeting, ...], ...]
    """Meetings that wait for each other."""
    before: Mapping[Spot, tuple[Meeting, ...]]
    """Meetings that some rank of this one is missing from."""

    def leading(self, meetings: Iterable[Meeting]) -> list[Meeting]:
        """These and all that wait for them, the nearest first."""
        found = {one.spot: one for one in meetings}
        todo = list(found.values())
        for one in todo:
            for further in self.before.get(one.spot, ()):
                if further.spot not in found:
                    found[further.spot] = further
                    todo.append(further)
        return todo


def ends(found: Waits) -> Ends:
    """Follow who waits for whom to the end. Linear in what is missing."""
    nearest: dict[int, list[Meeting]] = {}
    joined: list[Meeting] = []
    loose: list[Meeting] = []
    after: dict[Spot, list[Spot]] = {}
    for spot, meeting in found.meetings.items():
        if not meeting.numbered:
            loose.append(meeting)
        elif not meeting.missing:
            joined.append(meeting)
        further_on: dict[Spot, None] = {}
        for rank in meeting.missing:
            further = _onward(found, rank, spot)
            if further is None:
                nearest.setdefault(rank, []).append(meeting)
            else:
                further_on[further] = None
        after[spot] = list(further_on)
    before: dict[Spot, list[Meeting]] = {}
    for spot, onward in after.items():
        for further in onward:
            before.setdefault(further, []).append(found.meetings[spot])
    return Ends(
        {rank: tuple(meetings) for rank, meetings in nearest.items()},
        tuple(joined),
        tuple(loose),
        tuple(tuple(found.meetings[spot] for spot in circle) for circle in _circles(after)),
        {spot: tuple(meetings) for spot, meetings in before.items()},
    )


def _onward(found: Waits, rank: int, spot: Spot) -> Spot | None:
    """The meeting in which a missing rank waits itself."""
    wait = found.of.get(rank)
    if wait is None:
        return None
    further = Spot(wait.key, 0, wait.call.op) if wait.call.p2p else Spot(wait.key, wait.call.seq)
    return further if further in found.meetings and further != spot else None


def _circles(after: Mapping[Spot, Sequence[Spot]]) -> list[tuple[Spot, ...]]:
    """Circles, each told once: where a walk along the first open way comes back to itself."""
    found: list[tuple[Spot, ...]] = []
    settled: set[Spot] = set()
    for start in after:
        walk: dict[Spot, int] = {}
        path: list[tuple[Spot, int]] = [(start, 0)]
        while path:
            spot, way = path.pop()
            if way == 0:
                if spot in settled:
                    continue
                walk[spot] = len(walk)
            if way < len(after[spot]):
                path.append((spot, way + 1))
                following = after[spot][way]
                if following in walk:
                    found.append(tuple(one for one in walk if walk[one] >= walk[following]))
                elif following not in settled:
                    path.append((following, 0))
            else:
                settled.add(spot)
                walk.pop(spot, None)
    return found
