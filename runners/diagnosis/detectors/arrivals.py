"""When each rank called the same collective: who comes last lets the others wait. Fed pulse by pulse, bounded.

On gloo the time of the call counts. NCCL's calls return at once, so there the time of the kernel counts: it spins on the
ranks that are early, and is shortest on the one that is last.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from ...model import Collective, Group, Pulse

ONE_WAY = ("broadcast", "scatter", "gather", "reduce", "send", "recv")
"""Collectives in which not every rank waits for every other."""
KEPT = 256
"""Collectives of a group that are kept."""
BUDGET = 16384
"""Entries of one round of pulses that are looked at, over all ranks; at least FEWEST of each rank."""
FEWEST = 16
OPEN = 128
"""Collectives of a group that wait for the word of further ranks."""
PIECE_S = 2.0
"""Length of a piece of time where steps are not known."""


class Met(NamedTuple):
    """One collective that every member has called."""

    seq: int
    first: float
    """Unix time of the earliest call."""
    last: float
    """Unix time of the latest call."""
    values: list[float]
    """By member: unix time of its call, or minus the seconds of its kernel; the greatest is that of the last one."""
    late: float
    """The greatest of `values`."""
    who: int
    """The member of that."""


class Piece(NamedTuple):
    """Collectives one after the other that make a step, or a piece of time."""

    seconds: float
    waits: tuple[Met, ...]
    """The collectives for which the members waited, each by itself."""
    calls: int
    ends: float
    """Unix time."""


class _Open:
    """A collective that not every member has told of."""

    __slots__ = ("at", "left", "values")

    def __init__(self, members: int) -> None:
        self.values: list[float | None] = [None] * members
        self.left = members
        self.at = 0.0
        """Unix time of one of the calls."""


@dataclass(slots=True)
class Meetings:
    """The collectives of one process group."""

    name: str
    members: Sequence[int]
    index: Mapping[int, int]
    timed: bool = False
    """Whether `values` are of kernels."""
    met: deque[Met] = field(default_factory=lambda: deque(maxlen=KEPT))
    opened: dict[int, _Open | None] = field(default_factory=dict)
    """None: of a kind in which not all wait for all."""
    closed: int = 0
    """Number of the newest collective that all have called."""
    counts: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=8))
    """Of the first member: optimizer steps and calls so far."""
    told: dict[int, tuple[int, int]] = field(default_factory=dict)
    """By member: calls and ends when it told last, so that what is not new costs nothing."""

    def add(self, entries: Iterable[Collective], member: int) -> None:
        """What a member tells of its calls, oldest first. The hot loop: 1,024 ranks come here at once."""
        opened, closed = self.opened, self.closed
        for entry in entries:
            seq = entry.seq
            if seq <= closed or entry.p2p:
                continue
            known = opened[seq] if seq in opened else self._open(entry)
            if known is None or known.values[member] is not None:
                continue
            value = entry.created if not self.timed else _kernel(entry)
            if value is None:
                continue
            known.values[member] = value
            known.left -= 1
            if not known.left:
                known.at = entry.created
                self._close(seq, known)

    def _open(self, entry: Collective) -> _Open | None:
        """A collective that nobody has told of before."""
        if len(self.opened) >= OPEN:
            del self.opened[min(self.opened)]
        self.timed = entry.started is not None
        made = _Open(len(self.members)) if _mutual(entry.op) else None
        self.opened[entry.seq] = made
        return made

    def _close(self, seq: int, known: _Open) -> None:
        """The last member has told."""
        del self.opened[seq]
        values = [one for one in known.values if one is not None]
        late = max(values)
        first, last = (known.at, known.at) if self.timed else (min(values), late)
        self.met.append(Met(seq, first, last, values, late, values.index(late)))
        self.closed = max(self.closed, seq)

    def restart(self) -> None:
        """The group was made anew, and counts from 1."""
        self.met.clear()
        self.opened.clear()
        self.counts.clear()
        self.told.clear()
        self.closed = 0

    @property
    def a_step(self) -> int | None:
        """Collectives that one optimizer step takes; None where steps are not known."""
        if len(self.counts) < 2:
            return None
        (steps, calls), (later, more) = self.counts[0], self.counts[-1]
        return max(1, round((more - calls) / (later - steps))) if later > steps and more > calls else None

    def pieces(self, margin: float) -> list[Piece]:
        """The steps that were seen, oldest first; where steps are not known, or too long, pieces of time.

        `margin`: seconds by which clocks may differ.
        """
        size = self.a_step
        found: list[Piece] = []
        for run in _runs(sorted(self.met)):
            found += self._cut(run, size, margin)
        return found

    def _cut(self, run: list[Met], size: int | None, margin: float) -> Iterable[Piece]:
        waits = frozenset(self._waits(run, margin))
        begin = 0
        for at in range(1, len(run)):
            seconds = run[at].last - run[begin].last
            full = seconds >= PIECE_S if size is None else at - begin == size
            rest = at == len(run) - 1 and begin == 0 and (size is None or size > at)
            if (full or rest) and seconds > 0:
                own = run[begin + 1 : at + 1]
                chosen = tuple(met for met in own if met.seq in waits)
                yield Piece(seconds, chosen, len(own), run[at].last)
                begin = at

    def _waits(self, run: list[Met], margin: float) -> Iterable[int]:
        """Numbers of the collectives for which members really waited.

        Who calls the next one before the last rank has called this one does not wait for this one: buckets of
        gradients go out one after the other, and only the last of them is waited for.
        """
        for met, following in pairwise(run):
            if self.timed or following.first >= met.last - margin:
                yield met.seq
        yield run[-1].seq


def _runs(met: list[Met]) -> Iterable[list[Met]]:
    """What follows each other without a gap."""
    run: list[Met] = []
    for one in met:
        if run and one.seq != run[-1].seq + 1:
            yield run
            run = []
        run.append(one)
    if run:
        yield run


class Arrivals:
    """What the pulses of an attempt say about calls; give it every pulse once."""

    def __init__(self) -> None:
        self._groups: dict[tuple[str, int, int, int], Meetings] = {}

    @classmethod
    def of(cls, history: Mapping[int, Sequence[Pulse]], world: int) -> Arrivals:
        """From pulses that are kept."""
        made = cls()
        rounds = sorted((pulse for pulses in history.values() for pulse in pulses), key=lambda one: one.at)
        for pulse in rounds:
            made.add(pulse, world)
        return made

    @property
    def groups(self) -> Iterable[Meetings]:
        return self._groups.values()

    def add(self, pulse: Pulse, world: int) -> None:
        """A further pulse; `world`: ranks of the attempt."""
        if not pulse.recent:
            return
        most = max(FEWEST, BUDGET // max(1, world))
        for group in pulse.groups:
            if (found := self._of(group, pulse, world)) is not None:
                entries = (*pulse.recent[-most:], *pulse.active)
                alone = len(pulse.groups) == 1
                own = entries if alone else [one for one in entries if one.group == group.name]
                found[0].add(own, found[1])

    def _of(self, group: Group, pulse: Pulse, world: int) -> tuple[Meetings, int] | None:
        """The meetings of a group, and the rank's place in it; None where there is nothing new."""
        ranks: Sequence[int] = group.ranks or (range(world) if group.name in ("", "0") else ())
        if len(ranks) < 2:
            return None
        key = group.name, len(ranks), ranks[0], ranks[-1]
        known = self._groups.get(key)
        if known is None:
            known = Meetings(group.name, ranks, {rank: at for at, rank in enumerate(ranks)})
            self._groups[key] = known
        member = known.index.get(pulse.rank)
        if member is None:
            return None
        if group.enqueued < known.closed:
            known.restart()
        elif known.told.get(member) == (group.enqueued, group.completed):
            return None
        known.told[member] = group.enqueued, group.completed
        if member == 0 and pulse.step is not None:
            known.counts.append((pulse.step, group.enqueued))
        return known, member


def _mutual(op: str) -> bool:
    """Whether every rank waits for every other in it."""
    plain = op.lstrip("_").lower()
    return plain.startswith("reduce_scatter") or not plain.startswith(ONE_WAY)


def _kernel(entry: Collective) -> float | None:
    """Minus the seconds of the kernel; None where they are not known, or not yet."""
    return -entry.duration_ms / 1000 if entry.done and entry.duration_ms is not None else None
