"""Charts: titles, scales, empty states, and that they fit whatever room there is."""

from __future__ import annotations

from collections.abc import Sequence

from each import for_each
from hypothesis import given
from hypothesis import strategies as st

from distui.runners.run.model import AttemptStarted, RankPlace, RunEnded, RunPhase, Stamped
from distui.runners.run.state import RunState
from distui.runners.telemetry.metric_names import METRICS, find_metric
from distui.runners.telemetry.quantity_text import count_short
from distui.tui.rows.charts import (
    WINDOWS,
    ChartView,
    Panel,
    axis_of,
    held,
    is_young,
    scale,
    span_ending,
    strip_rows,
    title_row,
    window_text,
)
from distui.tui.rows.glyphs import plain, row_width
from distui.tui.rows.plot import Line, Mark, Mode, TimeSpan

NOW = 1_700_000_123.4


def view(width: int, window: float = 300.0, mode: Mode = Mode.BRAILLE, **more: object) -> ChartView:
    bucket, wide = scale(window, width * mode.across)
    span = span_ending(NOW, width, bucket, wide, mode)
    return ChartView(
        span=span,
        bucket=bucket,
        wide=wide,
        mode=mode,
        window=window_text("live", span),
        **more,  # type: ignore[arg-type]
    )


def steps(values: Sequence[float | None]) -> Panel:
    return Panel(find_metric("rank.step_s"), (Line(tuple(values)),))


def test_a_title_says_value_percentiles_and_window() -> None:
    panel = steps([0.8] * 150 + [1.31] * 2 + [0.8])
    assert plain([title_row(panel, view(60), 80)]) == ["step time 800ms · p50 800ms p99 1.31s · live 6m"]
    assert plain([title_row(panel, view(60), 30)]) == ["step time 800ms · live 6m"]


def test_a_value_that_is_old_is_not_shown_as_now() -> None:
    assert plain([title_row(steps([0.8] * 50 + [None] * 50), view(60), 24)]) == ["step time n/a · live 6m"]


def test_an_empty_chart_says_why() -> None:
    (row, *rest) = plain(strip_rows([Panel(find_metric("rank.step_s"))], view(60), 60, 5))
    assert row == "step time  n/a"
    assert "hook" in " ".join(rest)
    assert "distui lint" in " ".join(rest)
    (_, *rest) = plain(strip_rows([Panel(find_metric("rank.step_s"), young=True)], view(60), 60, 5))
    assert [line.strip() for line in rest if line.strip()] == ["no step yet"]
    (_, *rest) = plain(strip_rows([Panel(find_metric("gpu.of_a_newer_distui"))], view(60), 60, 5))
    assert " ".join(rest).strip() == "no sample yet"
    noted = Panel(find_metric("rank.step_s"), note="no metrics of this run are kept here")
    assert "no metrics of this run" in " ".join(plain(strip_rows([noted], view(60), 60, 5)))


def test_an_attempt_is_young_until_a_first_step_should_have_come() -> None:
    state = RunState()
    assert is_young(state, 1000.0), "nodes come up"
    state.apply(Stamped(1000.0, AttemptStarted(1, "launch", 1, (RankPlace(0, 0),)), 1))
    assert is_young(state, 1030.0)
    assert not is_young(state, 1130.0)
    state.apply(Stamped(1031.0, RunEnded(RunPhase.FAILED, 1, ""), 2))
    assert not is_young(state, 1032.0)


@given(
    st.integers(1, 220), st.integers(1, 70), st.integers(0, 12), st.sampled_from(list(Mode)),
    st.sampled_from([seconds for _, seconds in WINDOWS]), st.booleans(),
)  # fmt: skip
def test_charts_fit_their_pane(
    width: int, height: int, count: int, mode: Mode, window: float, log: bool
) -> None:
    panels = [Panel(metric, (Line((1.0, None, 3.0) * 60),)) for metric in [*METRICS.values()][:count]]
    shown = view(max(1, width - 7), window or 9e5, mode, log=log, marks=(Mark(NOW - 60, "restart"),))
    rows = strip_rows(panels, shown, width, height)
    assert len(rows) <= height
    assert all(row_width(row) <= width for row in rows)
    if count:
        assert len(rows) == height


@given(st.floats(1, 4e6), st.integers(2, 500))
def test_a_window_is_filled_and_never_shorter(seconds: float, dots: int) -> None:
    bucket, wide = scale(seconds, dots)
    shown = dots // wide * bucket
    assert shown >= min(seconds - 1, 86400 * dots) or wide > 1
    assert wide == 1 or bucket == 1


@given(
    st.floats(1e9, 2e9),
    st.integers(1, 200),
    st.sampled_from([1, 2, 5, 60, 3600]),
    st.sampled_from(list(Mode)),
)
def test_a_span_moves_by_whole_cells(now: float, width: int, bucket: int, mode: Mode) -> None:
    one = span_ending(now, width, bucket, 1, mode)
    assert one.begin <= now < one.end or width == 1
    assert one.end % bucket == 0
    assert (span_ending(now + bucket, width, bucket, 1, mode).begin - one.begin) % one.cell == 0


def test_domains_are_those_of_the_metric() -> None:
    flat = (Line((3.0,)),)
    assert axis_of(Panel(find_metric("gpu.util"), flat), view(60)).high == 100.0
    assert axis_of(Panel(find_metric("gpu.mem"), flat, limit=80 * 2.0**30), view(60)).high == 80 * 2**30
    assert axis_of(Panel(find_metric("rank.cpu"), (Line((412.0,)),)), view(60)).high == 500.0
    loss = axis_of(Panel(find_metric("train.loss"), (Line((2.31, 2.41)),)), view(60))
    assert 2.0 < loss.low <= 2.31 < 2.41 <= loss.high < 2.7


@for_each(
    ("value", "text"),
    [(2.31149, "2.311"), (91_234, "91.2k"), (6048, "6048"), (3e-4, "3e-4"), (0, "0"), (0.05, "0.05"), (1.2e9, "1.2G")],
)  # fmt: skip
def test_numbers_are_short(value: float, text: str) -> None:
    assert count_short(value) == text


def test_marks_are_in_the_same_column_as_the_curve() -> None:
    now = NOW // 10 * 10
    shown = view(53, 300.0, marks=(Mark(now - 100, "restart"),))
    assert shown.bucket == 3
    values = [None if at != 105 - 33 else 100.0 for at in range(106)]
    rows = plain(strip_rows([Panel(find_metric("gpu.util"), (Line(tuple(values)),))], shown, 60, 8))
    drawn = next(row for row in rows[1:-2] if any(0x2800 < ord(letter) < 0x2900 for letter in row[7:]))
    column = next(at for at, letter in enumerate(drawn) if 0x2800 < ord(letter) < 0x2900)
    assert abs(rows[-2].index("▲") - column) <= 1


def test_a_span_knows_its_cells() -> None:
    span = TimeSpan(100.0, 10.0, 5)
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
