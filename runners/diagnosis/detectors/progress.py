"""Whether a rank gets on: from its newest pulses, judged with care, because many ways to be busy look like idling."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ...model import Pulse, Site
from . import places
from .places import Kind, Place

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


class Mode(enum.StrEnum):
    """What a rank does."""

    STOPPED = "stopped"
    """The kernel does not let it run."""
    SILENT = "silent"
    """Its hook does not answer and it uses no processor time."""
    SILENT_BUSY = "silent-busy"
    ASLEEP = "asleep"
    """At one place, without processor time, for at least ASLEEP_S."""
    LOOPS = "loops"
    """Busy in one function of the user's own code, calling nothing."""
    WORKS = "works"
    UNKNOWN = "unknown"


class Doing(NamedTuple):
    """What a rank does, and where."""

    mode: Mode
    place: Place = Place(Kind.UNKNOWN)
    stack: tuple[Site, ...] = ()
    helped: bool = False
    """WORKS: its main thread waits for other threads, children or its GPU, and those work."""
    sure: bool = True
    """ASLEEP: false where it uses a little processor time, or is in a kernel call that is known to take long."""


def doing(
    pulses: Sequence[Pulse], *, hooked: bool, tree: float | None = None, gpu: float | None = None
) -> Doing:
    """Judge a rank. `hooked`: its hook has answered before; `tree`: percent of a core that its processes use,
    children included; `gpu`: percent that its GPU is in use.
    """
    if not pulses:
        return Doing(Mode.UNKNOWN)
    newest = pulses[-1]
    stack = next((one.stack for one in reversed(pulses) if one.stack), ())
    where = places.place(stack)
    if newest.state in ("T", "t"):
        return Doing(Mode.STOPPED, where, stack)
    if not newest.hook:
        return _silent(pulses, hooked, tree, Doing(Mode.UNKNOWN, where, stack))
    if not newest.stack:
        return Doing(Mode.UNKNOWN)
    still = _asleep(pulses)
    if still >= ASLEEP_S:
        helped = (
            _others(pulses) > OTHERS_SHARE or (tree or 0.0) > TREE_PERCENT or (gpu or 0.0) > GPU_PERCENT
        )
        return Doing(Mode.WORKS if helped else Mode.ASLEEP, where, stack, helped, _deep(pulses))
    if gpu is not None and gpu > GPU_PERCENT:
        return Doing(Mode.WORKS, where, stack)
    return Doing(Mode.LOOPS if _loops(pulses) else Mode.WORKS, where, stack)


def _silent(pulses: Sequence[Pulse], hooked: bool, tree: float | None, found: Doing) -> Doing:
    trail = _trail(pulses, lambda one: not one.hook)
    if not hooked or len(trail) < 2:
        return found
    if works(trail[0], trail[-1]):
        return found._replace(mode=Mode.WORKS)
    used = _share(trail[0].process_s, trail[-1].process_s, trail[0], trail[-1])
    if used is None and tree is not None:
        used = tree / 100.0
    busy = used is not None and used > BUSY_SHARE
    return found._replace(mode=Mode.SILENT_BUSY if busy else Mode.SILENT)


def _trail(pulses: Sequence[Pulse], fits: Callable[[Pulse], bool]) -> list[Pulse]:
    """The newest pulses that all fit, oldest first."""
    found: list[Pulse] = []
    for one in reversed(pulses):
        if not fits(one):
            break
        found.append(one)
    return found[::-1]


def _asleep(pulses: Sequence[Pulse]) -> float:
    """For how many seconds the main thread has slept at one place; 0 with fewer than 3 pulses of it."""
    newest = pulses[-1]
    here = places.place(newest.stack)
    count, since = 1, newest.at
    for before, after in zip(reversed(pulses[:-1]), reversed(pulses[1:]), strict=True):
        if (after.sites or 1) > 2 or not before.hook or works(before, after):
            break
        if before.stack != newest.stack and places.place(before.stack) != here:
            break
        used = _share(before.cpu_s, after.cpu_s, before, after)
        if used is None or used > DOZES_SHARE or (used > ASLEEP_SHARE and before.stack != newest.stack):
            break
        count, since = count + 1, before.at
    return newest.at - since if count >= 3 else 0.0


def still_since(pulses: Sequence[Pulse]) -> float:
    """Unix time of the first look with the stack of the newest, or with none since when it idles; nothing has grown."""
    newest = pulses[-1]
    same = _trail(pulses, lambda one: one.stack == newest.stack or (not one.stack and _idled(one, newest)))
    if works(same[0], newest):
        same = _trail(same, lambda one: not works(one, newest))
    return same[0].at


def _deep(pulses: Sequence[Pulse]) -> bool:
    """Whether it uses no processor time at all, and is not in the kernel's uninterruptible sleep of I/O."""
    first, last = pulses[-3], pulses[-1]
    used = _share(first.cpu_s, last.cpu_s, first, last)
    return used is not None and used <= ASLEEP_SHARE and last.state != "D"


def _idled(before: Pulse, after: Pulse) -> bool:
    """Whether the process used next to no processor time in between."""
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


def _share(before: float | None, after: float | None, one: Pulse, other: Pulse) -> float | None:
    """Of one core, between two pulses."""
    if before is None or after is None or other.at <= one.at:
        return None
    return (after - before) / (other.at - one.at)


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
    if not places.own_code(innermost) or places.place(pulses[-1].stack).kind is not Kind.CODE:
        return False
    trail = _trail(pulses, lambda one: one.hook and one.stack[:1] == (innermost,) and one.sites == 1)
    if len(trail) < 3 or trail[-1].at - trail[0].at < ASLEEP_S or works(trail[0], trail[-1]):
        return False
    samples = sum(one.samples for one in trail)
    if samples < LOOP_SAMPLES or sum(one.loops or 0 for one in trail) < LOOP_SHARE * samples:
        return False
    main = _share(trail[0].cpu_s, trail[-1].cpu_s, trail[0], trail[-1])
    return main is not None and main >= BUSY_SHARE and _others(trail) <= OTHERS_SHARE
