"""Metrics as charts: name, scale and text of each; charts below each other on one time axis. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from msgspec import Struct

from ...runners.run.formatting import NA, duration_short
from ...runners.run.freshness import TIMES, holds, usual_interval
from ...runners.run.samples import Gpu, Host
from ...runners.run.state import RunState
from ...runners.telemetry.curves import finite
from ...runners.telemetry.metric_names import METRICS
from ...runners.telemetry.quantities import NO_STEPS, NO_TRAINING
from ...runners.telemetry.quantity import Holds, Quantity
from ...runners.telemetry.quantity_text import BYTES, value_short
from .glyphs import Row, clip, row_width, wrap
from .plot import (
    Axis,
    Line,
    Mark,
    Mode,
    TimeSpan,
    Values,
    axis_for,
    draw,
    durations,
    mark_row,
    nice_ceiling,
    tick_row,
    with_labels,
)

# --- metrics ---


def chart_text(metric: Quantity, value: float | None) -> str:
    """Return a value with its unit in at most six columns."""
    text = value_short(value, metric.unit)
    is_rate = metric.unit == "B/s" or (metric.unit == "/s" and abs(value or 0) < 1e6)
    return f"{text}/s" if is_rate and value is not None else text


def edge_text(metric: Quantity, value: float) -> str:
    """Return a round value for the edge of an axis, without the unit parts that the title shows."""
    if value == 0:
        return "0"
    text = chart_text(metric, value).removesuffix("/s")
    number = text.rstrip("%KMGTBWkms°/")
    rounded = number.rstrip("0").rstrip(".") if "." in number else number
    return rounded + text[len(number) :]


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

    span: TimeSpan
    """Time of the cells of the widest chart area."""
    bucket: float = 1.0
    """Seconds per bucket."""
    wide: int = 1
    """Dot columns per bucket."""
    mode: Mode = Mode.BRAILLE
    log: bool = False
    window: str = "live"
    """The prefix of the shown time, as in "live 10m"."""
    cursor: float | None = None
    """Unix time of the hairline."""
    marks: tuple[Mark, ...] = ()


GUTTER = 7
"""Columns of the labels of the value axis."""


def gutter(width: int) -> int:
    """Return the columns of the labels in a chart of this width."""
    return GUTTER if width >= 40 else 0


def axis_of(panel: Panel, view: ChartView) -> Axis:
    """Return 0 to 100 %, 0 to the limit of the metric, or 0 to a round value."""
    metric = panel.metric
    if view.log and metric.unit != "%":
        return axis_for(panel.curves, log=True)
    if metric.unit == "%":
        return Axis(0.0, 100.0)
    if panel.limit:
        return Axis(0.0, panel.limit)
    return free_axis(metric, panel.curves)


def free_axis(metric: Quantity, curves: Sequence[Line]) -> Axis:
    """Return the axis of a metric without a limit: around the values of a loss, else from 0 to a round value."""
    if metric.kind == "train" and not metric.unit:
        return near(curves)
    return axis_for(curves, binary=metric.unit in BYTES)


def near(curves: Sequence[Line]) -> Axis:
    """Return round values around the data, since 0 has no meaning for a loss.

    The axis spans at least a tenth of the largest absolute value.
    """
    values = [
        value for line in curves for part in (line.mean, line.low, line.high) for value in finite(part)
    ]
    low, high = min(values, default=0.0), max(values, default=1.0)
    size = max(high - low, 0.1 * max(abs(high), abs(low)), 1e-12)
    step = nice_ceiling(size / 4)
    return Axis(math.floor(low / step) * step, math.ceil(high / step + 1e-9) * step)


def is_young(state: RunState, now: float) -> bool:
    """Whether it is too early to say that a run makes no steps; `now` is unix time by the clock of `state`."""
    if state.phase.ended:
        return False
    lasted = state.attempts[-1].lasted(now) if state.attempts else 0.0
    return lasted is not None and lasted < YOUNG_S


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value that this share of the values does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def at_cursor(curve: Line, view: ChartView, metric: Quantity) -> float | None:
    """Return the value at the hairline, else the newest one if it still holds.

    Reported metrics that are not rates always hold.
    """
    values = curve.mean
    if view.cursor is None:
        return _newest(values, view.bucket, metric)
    back = int((view.span.end - view.cursor) / view.bucket) if view.bucket else 0
    return values[-1 - back] if 0 <= back < len(values) else None


def _newest(values: Values, bucket: float, metric: Quantity) -> float | None:
    """Return the newest value if it still holds; `bucket` is in seconds."""
    known = [at for at, value in enumerate(values) if value is not None]
    if not known:
        return None
    age_s, usual_s = (len(values) - 1 - known[-1]) * bucket, bucket
    if metric.sparse:
        usual_s = (usual_interval(known) or 1.0) * bucket
    stays = metric.holds is Holds.NEXT_REPORT
    return values[known[-1]] if stays or holds(age_s, usual_s) else None


def title_row(panel: Panel, view: ChartView, width: int) -> Row:
    """Return `step time 0.84s · p50 0.84s p99 1.31s · live 10m`, from the left as much as fits."""
    metric = panel.metric
    head: Row = ((chart_title(metric), "head"),)
    if panel.empty:
        return clip((*head, (f"  {NA}", "stale")), width)
    main = panel.curves[0]
    row: Row = (*head, (f" {chart_text(metric, at_cursor(main, view, metric))}", "accent"))
    tops = finite(main.high) or finite(main.mean)
    median = chart_text(metric, percentile(finite(main.mean), 0.5))
    parts: list[Row] = [((f" · p50 {median} p99 {chart_text(metric, percentile(tops, 0.99))}", "dim"),)]
    for curve in panel.curves[1:]:
        if curve.letter:
            parts.append(
                ((f" {curve.letter} {chart_text(metric, at_cursor(curve, view, metric))}", curve.style),)
            )
    if view.window:
        parts.append(((f" · {view.window}", "dim"),))
    for part in parts:
        if row_width((*row, *part)) <= width:
            row = (*row, *part)
    return clip(row, width)


def chart(panel: Panel, view: ChartView, width: int, height: int) -> list[Row]:
    """Return a title and the curves in `height` rows; without data the reason."""
    rows = [title_row(panel, view, width)]
    body = height - 1
    if body < 1:
        return rows[:height]
    if panel.empty:
        why = panel.metric.why
        words = panel.note or (_NOT_YET.get(why, why) if panel.young else why) or "no sample yet"
        text = wrap(words, max(10, width - 2), "stale", first="  ")[:body]
        return rows + text + [()] * (body - len(text))
    axis = axis_of(panel, view)
    edge = gutter(width)
    cells = width - edge
    cursor = None
    if view.cursor is not None:
        at = view.span.at(view.cursor)
        cursor = None if at is None else at - (view.span.cells - cells)
    drawn = draw(panel.curves, cells, body, axis, view.mode, wide=view.wide, cursor=cursor)
    bottom = edge_text(panel.metric, axis.low) if body > 1 else ""
    return rows + with_labels(drawn, edge_text(panel.metric, axis.high), bottom, edge)


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


def chosen(panels: Sequence[Panel], most: int) -> list[Panel]:
    """Return the panels with data; if none has data, the first one, which says why."""
    filled = [panel for panel in panels if not panel.empty]
    return (filled or list(panels[:1]))[:most]


def strip_rows(panels: Sequence[Panel], view: ChartView, width: int, height: int) -> list[Row]:
    """Return as many charts as fit in `height` rows, at least three rows each; below them marks and wall times."""
    if width < 1 or height < 1:
        return []
    edge = gutter(width)
    span = view.span.newest(width - edge)
    foot: list[Row] = []
    if height >= 6:
        marked = mark_row(view.marks, span, view.mode)
        foot = [*([marked] if marked is not None else []), tick_row(span, view.mode)]
        foot = [((" " * edge, "text"), *row) if edge else row for row in foot]
    room = height - len(foot)
    shown = chosen(panels, max(1, room // 3))
    if not shown:
        return []
    size, rest = divmod(room, len(shown))
    rows: list[Row] = []
    for number, panel in enumerate(shown):
        rows += chart(panel, view, width, size + (number < rest))
    return [*rows, *foot]


def side_by_side(left: Sequence[Row], right: Sequence[Row], width: int) -> list[Row]:
    """Join two columns of rows; the left one is `width` cells wide."""
    height = max(len(left), len(right))
    lefts, rights = [*left, *[()] * (height - len(left))], [*right, *[()] * (height - len(right))]
    return [
        (*row, (" " * (width - row_width(row) + 2), "text"), *other)
        for row, other in zip(lefts, rights, strict=True)
    ]


# --- what happened ---


def marks_of(state: RunState) -> tuple[Mark, ...]:
    """Return restarts, findings, checkpoints and changes of NCCL_DEBUG whose time the state knows."""
    marks = [
        Mark(attempt.began, "restart", f"attempt {attempt.number}")
        for attempt in state.attempts
        if attempt.number > 1
    ]
    marks += [
        Mark(finding.since, "finding", finding.text)
        for finding in state.findings.values()
        if finding.since is not None and finding.alarm
    ]
    marks += [Mark(each.at, "checkpoint", each.path) for each in state.checkpoints]
    if state.nccl is not None:
        text = state.nccl.text
        marks += [Mark(at, "nccl", text) for at, notice in state.notices if notice.endswith(text)][-1:]
    return tuple(sorted(marks, key=lambda mark: mark.at))


# --- windows ---

WINDOWS: tuple[tuple[str, float], ...] = (
    ("1m", 60.0),
    ("5m", 300.0),
    ("15m", 900.0),
    ("1h", 3600.0),
    ("6h", 21600.0),
    ("all", 0.0),
)
"""Name and minimum number of seconds; "all" begins at the start of the run."""

LIVE_WINDOW = "5m"

BUCKETS = durations((1, 2, 3, 4, 5, 10, 20, 30), (1, 2, 5, 10, 20, 30), (1, 2, 3, 6, 12), (1,))
"""Seconds per dot: those of the metrics store, or multiples of them."""


def scale(seconds: float, dots: int) -> tuple[int, int]:
    """Return seconds per bucket and dot columns per bucket, so that `dots` columns show at least `seconds`."""
    bucket = next((each for each in BUCKETS if each * dots >= seconds), BUCKETS[-1])
    shown = max(1, -(-int(seconds) // bucket))
    return bucket, max(1, dots // shown) if bucket == BUCKETS[0] else 1


def span_ending(end: float, width: int, bucket: int, wide: int, mode: Mode) -> TimeSpan:
    """Return the span of `width` cells whose last cell contains `end`.

    It ends at a whole number of cells and of buckets, so that the drawing moves by whole cells and keeps its shape.
    """
    cell, step = bucket * mode.across / wide, bucket * mode.across
    edge = (int(end // step) + 1) * step
    return TimeSpan(edge - width * cell, cell, width)


def window_text(live: str, span: TimeSpan) -> str:
    """Return "live 10m": the state of time, and the length of the shown span."""
    return f"{live} {duration_short(span.cell * span.cells)}"


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
