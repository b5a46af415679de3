"""Decide from the activity of data-loader workers whether a rank's loader is slower than the others'.

If all loaders are equally fast and the job waits for them, one queue is empty and the others are full. A rank that has
batches in reserve keeps them: when the queues are full, all loaders pause alike. So the rank with the empty queue comes
last in every step although its data takes no longer. All ranks use the same number of batches, so the time that their
workers are busy shows the cost of a batch.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

from ..run.pulse import Pulse
from .activity import Kind, position_of

LEAST_STEPS = 3
"""Minimum number of steps with samples of workers per rank."""
LOADING = 0.5
"""Minimum share of a rank's samples in its loader for a rank that waits for it."""
BUSY = 0.75
"""Minimum number of busy workers for a rank that can be waiting for their batches."""
ALIKE, ALIKE_ONCE_NAMED = 0.8, 0.95
"""Minimum work of the others' workers, as a share of the rank's own, for equal loaders. The second, stricter one
withdraws an earlier finding."""
SURE = 2.0
"""Required distance of the others' work below that limit, in standard errors."""


def waits(pulses: Sequence[Pulse]) -> bool:
    """Whether a rank is mostly in a data loader that has workers."""
    stacks = [position_of(pulse.stack).kind for pulse in pulses if pulse.stack]
    fed = any(pulse.workers_busy is not None for pulse in pulses)
    return fed and stacks.count(Kind.LOADER) >= LOADING * len(stacks) > 0


def alike(own: Sequence[Pulse], others: Iterable[Sequence[Pulse]], named: bool) -> bool | None:
    """Whether the others' workers are as busy as those of a rank that waits for its loader.

    `named`: an earlier finding names the rank. False also if the rank's own workers are mostly idle: then it does not
    wait for their batches. None with too few samples of that rank or of all others, or if the difference may be chance.
    """
    mine = _busy(own)
    theirs = [busy for pulses in others if (busy := _busy(pulses)) is not None]
    if mine is None or not theirs:
        return None
    if mine[0] < BUSY:
        return False
    usual, doubt = (statistics.median(values) for values in zip(*theirs, strict=True))
    limit = (ALIKE_ONCE_NAMED if named else ALIKE) * mine[0]
    if usual >= limit:
        return True
    return False if usual + SURE * doubt < limit else None


def _busy(pulses: Sequence[Pulse]) -> tuple[float, float] | None:
    """Return the mean number of busy workers over the steps with samples, and its standard error.

    Each step counts once, however long: while a queue is first filled or one batch is late, full queues show nothing.
    """
    counts: dict[int, list[int]] = {}
    for number, pulse in enumerate(pulses):
        if pulse.workers_busy is not None:
            # A pulse without a step counts for itself.
            step = -1 - number if pulse.step is None else pulse.step
            counts.setdefault(step, []).append(pulse.workers_busy)
    if len(counts) < LEAST_STEPS:
        return None
    means = [statistics.fmean(values) for values in counts.values()]
    return statistics.fmean(means), statistics.pstdev(means) / len(means) ** 0.5
