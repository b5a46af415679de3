"""Charts: titles, scales, empty states, and that they fit whatever room there is."""

from __future__ import annotations

from collections.abc import Sequence

from each import for_each
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from distui.runners.run.model import AttemptStarted, RankPlace, RunEnded, RunPhase, Stamped
from distui.runners.run.state import RunState
from distui.runners.telemetry.metric_names import METRICS, find_metric
from distui.runners.telemetry.quantity_text import count_short
from distui.tui.rows.charts import (
    ChartView,
    Panel,
    axis_of,
    chart,
    charts_rows,
    gutter,
    held,
    is_young,
    newest,
    old_value,
    rows_of_charts,
    title_row,
)
from distui.tui.rows.glyphs import plain, row_width
from distui.tui.rows.marks import Mark
from distui.tui.rows.plot import Line, Mode
from distui.tui.rows.step_axis import Steps
from distui.tui.rows.time_axis import WINDOWS, Span, Window, span_of

NOW = 1_700_000_123.4
STEP_TIME = find_metric("rank.step_s")


def view(width: int, seconds: float = 300.0, mode: Mode = Mode.BRAILLE, **more: object) -> ChartView:
    span = span_of(Window(NOW, seconds), max(1, width - gutter(width)))
    return ChartView(span=span, mode=mode, **more)  # type: ignore[arg-type]


def steps(values: Sequence[float | None]) -> Panel:
    line = Line(tuple(values), now=newest(values, 1.0, STEP_TIME), old=old_value(values, 1.0))
    return Panel(STEP_TIME, (line,))


def test_a_title_says_value_and_percentiles() -> None:
    panel = steps([0.8] * 150 + [1.31] * 2 + [0.8])
    assert plain([title_row(panel, 80)]) == ["step time 800 ms/step · p50 800ms p99 1.31s"]
    assert plain([title_row(panel, 30)]) == ["step time 800 ms/step"]


def test_a_value_that_is_old_is_not_shown_as_now() -> None:
    row = title_row(steps([0.8] * 51 + [None] * 50), 34)
    assert plain([row]) == ["step time 800 ms/step · 50 s ago"]
    assert row[1][1] == "stale"


def test_an_empty_chart_says_why() -> None:
    (row, *rest) = plain(charts_rows([Panel(find_metric("rank.step_s"))], view(60), 60, 5))
    assert row == "step time  n/a"
    assert "hook" in " ".join(rest)
    assert "distui lint" in " ".join(rest)
    (_, *rest) = plain(charts_rows([Panel(find_metric("rank.step_s"), young=True)], view(60), 60, 5))
    assert [line.strip() for line in rest if line.strip()] == ["no step yet"]
    (_, *rest) = plain(charts_rows([Panel(find_metric("gpu.of_a_newer_distui"))], view(60), 60, 5))
    assert " ".join(rest).strip() == "no sample yet"
    noted = Panel(find_metric("rank.step_s"), note="no metrics of this run are kept here")
    assert "no metrics of this run" in " ".join(plain(charts_rows([noted], view(60), 60, 5)))


def test_an_attempt_is_young_until_a_first_step_should_have_come() -> None:
    state = RunState()
    assert is_young(state, 1000.0), "nodes come up"
    state.apply(Stamped(1000.0, AttemptStarted(1, "launch", 1, (RankPlace(0, 0),)), 1))
    assert is_young(state, 1030.0)
    assert not is_young(state, 1130.0)
    state.apply(Stamped(1031.0, RunEnded(RunPhase.FAILED, 1, ""), 2))
    assert not is_young(state, 1032.0)


@given(
    st.integers(1, 220), st.integers(1, 70), st.integers(1, 12), st.sampled_from(list(Mode)),
    st.sampled_from([seconds for _, seconds in WINDOWS]), st.booleans(), st.booleans(),
)  # fmt: skip
def test_charts_fit_their_pane(
    width: int, height: int, count: int, mode: Mode, window: float, log: bool, by_step: bool
) -> None:
    panels = [Panel(metric, (Line((1.0, None, 3.0) * 60),)) for metric in [*METRICS.values()][:count]]
    marks = (Mark(NOW - 60, "restart", "attempt 2"), Mark(NOW - 9, "finding"))
    shown = view(
        width, min(window, 9e5), mode, log=log, marks=marks, cursor=NOW - 20, legend=(("A n1", "ok"),)
    )
    if by_step:
        counts = tuple(map(float, range(shown.span.cells * mode.across)))
        shown = replace(shown, steps=Steps(shown.span, counts))
    rows = charts_rows(panels[: rows_of_charts(height)], shown, width, height)
    assert len(rows) == height
    assert all(row_width(row) <= width for row in rows)


def test_axes_are_those_of_the_metric() -> None:
    def axis(name: str, values: tuple[float, ...], limit: float | None = None) -> tuple[float, float]:
        found = axis_of(find_metric(name), [Line(values)], 4, limit, False)
        return found.low, found.high

    assert axis("gpu.util", (3.0,)) == (0.0, 100.0)
    assert axis("gpu.mem", (3.0,), 80 * 2.0**30) == (0.0, 80 * 2.0**30)
    assert axis("rank.cpu", (412.0,)) == (0.0, 500.0)
    low, high = axis("train.loss", (2.31, 2.41))
    assert 2.0 < low <= 2.31 < 2.41 <= high < 2.7


def test_charts_are_readable_or_fewer() -> None:
    assert [rows_of_charts(height) for height in (3, 8, 13, 14, 30)] == [1, 1, 1, 2, 4]


@for_each(
    ("value", "text"),
    [(2.31149, "2.311"), (91_234, "91.2k"), (6048, "6,048"), (3e-4, "3e-4"), (0, "0"), (0.05, "0.05"), (1.2e9, "1.2G")],
)  # fmt: skip
def test_numbers_are_short(value: float, text: str) -> None:
    assert count_short(value) == text


def test_marks_are_in_the_same_column_as_the_curve() -> None:
    shown = view(60, marks=(Mark(NOW - 100, "finding"),))
    column = shown.span.at(NOW - 100)
    assert column is not None
    values = [None if at // 2 != column else 100.0 for at in range(shown.span.cells * 2)]
    rows = plain(charts_rows([Panel(find_metric("gpu.util"), (Line(tuple(values)),))], shown, 60, 8))
    drawn = next(row for row in rows if any(0x2800 < ord(letter) < 0x2900 for letter in row[7:]))
    assert next(at for at, letter in enumerate(drawn) if 0x2800 < ord(letter) < 0x2900) == rows[-2].index(
        "!"
    )


def test_a_restart_is_a_line_through_all_charts() -> None:
    shown = view(60, marks=(Mark(NOW - 200, "restart", "attempt 2"),))
    rows = plain(chart(steps([None] * 105 + [0.8]), shown, 60, 8))
    assert "│attempt 2" in rows[1]
    column = rows[1].index("│attempt 2")
    assert [row[column] for row in rows[1:]] == ["│"] * 7


def test_by_step_a_pause_takes_no_room_and_the_newest_step_is_at_the_right() -> None:
    span = Span(0.0, 1.0, 40)
    counts = (*map(float, range(30)), *[29.0] * 40, *map(float, range(30, 40)))
    by_step = Steps(span, counts)
    axis = by_step.axis
    assert axis is not None
    assert (axis.begin, axis.end) == (0.0, 39.0)
    values = by_step.moved(Line((0.5,) * 30 + (None,) * 40 + (0.7,) * 10)).mean
    assert None not in values
    assert (values[0], values[-1]) == (0.5, 0.7)
    assert by_step.at(12.2) == 24.0
    assert by_step.time_of(24.0) == 12.25


def test_without_steps_the_axis_stays_one_of_time() -> None:
    shown = view(60)
    assert replace(shown, steps=Steps(shown.span, (None,) * 106)).axis == shown.span


def test_a_span_knows_its_cells() -> None:
    span = Span(100.0, 10.0, 5)
    assert [span.at(when) for when in (99.9, 100.0, 109.9, 149.9, 150.0)] == [None, 0, 0, 4, None]


def test_a_reported_value_holds_until_the_next_but_not_through_a_gap() -> None:
    nothing: list[float | None] = [None]
    every_fifth: list[float | None] = [2.0, *nothing * 4] * 4
    assert held(every_fifth) == [2.0] * 16 + nothing * 4, "the newest is one report, not a line"
    hang: list[float | None] = [*every_fifth, *nothing * 60, 1.0, *nothing * 4, 1.0]
    assert held(hang) == [2.0] * 20 + nothing * 60 + [1.0] * 6
    assert held([None, 1.0, None, None]) == [None, 1.0, None, None]
    assert held([1.0, None, None, 3.0]) == [1.0, 1.0, 1.0, 3.0]
    assert held([]) == []
