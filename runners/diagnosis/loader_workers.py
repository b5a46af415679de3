"""Whether a rank's data loader is slower than the others', by how busy their workers are.

Where all loaders are equally fast and the job waits for them, one queue is empty and the others are full: a lead once
won stays, since a full queue lets nobody get further ahead. So the rank with the empty queue comes last in every step,
though its data takes no longer. All ranks use as many batches, so what a batch costs each shows in its workers.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

from ..model import Pulse
from .activity import Kind, place

PULSES = 3
"""Samples of workers that are needed, of each rank."""
LOADING = 0.5
"""Share of a rank's samples in its loader from which on it waits for that."""
BUSY = 0.75
"""Workers at work from which on a rank can be waiting for what they make."""
ALIKE, STILL_ALIKE = 0.8, 0.95
"""Work of the others' workers, as a share of its own, from which on they are alike; the second once it was named."""


def waits(pulses: Sequence[Pulse]) -> bool:
    """Whether a rank is mostly in a data loader that has workers."""
    stacks = [place(pulse.stack).kind for pulse in pulses if pulse.stack]
    fed = any(pulse.workers_busy is not None for pulse in pulses)
    return fed and stacks.count(Kind.LOADER) >= LOADING * len(stacks) > 0


def alike(own: Sequence[Pulse], others: Iterable[Sequence[Pulse]], named: bool) -> bool | None:
    """Whether the workers of the others work as much as those of a rank that waits for its loader.

    `named`: it was called slow before. None where there are too few samples, of that rank or of all others.
    """
    mine = _busy(own)
    theirs = [busy for pulses in others if (busy := _busy(pulses)) is not None]
    if mine is None or not theirs:
        return None
    return mine >= BUSY and statistics.median(theirs) >= (STILL_ALIKE if named else ALIKE) * mine


def _busy(pulses: Sequence[Pulse]) -> float | None:
    counts = [pulse.workers_busy for pulse in pulses if pulse.workers_busy is not None]
    return statistics.fmean(counts) if len(counts) >= PULSES else None
