"""Curves as rows: what is drawn, what is not, and what stays where it is when time goes on."""

from __future__ import annotations

import math

from each import for_each
from hypothesis import given, settings
from hypothesis import strategies as st

from distui.tui.rows.glyphs import Row, plain, row_width
from distui.tui.rows.plot import (
    MARKS,
    Axis,
    Line,
    Mark,
    Mode,
    TimeSpan,
    axis_for,
    draw,
    mark_row,
    nice_ceiling,
    sparkline,
    tick_row,
)

VALUES = st.one_of(
    st.none(), st.floats(-1e12, 1e12), st.sampled_from([math.nan, math.inf, -math.inf, 0.0, 50.0, 100.0])
)
MODES = st.sampled_from(list(Mode))


def cells(rows: list[Row], x: int) -> list[str]:
    """One column of cells, from above."""
    return ["".join(text for text, _ in row)[x] for row in rows]


def columns(rows: list[Row], width: int) -> list[list[str]]:
    return [cells(rows, x) for x in range(width)]


def empty(column: list[str]) -> bool:
    return not "".join(column).strip()


@given(st.lists(VALUES, max_size=60), st.integers(1, 40), st.integers(1, 8), MODES, st.booleans())
def test_any_values_give_a_rectangle(
    values: list[float], width: int, height: int, mode: Mode, log: bool
) -> None:
    curves = [Line(values, values, values), Line(values[::-1], style="ok", letter="A")]
    rows = draw(curves, width, height, axis_for(curves, log=log), mode, cursor=width // 2)
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

    def picture(data: list[float | None]) -> list[list[str]]:
        curve = Line(data, data, [None if v is None else min(100.0, v + 7) for v in data])
        return columns(draw([curve], width, 4, Axis(), mode), width)

    before, after = picture(values), picture([*values, *new])
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
    drawn = columns(draw([Line(values)], 150 // mode.across, 5, Axis(), mode), 150 // mode.across)
    gap = [x for x, column in enumerate(drawn) if empty(column)]
    assert gap == list(range(60 // mode.across, 90 // mode.across))


def test_the_mean_is_joined_but_not_over_a_gap() -> None:
    joined = columns(draw([Line([0.0, 0.0, 100.0, 100.0])], 2, 4, Axis()), 2)
    assert joined[1] == ["⠏", "⠇", "⠇", "⠇"] or all(not empty([cell]) for cell in joined[1])
    parted = columns(draw([Line([0.0, 0.0, None, 100.0])], 2, 4, Axis()), 2)
    assert [bool(cell.strip()) for cell in parted[1]] == [True, False, False, False]


def test_a_narrow_chart_shows_the_newest() -> None:
    values = [float(at) for at in range(100)]
    wide, narrow = draw([Line(values)], 50, 4, Axis()), draw([Line(values)], 10, 4, Axis())
    assert columns(wide, 50)[-9:] == columns(narrow, 10)[-9:]


def test_a_bucket_may_take_several_columns() -> None:
    rows = draw([Line([0.0, 100.0])], 4, 1, Axis(), Mode.ASCII, wide=2)
    assert plain(rows) == ["__##"]


def test_zero_is_drawn_and_unknown_is_not() -> None:
    assert sparkline([None, None, 0.0, 0.0], 2) == " ⣀"
    assert sparkline([0.0, 1.0], 2, None, Mode.ASCII) == "_#"


def test_log_scale_leaves_out_what_has_no_logarithm() -> None:
    curve = Line([0.0, -1.0, 1.0, 10.0, 100.0])
    axis = axis_for([curve], log=True)
    assert (axis.low, axis.high) == (1.0, 100.0)
    assert [axis.share(value) for value in curve.mean] == [None, None, 0.0, 0.5, 1.0]


@given(st.floats(1e-9, 1e15), st.booleans())
def test_the_ceiling_is_above_and_near(value: float, binary: bool) -> None:
    ceiling = nice_ceiling(value, binary=binary)
    assert value <= ceiling * (1 + 1e-6)
    assert ceiling <= value * 2.6


def test_the_ceiling_is_round() -> None:
    assert [nice_ceiling(value) for value in (0.84, 1.31, 97, 612, 91_200)] == [1.0, 1.5, 100, 800, 100_000]
    assert nice_ceiling(1.5 * 2**30, binary=True) == 1.5 * 2**30
    assert nice_ceiling(0) == 1.0


def test_ticks_are_at_round_wall_times(utc: None) -> None:
    span = TimeSpan(1_700_000_000.0, 5.0, 60)  # 22:13:20
    text = plain([tick_row(span)])[0]
    assert text.split() == ["╵22:14", "╵22:15", "╵22:16", "╵22:17"]
    assert text.index("╵22:14") == 40 // 5
    assert "|22:14" in plain([tick_row(span, Mode.ASCII)])[0]


def test_marks_stand_where_they_happened() -> None:
    span = TimeSpan(1000.0, 10.0, 20)
    marks = [
        Mark(1005.0, "checkpoint"),
        Mark(1055.0, "restart"),
        Mark(1056.0, "checkpoint"),
        Mark(999.0, "finding"),
    ]
    row = mark_row(marks, span)
    assert row is not None
    assert plain([row]) == ["◆    ▲"]
    assert row_width(row) == 20
    assert mark_row([Mark(5.0, "restart")], span) is None
    ascii_row = mark_row(marks, span, Mode.ASCII)
    assert ascii_row is not None
    assert plain([ascii_row]) == ["c    ^"]
    assert len({glyph for glyph, *_ in MARKS.values()}) == len(MARKS)


def test_the_cursor_is_seen_without_colour() -> None:
    rows = draw([Line([None] * 20)], 10, 3, Axis(), cursor=4)
    assert plain(rows) == ["    │"] * 3
