"""Ranks × time: running, waits, stalled, no data."""

from __future__ import annotations

from collections.abc import Sequence

from ..history import MetricHistory
from ..newest_samples import Want, latest
from ..rows.frame import CONNECTING, Frame, names
from ..rows.glyphs import Row
from ..rows.rank_time import RankSeries, rank_time_rows
from ..rows.time_axis import BucketRange, buckets_of, span_of
from ..rows.value_axis import Values
from .history_pane import HistoryPane, chart_mode, is_live, shown_time

MOST_RANKS = 64
"""Maximum number of ranks with separate rows; with more, rows are nodes."""


def label_width(frame: Frame, height: int) -> int:
    """Return the columns of the labels in front of ranks × time."""
    ranks = frame.state.ranks
    if len(ranks) > MOST_RANKS:
        longest = max(map(len, names(frame.state).values()), default=0)
        return 2 + (longest if len(frame.state.nodes) <= height - 2 else 2 * longest + 1)
    digits = len(str(max(ranks, default=0)))
    return digits + 2 if len(ranks) <= height - 2 else 2 * digits + 3


def rank_time(pane: HistoryPane, frame: Frame, width: int, height: int) -> list[Row]:
    """Return the rows of a pane that shows ranks × time, and set its title."""
    cells = max(1, width - label_width(frame, height))
    window = pane.window(frame)
    span = span_of(window, cells)
    buckets = buckets_of(span, 1)
    by_node = len(frame.state.ranks) > MOST_RANKS
    series = _rank_series(pane.history, frame, buckets, by_node)
    pane.run_asks()
    noun = "nodes" if by_node else "ranks"
    pane.entitle(f"{noun} × time · {shown_time(frame, window)}")
    if not series:
        none = "no sample of a rank yet" if frame.state.live else CONNECTING
        return [((none, "stale"),)]
    return rank_time_rows(
        series,
        span,
        buckets,
        width,
        height,
        chart_mode(frame),
        names=names(frame.state) if by_node else None,
        cursor=pane.crosshair(frame),
        until=latest(frame),
    )


def _rank_series(
    history: MetricHistory, frame: Frame, buckets: BucketRange, by_node: bool
) -> dict[int, RankSeries]:
    fold = "node" if by_node else "each"
    parts: dict[str, dict[int, Values]] = {}
    for metric in ("rank.step", "rank.step_s", "rank.wait"):
        shown = history.show(
            frame, Want(metric, fold), buckets.seconds, buckets.begin, buckets.size, is_live(frame)
        )
        parts[metric] = {
            number: each.low if metric == "rank.step" else each.mean
            for each in shown
            if (number := each.node if by_node else each.index) is not None
        }
    numbers = sorted(set().union(*parts.values()))
    return {number: RankSeries(*(part.get(number, ()) for part in parts.values())) for number in numbers}


class RankStrip(HistoryPane):
    """Ranks × time: running, waits, stalled, no data; one row per rank, group of ranks, or node."""

    EVERY_S = 4.0
    """Most cells cover several seconds, and a row of each of 128 nodes takes twice as long to build as all charts."""
    can_focus = False

    def made(self, frame: Frame, width: int, height: int) -> Sequence[Row]:
        return rank_time(self, frame, width, height)
