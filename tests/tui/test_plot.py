"""Curves as rows: what is drawn, what is not, and what stays where it is when time goes on."""

from __future__ import annotations

import math

from each import for_each
from hypothesis import given, settings
from hypothesis import strategies as st

from distui.runners.telemetry.metric_names import find_metric
from distui.tui.rows.charts import edge_text
from distui.tui.rows.glyphs import Row, plain, row_width
from distui.tui.rows.marks import MARKS, Mark, mark_row
from distui.tui.rows.plot import Line, Mode, Rule, draw, sparkline, with_ticks
from distui.tui.rows.time_axis import (
    BucketRange,
    Span,
    Unit,
    Window,
    buckets_of,
    columns,
    folded,
    mean,
    span_of,
    tick_row,
    window_of,
)
from distui.tui.rows.value_axis import Axis, fixed_axis, log_axis, nice_ceiling, round_axis, usual_range

VALUES = st.one_of(
    st.none(), st.floats(-1e12, 1e12), st.sampled_from([math.nan, math.inf, -math.inf, 0.0, 50.0, 100.0])
)
MODES = st.sampled_from(list(Mode))


def cells(rows: list[Row], x: int) -> list[str]:
    """One column of cells, from above."""
    return ["".join(text for text, _ in row)[x] for row in rows]


def picture(rows: list[Row], width: int) -> list[list[str]]:
    return [cells(rows, x) for x in range(width)]


def empty(column: list[str]) -> bool:
    return not "".join(column).strip()


@given(st.lists(VALUES, max_size=60), st.integers(1, 40), st.integers(1, 8), MODES, st.booleans())
def test_any_values_give_a_rectangle(
    values: list[float], width: int, height: int, mode: Mode, log: bool
) -> None:
    curves = [Line(values, values, values), Line(values[::-1], style="ok", letter="A")]
    axis = log_axis([1.0, 50.0], height) if log else round_axis(0.0, 50.0, height)
    rows = draw(curves, width, height, axis, mode, {width // 2: Rule()})
    assert [row_width(row) for row in rows] == [width] * height


@given(st.lists(VALUES, max_size=60), st.integers(1, 40), MODES)
def test_a_sparkline_has_its_width(values: list[float], width: int, mode: Mode) -> None:
    assert len(sparkline(values, width, None, mode)) == width


@given(st.lists(st.sampled_from([None, math.nan, math.inf]), max_size=60), MODES)
def test_what_is_unknown_is_never_drawn(values: list[float | None], mode: Mode) -> None:
    rows = draw([Line(values, values, values)], 20, 4, Axis(), mode)
    assert not "".join(plain(rows)).strip()


@settings(max_examples=40)
@given(
    st.lists(st.one_of(st.none(), st.floats(0, 100)), min_size=90, max_size=120),
    st.lists(st.one_of(st.none(), st.floats(0, 100)), min_size=2, max_size=2),
    MODES,
)
def test_shifting_by_a_cell_changes_only_the_edges(
    values: list[float | None], fresh: list[float | None], mode: Mode
) -> None:
    width, new = 30, fresh[: mode.across]

    def drawn(data: list[float | None]) -> list[list[str]]:
        data = data[-width * mode.across :]
        curve = Line(data, data, [None if v is None else min(100.0, v + 7) for v in data])
        return picture(draw([curve], width, 4, Axis(), mode), width)

    before, after = drawn(values), drawn([*values, *new])
    assert before[2:] == after[1:-1]


@for_each("mode", list(Mode))
def test_a_spike_in_a_folded_bucket_is_visible(mode: Mode) -> None:
    flat = [1.0] * 60
    with_spike = [*flat]
    with_spike[31] = 100.0
    plain_rows = draw([Line(flat, flat, flat)], 60 // mode.across, 6, Axis(), mode)
    rows = draw([Line(flat, flat, with_spike)], 60 // mode.across, 6, Axis(), mode)
    assert plain(plain_rows)[0] == ""
    top = plain(rows)[0]
    assert len(top.strip()) == 1
    assert len(top) - 1 == 31 // mode.across


@for_each("mode", list(Mode))
def test_a_gap_stays_a_gap(mode: Mode) -> None:
    values: list[float | None] = [10.0] * 60 + [None] * 30 + [90.0] * 60
    drawn = picture(draw([Line(values)], 150 // mode.across, 5, Axis(), mode), 150 // mode.across)
    gap = [x for x, column in enumerate(drawn) if empty(column)]
    assert gap == list(range(60 // mode.across, 90 // mode.across))


def test_the_mean_is_joined_but_not_over_a_gap() -> None:
    joined = picture(draw([Line([0.0, 0.0, 100.0, 100.0])], 2, 4, Axis()), 2)
    assert joined[1] == ["⠏", "⠇", "⠇", "⠇"] or all(not empty([cell]) for cell in joined[1])
    parted = picture(draw([Line([0.0, 0.0, None, 100.0])], 2, 4, Axis()), 2)
    assert [bool(cell.strip()) for cell in parted[1]] == [True, False, False, False]


def test_zero_is_drawn_and_unknown_is_not() -> None:
    assert sparkline([None, None, 0.0, 0.0], 2) == " ⣀"
    assert sparkline([0.0, 1.0], 2, None, Mode.ASCII) == "_#"


def test_log_scale_leaves_out_what_has_no_logarithm() -> None:
    curve = Line([0.0, -1.0, 1.0, 10.0, 100.0])
    axis = log_axis([0.0, -1.0, 1.0, 10.0, 100.0], 8)
    assert (axis.low, axis.high) == (1.0, 100.0)
    assert axis.ticks == (1.0, 10.0, 100.0)
    assert [axis.share(value) for value in curve.mean] == [None, None, 0.0, 0.5, 1.0]


def test_a_log_scale_of_bytes_has_round_units() -> None:
    axis = log_axis([1_010.0, 900e6], 16, binary=True)
    assert axis.low <= 1_010.0
    assert axis.high >= 900e6
    metric = find_metric("host.net_rx")
    texts = [edge_text(metric, tick) for tick in log_axis([12.0, 5e9], 40, binary=True).ticks]
    assert texts == ["10 B", "100 B", "1K", "10K", "100K", "1M", "10M", "100M", "1G", "10G"]


@given(st.floats(1e-9, 1e15), st.booleans())
def test_the_ceiling_is_above_and_near(value: float, binary: bool) -> None:
    ceiling = nice_ceiling(value, binary=binary)
    assert value <= ceiling * (1 + 1e-6)
    assert ceiling <= value * 2.6


def test_the_ceiling_is_round() -> None:
    assert [nice_ceiling(value) for value in (0.84, 1.31, 97, 612, 91_200)] == [1.0, 1.5, 100, 800, 100_000]
    assert nice_ceiling(1.5 * 2**30, binary=True) == 1.5 * 2**30
    assert nice_ceiling(0) == 1.0


@given(st.floats(-1e9, 1e12), st.floats(1e-6, 1e12), st.integers(1, 60), st.booleans())
def test_an_axis_has_round_edges_around_its_values(
    low: float, size: float, rows: int, binary: bool
) -> None:
    axis = round_axis(low, low + size, rows, binary=binary)
    slack = 1e-6 * max(abs(axis.low), abs(axis.high))
    assert axis.low <= low + slack
    assert low + size <= axis.high + slack
    assert (axis.ticks[0], axis.ticks[-1]) == (axis.low, axis.high)
    assert len(axis.ticks) <= max(2, round(rows / 3) + 1)


def test_an_axis_has_a_label_every_few_rows() -> None:
    assert round_axis(0.0, 0.84, 4).ticks == (0.0, 1.0)
    assert round_axis(0.0, 0.84, 9).ticks == (0.0, 0.5, 1.0)
    assert round_axis(0.0, 0.255, 8).ticks == (0.0, 0.1, 0.2, 0.3), "little room is wasted"
    assert round_axis(2.31, 2.46, 8).ticks == (2.3, 2.4, 2.5)
    assert fixed_axis(100.0, 16).ticks == (0.0, 25.0, 50.0, 75.0, 100.0)
    assert fixed_axis(100.0, 13).ticks == (0.0, 50.0, 100.0), "in equal parts"
    assert fixed_axis(700.0, 8).ticks == (0.0, 400.0, 700.0)
    gib = 2.0**30
    assert fixed_axis(80 * gib, 16, binary=True).ticks == tuple(at * gib for at in (0, 20, 40, 60, 80))


@for_each(
    ("values", "base", "expected"),
    [
        ([0.6] * 200 + [139.0], 0.0, (0.0, 0.6)),  # after a hang
        ([0.6] * 40 + [2.5], 0.0, (0.0, 0.6)),  # the first step of a young run
        ([0.6] * 40 + [0.7], 0.0, (0.0, 0.7)),  # nothing is gained by a clipped value
        ([0.5, 139.0], 0.0, (0.0, 139.0)),  # nothing is rare among two values
        ([2.3, 2.4] * 60 + [11.0], None, (2.3, 2.4)),
        ([], None, (0.0, 1.0)),
    ],
)
def test_rare_values_do_not_stretch_an_axis(
    values: list[float], base: float | None, expected: tuple[float, float]
) -> None:
    assert usual_range(values, values, base) == expected


@for_each("mode, glyph", [(Mode.BRAILLE, "▲"), (Mode.ASCII, "^")])
def test_a_clipped_value_is_marked_in_the_upper_row(mode: Mode, glyph: str) -> None:
    values = [0.5] * 10 * mode.across
    values[3 * mode.across] = 139.0
    rows = plain(draw([Line(values)], 10, 4, round_axis(0.0, 0.6, 4), mode))
    assert rows[0].index(glyph) == 3
    assert "".join(rows).count(glyph) == 1


def test_labels_are_in_the_rows_of_their_values() -> None:
    axis = round_axis(0.0, 0.84, 9)
    rows = with_ticks([((" " * 5, "text"),)] * 9, axis, "{:g}".format, 5, Mode.BRAILLE)
    assert plain(rows) == ["   1┤", *["    │"] * 3, " 0.5┤", *["    │"] * 3, "   0┤"]
    ascii_rows = with_ticks([((" ", "text"),)] * 2, fixed_axis(100.0, 2), "{:g}".format, 5, Mode.ASCII)
    assert plain(ascii_rows) == [" 100+", "   0+"]


@for_each("mode", list(Mode))
def test_letters_identify_curves_without_colour(mode: Mode) -> None:
    size = 40 * mode.across
    rows = draw([Line([20.0] * size, letter="A"), Line([80.0] * size, letter="B")], 40, 8, Axis(), mode)
    text = plain(rows)
    assert [("A" in row, "B" in row) for row in (text[1], text[6])] == [(False, True), (True, False)]


def test_ticks_are_at_round_wall_times(utc: None) -> None:
    span = Span(1_700_000_000.0, 5.0, 60)  # 22:13:20
    text = plain([tick_row(span, "╵")])[0]
    assert text.split() == ["╵22:14", "╵22:15", "╵22:16", "╵22:17"]
    assert text.index("╵22:14") == 40 // 5
    young = plain([tick_row(span, "╵", 1_700_000_100.0)])[0]
    assert young.split() == ["╵22:14", "╵22:15"], "no label is in the future"
    steps = plain([tick_row(Span(0.0, 10.0, 60, Unit.STEP), "|")])[0]
    assert steps.split("|")[1:] == ["step 0        ", "step 150      ", "step 300      ", "step 450"]
    since = plain([tick_row(Span(0.0, 2.5, 60, Unit.SINCE), "|")])[0]
    assert since.split() == ["|0s", "|30s", "|1m", "|1m30s", "|2m"]


@given(st.floats(1e9, 2e9), st.sampled_from([60.0, 300.0, 21600.0]), st.integers(1, 200), st.integers(1, 2))
def test_a_span_moves_by_whole_cells_and_keeps_its_shape(
    now: float, seconds: float, cells: int, across: int
) -> None:
    one, later = span_of(Window(now, seconds), cells), span_of(Window(now + 7.0, seconds), cells)
    assert one.begin <= now < one.end + 1e-3
    moved = (later.begin - one.begin) / one.cell
    assert abs(moved - round(moved)) < 1e-3
    buckets, after = buckets_of(one, across), buckets_of(later, across)
    shift = (after.begin - buckets.begin) / buckets.seconds
    before = [(part.start, part.stop) for part in columns(one, across, buckets)][round(moved) * across :]
    moved_on = [(part.start + shift, part.stop + shift) for part in columns(later, across, after)]
    assert before[1:] == moved_on[1 : len(before)] or not before


def test_a_window_begins_with_the_first_sample_and_grows_seldom() -> None:
    lengths = [window_of(1000.0, 1000.0 + age, 300.0, growing=True) for age in range(1, 900)]
    assert all(round(window.begin, 6) == 1000.0 for window in lengths[:250])
    assert len({window.seconds for window in lengths}) < 30
    assert all(window.end >= 1000.0 + age for age, window in enumerate(lengths, start=1))
    assert lengths[-1] == Window(1899.0, 300.0)
    assert window_of(1000.0, 1090.0, 300.0, growing=False) == Window(1090.0, 90.0)


def test_all_widths_have_the_same_window() -> None:
    window = Window(1_700_000_123.4, 300.0)
    for cells in (20, 93, 186):
        span = span_of(window, cells)
        assert abs(span.begin - window.begin) <= span.cell
        assert abs(span.end - window.end) <= span.cell


def test_several_buckets_are_one_column_and_one_bucket_is_several() -> None:
    parts = columns(Span(0.0, 2.0, 3), 1, BucketRange(0.0, 1, 6))
    assert folded([1.0, 3.0, None, 5.0, None, None], parts, mean) == [2.0, 5.0, None]
    parts = columns(Span(0.0, 1.0, 2), 2, BucketRange(0.0, 1, 2))
    assert folded([1.0, 2.0], parts, mean) == [1.0, 1.0, 2.0, 2.0]


def test_marks_are_where_they_happened() -> None:
    span = Span(1000.0, 10.0, 20)
    marks = [Mark(1005.0, "checkpoint"), Mark(1055.0, "restart"), Mark(999.0, "finding")]
    row = mark_row(marks, span)
    assert row is not None
    assert plain([row]) == ["◆    ▲"]
    assert row_width(row) == 20
    assert mark_row([Mark(5.0, "restart")], span) is None
    ascii_row = mark_row(marks, span, Mode.ASCII)
    assert ascii_row is not None
    assert plain([ascii_row]) == ["c    ^"]
    assert len({glyph for glyph, *_ in MARKS.values()}) == len(MARKS)


def test_in_one_cell_the_worse_mark_is_seen_in_any_order() -> None:
    span = Span(1000.0, 10.0, 3)
    kinds = ["nccl", "checkpoint", "finding", "restart"]
    for number in range(1, 5):
        marks = [Mark(1002.0, kind) for kind in kinds[:number]]
        for order in (marks, marks[::-1]):
            row = mark_row(order, span)
            assert row is not None
            assert plain([row]) == [MARKS[kinds[number - 1]][0]]


def test_a_vertical_line_is_seen_without_colour_and_has_its_label() -> None:
    rows = draw([Line([None] * 40)], 20, 3, Axis(), rules={4: Rule("bad", "attempt 2")})
    assert plain(rows) == ["    │attempt 2", "    │", "    │"]
    crowded = draw([Line([None] * 40)], 10, 3, Axis(), rules={4: Rule("bad", "attempt 2")})
    assert plain(crowded) == ["    │"] * 3
