"""Ranks × time: one row per rank or group of ranks, one cell per period, with the ranks' activity in it. Pure.

A rank that makes steps is "running". A rank that spends most of its time in collectives "waits" for others. A rank
without progress is "stalled". Each state has a different glyph, so that colour is not needed.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from statistics import median

from msgspec import Struct

from ...runners.run.formatting import spans_short
from ...runners.telemetry.curves import finite
from .glyphs import Cell, Row, clip, fit, row_width
from .plot import Mode
from .time_axis import BucketRange, Span, columns, tick_row
from .value_axis import Values


class StripState(enum.IntEnum):
    """Activity of a rank in a period, in order of importance."""

    NOTHING_KNOWN = 0
    STARTING = 1
    """The rank has made no step yet."""
    RUNNING = 2
    WAITS = 3
    STALLED = 4


GLYPHS: dict[StripState, tuple[str, str, str, str]] = {
    StripState.NOTHING_KNOWN: ("·", ".", "stale", "no data"),
    StripState.STARTING: ("╌", "-", "dim", "no step yet"),
    StripState.RUNNING: ("▆", "#", "ok", "running"),
    StripState.WAITS: ("░", "w", "warn", "waits"),
    StripState.STALLED: ("▁", "_", "bad", "stalled"),
}
"""Glyph, ASCII glyph, style and word."""

WAIT_PERCENT = 50.0
"""Minimum share of time in collectives for a rank to count as waiting."""

STALL_S = 10.0
STALL_STEPS = 5.0
"""A stall is a period without a step that exceeds both this time and the time of so many steps."""


class RankSeries(Struct, frozen=True):
    """Values of a rank by bucket, oldest first; for several ranks the slowest step and the mean wait."""

    step: Values = ()
    step_s: Values = ()
    wait: Values = ()


def doings(series: RankSeries, seconds: float, size: int) -> list[StripState]:
    """Return the rank's activity per bucket; `seconds` is the length of a bucket, `size` their number."""
    pace = median(finite(series.step_s) or [1.0])
    patience = min(1e6, max(STALL_S, STALL_STEPS * pace))
    activity = _Activity(patience, seconds)
    buckets = zip(
        _known(series.step, size), _known(series.wait, size), _known(series.step_s, size), strict=True
    )
    kinds = [activity.next_state(step, wait, step_s) for step, wait, step_s in buckets]
    return _back_dated(kinds, patience, seconds)


class _Activity:
    """Follows the buckets of one rank, each of `seconds`; it stalls after `patience` seconds without a step."""

    def __init__(self, patience: float, seconds: float) -> None:
        self._patience = patience
        self._seconds = seconds
        self._step: float | None = None
        self._since = 0.0
        """Seconds since the last step."""

    def next_state(self, step: float | None, wait: float | None, step_s: float | None) -> StripState:
        if step is None and wait is None and step_s is None:
            self._since = 0.0
            return StripState.NOTHING_KNOWN
        starting = not step and step_s is None
        if starting:  # a new process, after one that made steps
            self._step, self._since = None, 0.0
        self._count(step)
        if wait is not None and wait >= WAIT_PERCENT:
            return StripState.WAITS  # even without progress: the rank that stalls does not wait
        if starting:
            return StripState.STARTING
        return StripState.STALLED if self._since >= self._patience else StripState.RUNNING

    def _count(self, step: float | None) -> None:
        moved = step is not None and step != self._step  # a smaller count belongs to a new attempt
        self._since = 0.0 if moved or self._step is None else self._since + self._seconds
        self._step = step or self._step


def _known(values: Values, size: int) -> list[float | None]:
    """Return `size` values; None for those that are missing or no number."""
    known = [None if value is None or value != value else value for value in values[:size]]
    return known + [None] * (size - len(known))


def _back_dated(kinds: list[StripState], patience: float, seconds: float) -> list[StripState]:
    """Move the start of a stall back to the end of the last step."""
    back = max(0, math.ceil(patience / seconds) - 1)
    for at in range(1, len(kinds)):
        if kinds[at] is StripState.STALLED and kinds[at - 1] is not StripState.STALLED:
            for earlier in range(max(0, at - back), at):
                if kinds[earlier] is StripState.RUNNING:
                    kinds[earlier] = StripState.STALLED
    return kinds


def folded(kinds: Iterable[Sequence[StripState]]) -> list[StripState]:
    """Fold several ranks into one row with the most important state of each period."""
    return [max(column) for column in zip(*kinds, strict=True)]


def groups(ranks: Sequence[int], rows: int) -> list[tuple[int, ...]]:
    """Group neighbouring ranks into at most `rows` groups, whose sizes are powers of two."""
    size = 1
    while -(-len(ranks) // size) > max(1, rows):
        size *= 2
    return [tuple(ranks[at : at + size]) for at in range(0, len(ranks), size)]


def rows_wanted(count: int, most: int) -> int:
    """Return the rows for so many ranks, with times and legend, at most `most`; 0 if they do not fit."""
    return len(groups(range(count), most - 2)) + 2 if count and most >= 4 else 0


def rank_time_rows(
    series: Mapping[int, RankSeries],
    span: Span,
    buckets: BucketRange,
    width: int,
    height: int,
    mode: Mode = Mode.BRAILLE,
    *,
    names: Mapping[int, str] | None = None,
    cursor: float | None = None,
    until: float = math.inf,
) -> list[Row]:
    """Return at most `height` rows of `width` cells: one per rank or group, then wall times, then the legend.

    The series have the values of `buckets`. `names` are labels of the rows if these are not ranks. Cells after `until`
    are blank.
    """
    if not series or width < 1 or height < 1:
        return []
    foot = max(0, min(2, height - 2))
    parts = groups(sorted(series), height - foot)
    labels = [_label(part, names) for part in parts]
    edge = min(max(map(len, labels)), max(0, width - 8)) + 1 if width >= 16 else 0
    last = span.at(until)
    shown = columns(span, 1, buckets)[: last if last is None else last + 1]
    at = span.at(cursor) if cursor is not None else None
    rows: list[Row] = []
    used: set[StripState] = set()
    for part, label in zip(parts, labels, strict=True):
        whole = folded(doings(series[rank], buckets.seconds, buckets.size) for rank in part)
        kinds = [max(whole[cell], default=StripState.NOTHING_KNOWN) for cell in shown]
        used.update(kinds)
        head: Row = ((fit(label, edge - 1) + " ", "dim"),) if edge else ()
        rows.append(clip((*head, *_cells(kinds, mode, at)), width))
    stroke = "|" if mode is Mode.ASCII else "╵"
    times = clip(((" " * edge, "text"), *tick_row(span, stroke, until)), width)
    rows += [times, clip(_legend(sorted(used), mode, edge), width)][:foot]
    return rows[:height]


def _label(part: tuple[int, ...], names: Mapping[int, str] | None) -> str:
    if names is not None:
        first, last = (names.get(part[at], str(part[at])) for at in (0, -1))
        return first if len(part) == 1 else f"{first}–{last}"
    return f"r{spans_short(part)}"


def _cells(kinds: Sequence[StripState], mode: Mode, cursor: int | None) -> Row:
    which = 1 if mode is Mode.ASCII else 0
    cells: list[Cell] = []
    for kind, group in groupby(enumerate(kinds), key=lambda item: (item[1], item[0] == cursor)):
        doing, under = kind
        count = len(list(group))
        cells.append((GLYPHS[doing][which] * count, "hit" if under else GLYPHS[doing][2]))
    return tuple(cells)


def _legend(kinds: Iterable[StripState], mode: Mode, edge: int) -> Row:
    which = 1 if mode is Mode.ASCII else 0
    row: Row = ((" " * edge, "text"),)
    for kind in kinds:
        glyph, style, word = GLYPHS[kind][which], GLYPHS[kind][2], GLYPHS[kind][3]
        row = (*row, (glyph * 2, style), (f" {word}   ", "dim"))
    return row if row_width(row) > edge else ()
