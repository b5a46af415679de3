"""The curves of charts from the history of a run: of all ranks, of marked ranks, of nodes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from msgspec.structs import replace

from ...presets.sanitize import clean_text
from ...runners.comparison.account_numbers import STEPS
from ...runners.telemetry.metric_names import find_metric
from ...runners.telemetry.quantity import Quantity
from ..history import MetricHistory, Shown
from ..newest_samples import Want, header_value, latest, newest_values
from ..rows.charts import ChartView, Panel, held, is_young, limit_of, newest, old_value
from ..rows.frame import Frame, gpu_places, names
from ..rows.glyphs import Cell, Row
from ..rows.plot import Line
from ..rows.step_axis import Steps, counted
from ..rows.time_axis import BucketRange, buckets_of, columns, folded, mean
from ..rows.value_axis import Value, Values

Letters = Mapping[int, tuple[str, str]]
"""Letter and style by rank, GPU or node."""

LETTERS = (("A", "ok"), ("B", "warn"), ("C", "bad"), ("D", "head"))
"""Letters of curves, and their styles; a rank keeps its letter while it is marked."""


def rank_letters(frame: Frame, history: MetricHistory) -> Letters:
    """Return the letters of marked ranks."""
    marked = history.letters_of(frame.view.marked & set(frame.state.ranks))
    return {rank: LETTERS[at] for rank, at in marked.items()}


def node_letters(frame: Frame) -> Letters:
    """Return the letters of the nodes of marked ranks, then of the first nodes; none in a run of one node."""
    nodes, ranks = sorted(frame.state.nodes), frame.state.ranks
    if len(nodes) < 2:
        return {}
    marked = {ranks[rank].place.node for rank in frame.view.marked if rank in ranks}
    ordered = [*sorted(marked), *(node for node in nodes if node not in marked)]
    return dict(zip(ordered, LETTERS, strict=False))


def gpu_letters(frame: Frame, ranks: Letters) -> Letters:
    """Return the letters of marked ranks by their GPU; none in a run of several nodes, whose GPUs have equal indexes."""
    letters: dict[int, tuple[str, str]] = {}
    if len(frame.state.nodes) != 1:
        return letters
    for number, letter in ranks.items():
        sample = frame.state.ranks[number].sample
        if sample is not None and sample.gpu is not None:
            letters[sample.gpu] = letter
    return letters


def legend_row(frame: Frame, ranks: Letters, nodes: Letters) -> Row:
    """Return `A rank 3`, or `A n12  B n13  of 128 nodes`."""
    cells: list[Cell] = []
    called = names(frame.state)
    for node, (letter, style) in nodes.items():
        cells += [(letter, style), (f" {clean_text(called.get(node, str(node)))}  ", "dim")]
    for rank, (letter, style) in sorted(ranks.items()):
        cells += [(letter, style), (f" rank {rank}  ", "dim")]
    if 0 < len(nodes) < len(frame.state.nodes):
        cells.append((f"of {len(frame.state.nodes)} nodes", "dim"))
    return tuple(cells)


def own_indexes(frame: Frame, history: MetricHistory) -> tuple[int, ...]:
    """Return the run's GPUs by their index on their nodes; () if it uses all, or if they are unknown.

    Known indexes are kept, since a moment before the first sample does not contain them.
    """
    own = history.own = frame.state.once(gpu_places) or history.own
    every = sum(len(node.gpus) for node in frame.state.nodes.values())
    used = sum(map(len, own.values()))
    if not own or used == every:
        return ()
    return tuple(sorted(set().union(*own.values())))


class ChartReader:
    """Makes charts in the columns of a view."""

    def __init__(
        self,
        frame: Frame,
        view: ChartView,
        history: MetricHistory,
        read: Callable[[Frame, Want, BucketRange], list[Shown]],
    ) -> None:
        """Create it for one build; `read` returns series of the history."""
        self._frame, self._view, self._history, self._read = frame, view, history, read
        self._buckets = buckets_of(view.span, view.mode.across)
        self._parts = columns(view.span, view.mode.across, self._buckets)

    def series(self, name: str) -> list[Shown]:
        """Return the series of a metric of all ranks or GPUs."""
        return self._read(self._frame, self._want(name), self._buckets)

    def steps(self) -> Steps | None:
        """Return the steps of the window, as the script counts them, or else the hook."""
        for name in STEPS:
            for shown in self.series(name):
                counts = folded(counted(shown.mean), self._parts, max)
                newest_column = (self._view.newest + 1) * self._view.mode.across
                counts[newest_column:] = [None] * (len(counts) - newest_column)
                if any(count is not None for count in counts):
                    return Steps(self._view.span, counts)
        return None

    def panel(self, name: str, series: Sequence[Shown], ranks: Letters, nodes: Letters) -> Panel:
        """Return one chart: a curve or band of all, and the curves of marked ranks or of nodes over it."""
        frame, metric, want = self._frame, find_metric(name), self._want(name)
        lines = [self._line(metric, shown, want) for shown in series]
        if metric.kind == "gpu":
            ranks = gpu_letters(frame, ranks)
        if ranks and metric.kind in ("rank", "train", "gpu"):
            lines += self._lettered(metric, Want(name, "each", tuple(sorted(ranks))), ranks)
        if nodes:
            lines += self._lettered(metric, Want(name, "node"), nodes)
        note = self._history.note(want, self._buckets.seconds)
        young = is_young(frame.state, frame.node_now(0))
        return Panel(metric, tuple(lines), limit_of(frame.state, metric), note, young)

    def _want(self, name: str) -> Want:
        indexes: tuple[int, ...] = ()
        if find_metric(name).kind == "gpu":
            indexes = own_indexes(self._frame, self._history)
        return Want(name, indexes=indexes)

    def _lettered(self, metric: Quantity, want: Want, letters: Letters) -> list[Line]:
        """Return the curves of the ranks, GPUs or nodes that have a letter."""
        lines: list[Line] = []
        for shown in self._read(self._frame, want, self._buckets):
            key = shown.index if want.fold == "each" else shown.node
            if key is None or key not in letters:
                continue
            letter, style = letters[key]
            line = self._line(metric, shown, want)
            lines.append(replace(line, low=(), high=(), style=style, letter=letter))
        return lines

    def _line(self, metric: Quantity, shown: Shown, want: Want) -> Line:
        """Return the curve of a series, with the value for the title."""
        values = held(shown.mean) if metric.sparse else shown.mean
        now = self._now(metric, values, shown, want)
        line = Line(folded(values, self._parts, mean), now=now, is_mean=self._is_mean(metric, shown))
        if self._view.cursor is None and not self._is_final:
            line = replace(line, old=old_value(self._until_now(values), self._buckets.seconds))
        if shown.of > 1 or self._buckets.seconds > 1:
            low, high = folded(shown.low, self._parts, min), folded(shown.high, self._parts, max)
            return replace(line, low=low, high=high)
        return line

    def _now(self, metric: Quantity, values: Values, shown: Shown, want: Want) -> Value:
        """Return the value at the crosshair, else that of the shown time."""
        if self._view.cursor is not None and not self._is_at_moment():
            at = self._buckets.at(self._view.cursor)
            return None if at is None else values[at]
        current = self._current(shown, want)
        if current is not None:
            return current
        if self._is_final:
            last = old_value(self._until_now(values), self._buckets.seconds)
            return None if last is None else last[0]
        return newest(self._until_now(values), self._buckets.seconds, metric)

    @property
    def _is_final(self) -> bool:
        """Whether the run has ended, so that its newest values have no age."""
        return self._frame.moment is None and self._frame.state.phase.ended

    def _is_at_moment(self) -> bool:
        """Whether the vertical line is at the past moment, whose samples the header shows."""
        moment = self._frame.moment
        return moment is not None and self._view.cursor == moment.at

    def _is_mean(self, metric: Quantity, shown: Shown) -> bool:
        """Whether the value of one series at the line is a mean of several samples."""
        if shown.of > 1 or self._view.cursor is None:
            return False
        moment = self._frame.moment
        if moment is not None and self._is_at_moment():
            return bool(moment.averaged_s)
        at = self._buckets.at(self._view.cursor)
        if at is None or not shown.low:
            return False
        return shown.low[at] != shown.high[at]

    def _until_now(self, values: Values) -> Values:
        """Return the values of the buckets up to the shown time: the past moment, else the current time."""
        moment = self._frame.moment
        if moment is not None:
            return values[: self._buckets.complete_by(moment.at)]
        until = self._buckets.at(latest(self._frame))
        end = self._buckets.size if until is None else until + 1
        return values[:end]

    def _current(self, shown: Shown, want: Want) -> Value:
        """Return the value of the header, else that of the newest samples; None without any."""
        if want.fold == "all" and not want.indexes:
            in_header = header_value(self._frame, want.metric)
            if in_header is not None:
                return in_header
        node = None if want.fold == "all" else shown.node
        index = shown.index if want.fold == "each" else None
        samples = newest_values(self._frame, want).get((node, index))
        return math.fsum(samples) / len(samples) if samples else None
