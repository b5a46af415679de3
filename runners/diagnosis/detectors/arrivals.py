"""When each rank called the same collective, and how far each rank has come."""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from ...model import Collective, ProcessGroup, Pulse, Site
from . import naming
from .naming import Kind, RankPosition

# -----------------------------------------------------------------------------------------------------------
# When each rank called the same collective: who comes last lets the others wait. Fed pulse by pulse, bounded.
# On gloo the time of the call counts. NCCL's calls return at once, so there the time of the kernel counts:
# it spins on the ranks that are early, and is shortest on the one that is last.


ASYMMETRIC = ("broadcast", "scatter", "gather", "reduce", "send", "recv")
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


class _OpenCollective:
    """A collective that not every member has told of."""

    __slots__ = ("at", "left", "values")

    def __init__(self, members: int) -> None:
        self.values: list[float | None] = [None] * members
        self.left = members
        self.at = 0.0
        """Unix time of one of the calls."""


@dataclass(slots=True)
class GroupArrivals:
    """The collectives of one process group."""

    name: str
    members: Sequence[int]
    index: Mapping[int, int]
    timed: bool = False
    """Whether `values` are of kernels."""
    met: deque[Met] = field(default_factory=lambda: deque(maxlen=KEPT))
    opened: dict[int, _OpenCollective | None] = field(default_factory=dict)
    """None: of a kind in which not all wait for all."""
    closed: int = 0
    """Number of the newest collective that all have called."""
    counts: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=8))
    """Of the first member: optimizer steps and calls so far."""
    progress: dict[int, tuple[int, int]] = field(default_factory=dict)
    """By member: calls and ends when it told last, so that what is not new costs nothing."""

    def add(self, entries: Iterable[Collective], member: int) -> None:
        """What a member tells of its calls, oldest first. The hot loop: 1,024 ranks come here at once."""
        opened, closed = self.opened, self.closed
        for entry in entries:
            seq = entry.seq
            if seq <= closed or entry.p2p:
                continue
            open_call = opened[seq] if seq in opened else self._open(entry)
            if open_call is None or open_call.values[member] is not None:
                continue
            value = entry.created if not self.timed else _kernel(entry)
            if value is None:
                continue
            open_call.values[member] = value
            open_call.left -= 1
            if not open_call.left:
                open_call.at = entry.created
                self._close(seq, open_call)

    def _open(self, entry: Collective) -> _OpenCollective | None:
        """A collective that nobody has told of before."""
        if len(self.opened) >= OPEN:
            del self.opened[min(self.opened)]
        self.timed = entry.started is not None
        made = _OpenCollective(len(self.members)) if _mutual(entry.op) else None
        self.opened[entry.seq] = made
        return made

    def _close(self, seq: int, open_call: _OpenCollective) -> None:
        """The last member has told."""
        del self.opened[seq]
        values = [value for value in open_call.values if value is not None]
        late = max(values)
        first, last = (open_call.at, open_call.at) if self.timed else (min(values), late)
        self.met.append(Met(seq, first, last, values, late, values.index(late)))
        self.closed = max(self.closed, seq)

    def restart(self) -> None:
        """The group was made anew, and counts from 1."""
        self.met.clear()
        self.opened.clear()
        self.counts.clear()
        self.progress.clear()
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
        pieces: list[Piece] = []
        for run in _runs(sorted(self.met)):
            pieces += self._cut(run, size, margin)
        return pieces

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
    for current in met:
        if run and current.seq != run[-1].seq + 1:
            yield run
            run = []
        run.append(current)
    if run:
        yield run


class Arrivals:
    """What the pulses of an attempt say about calls; give it every pulse once."""

    def __init__(self) -> None:
        self._groups: dict[tuple[str, int, int, int], GroupArrivals] = {}

    @classmethod
    def of(cls, history: Mapping[int, Sequence[Pulse]], world: int) -> Arrivals:
        """From pulses that are kept."""
        made = cls()
        kept = [pulse for pulses in history.values() for pulse in pulses]
        for pulse in sorted(kept, key=lambda pulse: pulse.at):
            made.add(pulse, world)
        return made

    @property
    def groups(self) -> Iterable[GroupArrivals]:
        return self._groups.values()

    def add(self, pulse: Pulse, world: int) -> None:
        """A further pulse; `world`: ranks of the attempt."""
        if not pulse.recent:
            return
        most = max(FEWEST, BUDGET // max(1, world))
        for group in pulse.groups:
            if (placed := self._of(group, pulse, world)) is not None:
                entries = (*pulse.recent[-most:], *pulse.active)
                alone = len(pulse.groups) == 1
                own = entries if alone else [entry for entry in entries if entry.group == group.name]
                placed[0].add(own, placed[1])

    def _of(self, group: ProcessGroup, pulse: Pulse, world: int) -> tuple[GroupArrivals, int] | None:
        """The arrivals of a group, and the rank's place in it; None where there is nothing new."""
        ranks: Sequence[int] = group.ranks or (range(world) if group.name in ("", "0") else ())
        if len(ranks) < 2:
            return None
        key = group.name, len(ranks), ranks[0], ranks[-1]
        arrivals = self._groups.get(key)
        if arrivals is None:
            arrivals = GroupArrivals(group.name, ranks, {rank: at for at, rank in enumerate(ranks)})
            self._groups[key] = arrivals
        member = arrivals.index.get(pulse.rank)
        if member is None:
            return None
        if group.enqueued < arrivals.closed:
            arrivals.restart()
        elif arrivals.progress.get(member) == (group.enqueued, group.completed):
            return None
        arrivals.progress[member] = group.enqueued, group.completed
        if member == 0 and pulse.step is not None:
            arrivals.counts.append((pulse.step, group.enqueued))
        return arrivals, member


def _mutual(op: str) -> bool:
    """Whether every rank waits for every other in it."""
    plain = op.lstrip("_").lower()
    return plain.startswith("reduce_scatter") or not plain.startswith(ASYMMETRIC)


def _kernel(entry: Collective) -> float | None:
    """Minus the seconds of the kernel; None where they are not known, or not yet."""
    return -entry.duration_ms / 1000 if entry.done and entry.duration_ms is not None else None


# -----------------------------------------------------------------------------------------------------------
# Whether a rank gets on: from its newest pulses, judged with care, because many ways to be busy look like idling.


ASLEEP_SHARE, DOZES_SHARE = 0.003, 0.02
"""Of one core: what the main thread of a sleeping rank uses at most; and of one that looks for something again and
again, or does slow I/O."""
OTHERS_SHARE = 0.15
"""Of one core: what the other threads of a sleeping rank use at most."""
BUSY_SHARE = 0.2
TREE_PERCENT = 20.0
"""Of one core: above this, a rank's children work for it."""
BYTES = 256 << 10
"""Read or written between two pulses: above this, a rank does I/O."""
ASLEEP_S = 10.0
LOOP_SAMPLES, LOOP_SHARE = 15, 0.8
"""Looks at a loop, and the share of them that finds it at a jump backwards: a long call of C is at a call."""
GPU_PERCENT = 5.0


class Activity(enum.StrEnum):
    """What a rank does."""

    STOPPED = "stopped"
    """The kernel does not let it run."""
    SILENT = "silent"
    """Its hook does not answer and it uses no CPU time."""
    SILENT_BUSY = "silent-busy"
    ASLEEP = "asleep"
    """At one place, without CPU time, for at least ASLEEP_S."""
    LOOPS = "loops"
    """Busy in one function of the user's own code, calling nothing."""
    WORKS = "works"
    UNKNOWN = "unknown"


class Doing(NamedTuple):
    """What a rank does, and where."""

    mode: Activity
    place: RankPosition = RankPosition(Kind.UNKNOWN)
    stack: tuple[Site, ...] = ()
    helped: bool = False
    """WORKS: its main thread waits for other threads, children or its GPU, and those work."""
    sure: bool = True
    """ASLEEP: false where it uses a little CPU time, or is in a kernel call that is known to take long."""
    source: str = ""
    """Of a rank whose hook is silent: whence its stack is, and what the kernel says of it; for the evidence."""
    stale: bool = False
    """Whether the stack is of the time before its hook fell silent."""


def doing(
    pulses: Sequence[Pulse], *, hooked: bool, tree: float | None = None, gpu: float | None = None
) -> Doing:
    """Judge a rank. `hooked`: its hook has answered before; `tree`: percent of a core that its processes use,
    children included; `gpu`: percent that its GPU is in use.
    """
    if not pulses:
        return Doing(Activity.UNKNOWN)
    newest = pulses[-1]
    stack = next((pulse.stack for pulse in reversed(pulses) if pulse.stack), ())
    where = naming.place(stack)
    if newest.state in ("T", "t"):
        return Doing(Activity.STOPPED, where, stack)
    if not newest.hook:
        return _silent(pulses, hooked, tree, _unanswered(pulses, where, stack))
    if not newest.stack:
        return Doing(Activity.UNKNOWN)
    still = _asleep(pulses)
    if still >= ASLEEP_S:
        helped = (
            _others(pulses) > OTHERS_SHARE or (tree or 0.0) > TREE_PERCENT or (gpu or 0.0) > GPU_PERCENT
        )
        return Doing(Activity.WORKS if helped else Activity.ASLEEP, where, stack, helped, _deep(pulses))
    if gpu is not None and gpu > GPU_PERCENT:
        return Doing(Activity.WORKS, where, stack)
    return Doing(Activity.LOOPS if _loops(pulses) else Activity.WORKS, where, stack)


_SOURCES = {
    "signal": "this stack was asked for by SIGUSR2 to the hook's own thread: no call of the script is interrupted by it",
    "py-spy": "this stack was read from outside, by py-spy",
}
_STALE = "this stack is the last before its hook fell silent; `distui dump RUN stacks` asks for a newer one"


def _unanswered(pulses: Sequence[Pulse], where: RankPosition, stack: tuple[Site, ...]) -> Doing:
    """What is known of a rank whose hook does not answer: whence its stack is, and what its main thread waits in."""
    newest = next((pulse for pulse in reversed(pulses) if pulse.stack), None)
    stale = newest is not None and newest.hook
    notes = (
        [_STALE]
        if stale
        else [_SOURCES[newest.source]]
        if newest is not None and newest.source in _SOURCES
        else []
    )
    if pulses[-1].waits_in:
        notes.append(f"its main thread waits in the kernel's {pulses[-1].waits_in}")
    return Doing(Activity.UNKNOWN, where, stack, source="; ".join(notes), stale=stale)


def _silent(pulses: Sequence[Pulse], hooked: bool, tree: float | None, unanswered: Doing) -> Doing:
    trail = _trail(pulses, lambda pulse: not pulse.hook)
    if not hooked or len(trail) < 2:
        return unanswered
    if works(trail[0], trail[-1]):
        return unanswered._replace(mode=Activity.WORKS)
    used = _share(trail[0].process_s, trail[-1].process_s, trail[0], trail[-1])
    if used is None and tree is not None:
        used = tree / 100.0
    busy = used is not None and used > BUSY_SHARE
    return unanswered._replace(mode=Activity.SILENT_BUSY if busy else Activity.SILENT)


def _trail(pulses: Sequence[Pulse], fits: Callable[[Pulse], bool]) -> list[Pulse]:
    """The newest pulses that all fit, oldest first."""
    trail: list[Pulse] = []
    for pulse in reversed(pulses):
        if not fits(pulse):
            break
        trail.append(pulse)
    return trail[::-1]


def _asleep(pulses: Sequence[Pulse]) -> float:
    """For how many seconds the main thread has slept at one place; 0 with fewer than 3 pulses of it."""
    newest = pulses[-1]
    here = naming.place(newest.stack)
    count, since = 1, newest.at
    for before, after in zip(reversed(pulses[:-1]), reversed(pulses[1:]), strict=True):
        if (after.sites or 1) > 2 or not before.hook or works(before, after):
            break
        if before.stack != newest.stack and naming.place(before.stack) != here:
            break
        used = _share(before.cpu_s, after.cpu_s, before, after)
        if used is None or used > DOZES_SHARE or (used > ASLEEP_SHARE and before.stack != newest.stack):
            break
        count, since = count + 1, before.at
    return newest.at - since if count >= 3 else 0.0


def still_since(pulses: Sequence[Pulse]) -> float:
    """Unix time of the first look with the stack of the newest, or with none since when it idles; nothing has grown."""
    newest = pulses[-1]
    same = _trail(pulses, lambda it: it.stack == newest.stack or (not it.stack and _idled(it, newest)))
    if works(same[0], newest):
        same = _trail(same, lambda it: not works(it, newest))
    return same[0].at


def _deep(pulses: Sequence[Pulse]) -> bool:
    """Whether it uses no CPU time at all, and is not in the kernel's uninterruptible sleep of I/O."""
    first, last = pulses[-3], pulses[-1]
    used = _share(first.cpu_s, last.cpu_s, first, last)
    return used is not None and used <= ASLEEP_SHARE and last.state != "D"


def _idled(before: Pulse, after: Pulse) -> bool:
    """Whether the process used next to no CPU time in between."""
    used = _share(before.process_s, after.process_s, before, after)
    return used is not None and used <= DOZES_SHARE


def works(before: Pulse, after: Pulse) -> bool:
    """Whether something grew that only grows with work: steps, collectives, bytes."""
    if (before.step or 0) < (after.step or 0) or _grew(before.read_bytes, after.read_bytes):
        return True
    if _grew(before.written_bytes, after.written_bytes):
        return True
    if not before.groups or not after.groups:
        return False
    return _called(before) < _called(after)


def _grew(before: int | None, after: int | None) -> bool:
    return before is not None and after is not None and after - before > BYTES


def _called(pulse: Pulse) -> int:
    return sum(group.enqueued for group in pulse.groups)


def _share(before: float | None, after: float | None, earlier: Pulse, later: Pulse) -> float | None:
    """Of one core, between two pulses."""
    if before is None or after is None or later.at <= earlier.at:
        return None
    return (after - before) / (later.at - earlier.at)


def _others(pulses: Sequence[Pulse]) -> float:
    """Share of a core that threads other than the main one used over the newest three pulses."""
    first, last = pulses[-3], pulses[-1]
    every = _share(first.process_s, last.process_s, first, last)
    main = _share(first.cpu_s, last.cpu_s, first, last)
    return 0.0 if every is None or main is None else every - main


def _loops(pulses: Sequence[Pulse]) -> bool:
    """Whether it spins in one function of the user's own code: one thread, one place, no work that is seen.

    Another thread sees a loop that calls nothing at its jump backwards alone, which is one line.
    """
    innermost = pulses[-1].stack[0]
    if not naming.own_code(innermost) or naming.place(pulses[-1].stack).kind is not Kind.CODE:
        return False
    trail = _trail(pulses, lambda it: it.hook and it.stack[:1] == (innermost,) and it.sites == 1)
    if len(trail) < 3 or trail[-1].at - trail[0].at < ASLEEP_S or works(trail[0], trail[-1]):
        return False
    samples = sum(pulse.samples for pulse in trail)
    if samples < LOOP_SAMPLES or sum(pulse.loops or 0 for pulse in trail) < LOOP_SHARE * samples:
        return False
    main = _share(trail[0].cpu_s, trail[-1].cpu_s, trail[0], trail[-1])
    return main is not None and main >= BUSY_SHARE and _others(trail) <= OTHERS_SHARE
