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
"""Steps with samples of workers that are needed, of each rank."""
LOADING = 0.5
"""Share of a rank's samples in its loader from which on it waits for that."""
BUSY = 0.75
"""Workers at work from which on a rank can be waiting for what they make."""
ALIKE, STILL_ALIKE = 0.8, 0.95
"""Work of the others' workers, as a share of its own, from which on they are alike; the second once it was named."""
SURE = 2.0
"""Standard errors by which their work has to lie below that."""


def waits(pulses: Sequence[Pulse]) -> bool:
    """Whether a rank is mostly in a data loader that has workers."""
    stacks = [place(pulse.stack).kind for pulse in pulses if pulse.stack]
    fed = any(pulse.workers_busy is not None for pulse in pulses)
    return fed and stacks.count(Kind.LOADER) >= LOADING * len(stacks) > 0


def alike(own: Sequence[Pulse], others: Iterable[Sequence[Pulse]], named: bool) -> bool | None:
    """Whether the workers of the others work as much as those of a rank that waits for its loader.

    `named`: it was called slow before. None where there are too few samples, of that rank or of all others, or
    where luck would explain the difference.
    """
    mine = _busy(own)
    theirs = [busy for pulses in others if (busy := _busy(pulses)) is not None]
    if mine is None or not theirs:
        return None
    usual, doubt = (statistics.median(values) for values in zip(*theirs, strict=True))
    limit = (STILL_ALIKE if named else ALIKE) * mine[0]
    if mine[0] >= BUSY and usual >= limit:
        return True
    return False if mine[0] < BUSY or usual + SURE * doubt < limit else None


def _busy(pulses: Sequence[Pulse]) -> tuple[float, float] | None:
    """Workers at work: the mean over the steps in which they were seen, and its standard error.

    A step counts once, however long: while a queue is first filled, or one batch is late, full queues say nothing.
    """
    counts: dict[int, list[int]] = {}
    for number, pulse in enumerate(pulses):
        if pulse.workers_busy is not None:
            counts.setdefault(~number if pulse.step is None else pulse.step, []).append(pulse.workers_busy)
    if len(counts) < PULSES:
        return None
    means = [statistics.fmean(values) for values in counts.values()]
    return statistics.fmean(means), statistics.pstdev(means) / len(means) ** 0.5
