"""Metrics as charts: name, scale and text of each; charts below each other on one axis. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise, zip_longest

from msgspec import Struct

from ...runners.run.formatting import NA, duration_text, step_text
from ...runners.run.freshness import TIMES, holds, usual_interval
from ...runners.run.samples import Gpu, Host
from ...runners.run.state import RunState
from ...runners.telemetry.curves import finite
from ...runners.telemetry.metric_names import METRICS
from ...runners.telemetry.quantities import NO_STEPS, NO_TRAINING
from ...runners.telemetry.quantity import Holds, Quantity
from ...runners.telemetry.quantity_text import BYTES, value_short
from .glyphs import Row, clip, row_width, wrap
from .marks import Mark, mark_row
from .plot import Line, Mode, Rule, draw, with_ticks
from .step_axis import Steps
from .time_axis import Span, Unit, tick_row
from .value_axis import (
    Axis,
    Values,
    fixed_axis,
    log_axis,
    percentile,
    round_axis,
    usual_range,
    widened,
)

# --- metrics ---


def chart_text(metric: Quantity, value: float | None) -> str:
    """Return a value with its unit in at most six columns."""
    text = value_short(value, metric.unit)
    is_rate = metric.unit == "B/s" or (metric.unit == "/s" and abs(value or 0) < 1e6)
    return f"{text}/s" if is_rate and value is not None else text


def newest_text(metric: Quantity, value: float | None) -> str:
    """Return a value as the header has it: "44 ms/step", "1,729 tok/s"; of other metrics the short text."""
    per = metric.curve.per
    if not per or value is None:
        return chart_text(metric, value)
    text = step_text(value) if metric.unit == "s" else value_short(value, metric.unit)
    return text + per


def edge_text(metric: Quantity, value: float) -> str:
    """Return a round value for the axis, without the unit parts that the title shows."""
    if value == 0:
        return "0"
    text = chart_text(metric, value).removesuffix("/s")
    number = text.rstrip("%KMGTBWkms°/")
    rounded = number.rstrip("0").rstrip(".") if "." in number else number
    unit = text[len(number) :]
    return f"{rounded} B" if unit == "B" else rounded + unit  # "10B" could be read as ten billion


_NOT_YET = {NO_STEPS: "no step yet", NO_TRAINING: "nothing reported yet"}
"""The text of an empty chart while the attempt is young, by its usual reason."""
YOUNG_S = 120.0
"""Seconds after an attempt began, while its first step may still come: imports, the process group, a compile."""

STRIP = (
    "rank.step_s",
    "train.tokens_s",
    "train.loss",
    "gpu.util",
    "gpu.mem",
    "gpu.power",
    "host.cpu",
    "host.net_rx",
    "rank.write",
    "rank.wait",
)
"""Charts that are shown until the user chooses."""

MORE = (
    "gpu.temp",
    "gpu.sm_active",
    "gpu.tensor_active",
    "gpu.dram_active",
    "gpu.nvlink_tx",
    "gpu.pcie_rx",
    "gpu.sm_mhz",
    "rank.cpu",
    "rank.rss",
    "host.mem",
    "rank.read",
)
"""Charts for the room that STRIP leaves free on a large screen."""

NAMES = tuple(dict.fromkeys((*STRIP, *METRICS)))
"""All metrics in the order of the dialog."""


def chart_title(metric: Quantity) -> str:
    return metric.curve.chart or metric.title


# --- panels ---


class Panel(Struct, frozen=True):
    """The data of one chart."""

    metric: Quantity
    curves: tuple[Line, ...] = ()
    limit: float | None = None
    """The metric's natural maximum, if it has one: the memory's size, the power limit."""
    note: str = ""
    """Why the chart has no data."""
    young: bool = False
    """Whether the attempt has just begun, or none has."""

    @property
    def empty(self) -> bool:
        return not any(finite(curve.mean) for curve in self.curves)


class ChartView(Struct, frozen=True, kw_only=True):
    """How charts are shown; one view for all of them."""

    span: Span
    """Time of the cells."""
    until: float = math.inf
    """Unix time of the newest values: cells after it are blank."""
    steps: Steps | None = None
    """The step of each time, if the horizontal axis is one of steps."""
    mode: Mode = Mode.BRAILLE
    log: bool = False
    cursor: float | None = None
    """Unix time of the crosshair."""
    marks: tuple[Mark, ...] = ()
    legend: Row = ()
    """The names of the letters of curves."""

    @property
    def axis(self) -> Span:
        """The cells as they are drawn: times, or steps."""
        steps = self.steps.axis if self.steps is not None else None
        return steps or self.span

    def cell(self, when: float) -> int | None:
        """Return the cell of a time; None outside the window."""
        axis = self.axis
        if self.steps is None or axis.unit is not Unit.STEP:
            return axis.at(when)
        step = self.steps.at(when)
        return None if step is None else axis.at(min(step, axis.end - axis.cell / 2))

    @property
    def newest(self) -> int:
        """The cell of the newest values."""
        cell = self.cell(self.until)
        return self.axis.cells - 1 if cell is None else cell

    def time_at(self, cell: int) -> float | None:
        """Return the time of a cell; None after the newest values."""
        at: float | None = self.axis.middle(cell)
        if self.axis.unit is Unit.STEP and self.steps is not None:
            at = self.steps.time_of(self.axis.begin + (cell + 1) * self.axis.cell)
        if at is None or cell > self.newest:
            return None
        return min(at, self.until)

    def rules(self) -> dict[int, Rule]:
        """Return the restarts and the crosshair by their cell."""
        rules: dict[int, Rule] = {}
        for mark in self.marks:
            cell = self.cell(mark.at) if mark.kind == "restart" else None
            if cell is not None:
                rules[cell] = Rule("bad", mark.text)
        cell = self.cell(self.cursor) if self.cursor is not None else None
        if cell is not None:
            rules[cell] = Rule()
        return rules

    def placed_marks(self) -> list[Mark]:
        """Return the marks at their place on the axis."""
        if self.axis.unit is not Unit.STEP:
            return list(self.marks)
        placed: list[Mark] = []
        for mark in self.marks:
            cell = self.cell(mark.at)
            if cell is not None:
                placed.append(Mark(self.axis.middle(cell), mark.kind))
        return placed


GUTTER = 7
"""Columns of the labels of the value axis, and of its line."""


def gutter(width: int) -> int:
    """Return the columns of the labels in a chart of this width."""
    return GUTTER if width >= 40 else 0


def axis_of(metric: Quantity, curves: Sequence[Line], rows: int, limit: float | None, log: bool) -> Axis:
    """Return 0 to 100 %, 0 to the limit of the metric, or round values around the usual ones."""
    lows = [value for line in curves for value in finite(line.lows)]
    highs = [value for line in curves for value in finite(line.highs)]
    binary = metric.unit in BYTES
    if log and metric.unit != "%":
        return log_axis([*lows, *highs], rows, binary=binary)
    top = 100.0 if metric.unit == "%" else limit
    if top:
        return fixed_axis(top, rows, binary=binary)
    base = metric.curve.low
    low, high = usual_range(lows, highs, base)
    if base is None:
        low, high = widened(low, high)
    return round_axis(low, high, rows, binary=binary)


def is_young(state: RunState, now: float) -> bool:
    """Whether it is too early to say that a run makes no steps; `now` is unix time by the clock of `state`."""
    if state.phase.ended:
        return False
    lasted = state.attempts[-1].lasted(now) if state.attempts else 0.0
    return lasted is not None and lasted < YOUNG_S


def newest(values: Values, bucket: float, metric: Quantity) -> float | None:
    """Return the newest value if it still holds; `bucket` is in seconds. The last value is the current one."""
    known = [at for at, value in enumerate(values) if value is not None]
    if not known:
        return None
    age_s, usual_s = (len(values) - 1 - known[-1]) * bucket, bucket
    if metric.sparse:
        usual_s = (usual_interval(known) or 1.0) * bucket
    stays = metric.holds is Holds.NEXT_REPORT
    return values[known[-1]] if stays or holds(age_s, usual_s) else None


def old_value(values: Values, bucket: float) -> tuple[float, float] | None:
    """Return the newest value and its age in seconds; None without one. The last value is the current one."""
    for back, value in enumerate(reversed(values)):
        if value is not None:
            return value, back * bucket
    return None


def _title_value(metric: Quantity, line: Line) -> Row:
    """Return the newest value, dim and with its age if it no longer holds."""
    if line.now is None and line.old is not None:
        value, age_s = line.old
        return ((f" {newest_text(metric, value)} · {duration_text(age_s)} ago", "stale"),)
    about = "~" if line.is_mean and line.now is not None else ""
    return ((f" {about}{newest_text(metric, line.now)}", "accent"),)


def title_row(panel: Panel, width: int) -> Row:
    """Return `step time 0.84s · p50 0.84s p99 1.31s`, from the left as much as fits."""
    metric = panel.metric
    head: Row = ((chart_title(metric), "head"),)
    if panel.empty:
        return clip((*head, (f"  {NA}", "stale")), width)
    main = panel.curves[0]
    row: Row = (*head, *_title_value(metric, main))
    parts: list[Row] = []
    for curve in panel.curves[1:]:
        if curve.letter:
            parts.append(((f" {curve.letter} {chart_text(metric, curve.now)}", curve.style),))
    if finite(main.mean):
        median = chart_text(metric, percentile(finite(main.mean), 0.5))
        top = chart_text(metric, percentile(finite(main.highs), 0.99))
        parts.append(((f" · p50 {median} p99 {top}", "dim"),))
    for part in parts:
        if row_width((*row, *part)) <= width:
            row = (*row, *part)
    return clip(row, width)


def chart(panel: Panel, view: ChartView, width: int, height: int) -> list[Row]:
    """Return a title and the curves in `height` rows; without data the reason."""
    rows = [title_row(panel, width)]
    body = height - 1
    if body < 1:
        return rows[:height]
    metric = panel.metric
    if panel.empty:
        why = metric.why
        words = panel.note or (_NOT_YET.get(why, why) if panel.young else why) or "no sample yet"
        text = wrap(words, max(10, width - 2), "stale", first="  ")[:body]
        return rows + text + [()] * (body - len(text))
    curves = panel.curves
    if view.steps is not None:
        curves = tuple(view.steps.moved(curve) for curve in curves)
    axis = axis_of(metric, curves, body, panel.limit, view.log)
    return rows + curve_rows(metric, curves, axis, width, body, view.mode, view.rules())


def curve_rows(
    metric: Quantity,
    curves: Sequence[Line],
    axis: Axis,
    width: int,
    rows: int,
    mode: Mode,
    rules: Mapping[int, Rule] | None = None,
) -> list[Row]:
    """Return the curves with the labels of their value axis."""
    edge = gutter(width)
    drawn = draw(curves, width - edge, rows, axis, mode, rules)
    return with_ticks(drawn, axis, lambda value: edge_text(metric, value), edge, mode)


def held(values: Values) -> list[float | None]:
    """Fill the gaps of a metric that is reported now and then: a value holds until the next.

    If the next report is much later than usual, after a hang or a restart, the value holds for one usual interval.
    """
    reports = [at for at, value in enumerate(values) if value is not None]
    usual = int(usual_interval(reports) or 0) if len(reports) > 2 else len(values)
    kept: list[float | None] = list(values)
    for at, after in pairwise(reports):
        end = after if after - at <= TIMES * usual else at + usual
        kept[at:end] = [values[at]] * (end - at)
    return kept


# --- several charts ---

LEAST_ROWS = 7
"""Rows of a chart, with its title, before another chart is shown next to it."""

NARROWEST = 41
"""Minimum columns of a chart next to another one."""

GAP = 2
"""Blank columns between two columns of charts."""

ASPECT = 6.0
"""Columns per row of a chart whose shape is easy to read."""


def chart_columns(width: int, height: int, count: int) -> int:
    """Return how many columns of charts a pane has: they show as many as possible, in a shape that is easy to read."""
    most = (width + GAP) // (NARROWEST + GAP)
    if most < 2 or height < LEAST_ROWS:
        return 1
    rows = rows_of_charts(height)

    def cost(columns: int) -> tuple[int, float]:
        shown = min(count, columns * rows)
        below = max(1, math.ceil(shown / columns))
        aspect = (width / columns) / (height / below)
        empty = 1 - shown / (columns * below)
        return -shown, abs(math.log(aspect / ASPECT)) + empty

    return min(range(1, most + 1), key=cost)


def rows_of_charts(height: int) -> int:
    """Return how many charts are below each other in these rows, so that each is high enough to be read."""
    return max(1, height // LEAST_ROWS)


def charts_rows(panels: Sequence[Panel], view: ChartView, width: int, height: int) -> list[Row]:
    """Return charts below each other that share `height` rows; below them marks and the labels of their axis."""
    if width < 1 or height < 1 or not panels:
        return []
    foot = _foot(view, width) if height >= 6 else []
    size, rest = divmod(height - len(foot), len(panels))
    rows: list[Row] = []
    for number, panel in enumerate(panels):
        rows += chart(panel, view, width, size + (number < rest))
    return [*rows, *foot]


def _until(view: ChartView) -> float:
    """Return the end of the labels: an axis of times has none for the future."""
    return view.until if view.axis.unit is Unit.CLOCK else math.inf


def _foot(view: ChartView, width: int) -> list[Row]:
    """Return the marks, the labels of the axis, and the legend of the curves' letters."""
    marked = mark_row(view.placed_marks(), view.axis, view.mode)
    stroke = "|" if view.mode is Mode.ASCII else "╵"
    blank: Row = ((" " * gutter(width), "text"),)
    foot = [clip((*blank, *tick_row(view.axis, stroke, _until(view))), width)]
    if marked is not None:
        foot.insert(0, clip((*blank, *marked), width))
    if view.legend:
        foot.append(clip((*blank, *view.legend), width))
    return foot


def side_by_side(columns: Sequence[Sequence[Row]], width: int) -> list[Row]:
    """Join columns of rows; each but the last is `width` cells wide."""
    joined_rows: list[Row] = []
    for parts in zip_longest(*columns, fillvalue=()):
        row: Row = parts[0]
        for number, part in enumerate(parts[1:], 1):
            begin = number * (width + GAP)
            row = (*row, (" " * (begin - row_width(row)), "text"), *part)
        joined_rows.append(row)
    return joined_rows


def limit_of(state: RunState, metric: Quantity) -> float | None:
    """Return the largest limit among the run's GPUs or nodes, such as their memory; None if the metric has none."""
    owner, _, field = metric.limit.partition(".")
    samples: list[Gpu | Host] = []
    for node in state.nodes.values():
        if owner == "gpu":
            samples += node.gpus
        elif owner == "host" and node.metrics is not None:
            samples.append(node.metrics)
    limits = [getattr(sample, field) for sample in samples]
    return max((float(limit) for limit in limits if limit), default=None)
