"""Decide whether a rank whose main thread sleeps moves: it sends, receives, reads, writes, or has a child that works.

A sleeping main thread is no hang while something moves. Pure: the agent samples the counters.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..run.formatting import size_text
from ..run.pulse import Pulse, Work

LASTS_S = 10.0
"""A movement counts if it was within so many seconds."""


class Source(NamedTuple):
    """One sign of movement."""

    counter: str
    """Field of Work."""
    least: float
    """Minimum growth per second."""
    does: str
    """What the rank does, without its rate."""
    unit: str = "bytes"
    only_main: bool = False
    """Whether only the main thread moves this counter, so that its growth shows that the thread itself works."""


SOURCES = (
    Source("sent", 2048, "sends over the network"),
    Source("received", 2048, "receives from the network"),
    Source("main_disk", 1024, "reads or writes a disk", only_main=True),
    Source("main_written", 1, "writes", only_main=True),
    Source("main_read", 1, "reads", only_main=True),
    Source("child_bytes", 2048, "waits for a child process that reads or writes"),
    Source("child_cpu_s", 0.2, "waits for a child process that uses CPU time", "seconds"),
    Source("main_wakes", 0.4, "exchanges messages", "times", only_main=True),
)
"""The signs of movement, the most telling first. Background traffic, such as heartbeats, is below the bounds."""
POLLS_LEAST = 4096
"""Minimum bytes per second that a main thread reads which sleeps in between: it may poll a small file."""
AWAITED_SHARE = 0.003
"""Minimum CPU share, in cores, of children that the main thread waits for."""
_BLOCKED_IN = ("read", "write")
"""Calls that end only when data moves. Any other call may also end by a time-out."""


class Movement(NamedTuple):
    """What a rank moves."""

    source: Source
    rate: float
    """Growth per second."""


def moved(before: Pulse, after: Pulse, *, only_main: bool = False) -> Movement | None:
    """Return what moved between two pulses. `only_main`: only by the main thread itself."""
    if before.work is None or after.work is None or after.at <= before.at:
        return None
    seconds = after.at - before.at
    for source in SOURCES:
        if only_main and not source.only_main:
            continue
        rate = _growth(source, before.work, after.work) / seconds
        if rate >= _least(source, before, after):
            return Movement(source, rate)
    return None


def _growth(source: Source, before: Work, after: Work) -> float:
    earlier, later = getattr(before, source.counter), getattr(after, source.counter)
    return 0.0 if earlier is None or later is None else later - earlier


def _least(source: Source, before: Pulse, after: Pulse) -> float:
    """Return the bound of a source, which depends on the system calls of the main thread."""
    is_blocked = before.call in _BLOCKED_IN and after.call == before.call
    if source.counter == "main_wakes":
        return source.least if is_blocked else float("inf")
    if source.counter == "main_read" and not is_blocked:
        return POLLS_LEAST
    if source.counter.startswith("child_") and _awaits_child(after):
        return AWAITED_SHARE if source.unit == "seconds" else 1.0
    return source.least


def _awaits_child(pulse: Pulse) -> bool:
    """Whether the main thread waits for a child, or for data in a pipe, as a child writes it."""
    at_pipe = pulse.on == "a pipe" or pulse.on.startswith("FIFO ")
    return pulse.call == "wait" or (pulse.call in ("read", "write", "poll") and at_pipe)


def is_hidden(pulse: Pulse) -> bool:
    """Whether the kernel hides what the main thread reads and writes, so that a lack of movement proves nothing."""
    return pulse.work is not None and pulse.work.main_written is None


def movement(pulses: Sequence[Pulse]) -> Movement | None:
    """Return what a rank has moved within LASTS_S before its newest pulse; None if nothing has moved."""
    if not pulses:
        return None
    newest = pulses[-1]
    window = [pulse for pulse in pulses if pulse.at >= newest.at - LASTS_S and pulse.work is not None]
    return moved(window[0], newest) if window else None


def text_of(move: Movement) -> str:
    """Return words as in "sends over the network at 585.9 KiB/s"."""
    if move.source.unit != "bytes":
        return move.source.does
    return f"{move.source.does} at {size_text(move.rate)}/s"
