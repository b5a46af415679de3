"""Ranks × time: what a rank did, by its steps and waits, in one glyph a stretch of time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from distui.tui.rows.glyphs import plain, row_width
from distui.tui.rows.plot import Mode
from distui.tui.rows.rank_time import GLYPHS, RankSeries, StripState, doings, folded, groups, rank_time_rows
from distui.tui.rows.time_axis import BucketRange, Span

R, W, S, N, B = (
    StripState.RUNNING,
    StripState.WAITS,
    StripState.STALLED,
    StripState.NOTHING_KNOWN,
    StripState.STARTING,
)
VALUES = st.lists(st.one_of(st.none(), st.floats(), st.integers(0, 9).map(float)), max_size=40)


def test_steps_that_go_on_are_running() -> None:
    assert doings(RankSeries(step=[1.0, 2.0, 3.0, 5.0]), 1, 4) == [R] * 4


def test_slow_steps_are_no_stall() -> None:
    step = [float(at // 20) for at in range(120)]
    assert set(doings(RankSeries(step=step, step_s=[20.0] * 120), 1, 120)) == {R}


def test_a_stall_begins_with_the_last_step() -> None:
    step = [float(min(at, 30)) for at in range(100)]
    kinds = doings(RankSeries(step=step, step_s=[1.0] * 100), 1, 100)
    assert kinds[:31] == [R] * 31
    assert kinds[31:] == [S] * 69


def test_who_waits_in_collectives_waits() -> None:
    kinds = doings(RankSeries(step=[1.0, 2.0, 3.0], wait=[10.0, 80.0, 20.0]), 1, 3)
    assert kinds == [R, W, R]


def test_before_the_first_step_and_without_data() -> None:
    assert doings(RankSeries(step=[None, None], wait=[None, 0.0]), 1, 2) == [N, B]
    assert doings(RankSeries(), 1, 3) == [N, N, N]


def test_a_new_attempt_counts_from_zero_and_is_no_stall() -> None:
    step = [50.0] * 5 + [None] * 5 + [0.0] + [float(at) for at in range(1, 10)]
    kinds = doings(RankSeries(step=step, step_s=[1.0] * 20), 1, 20)
    assert kinds[11:] == [R] * 9


def test_a_new_attempt_that_has_made_no_step_is_no_stall() -> None:
    """Imports after a restart take longer than a stall may."""
    begun: list[float | None] = [50.0] * 5 + [None] * 25 + [0.0] * 20
    pace = [1.0] * 5 + [None] * 45
    kinds = doings(RankSeries(step=begun, step_s=pace, wait=[0.0] * 50), 1, 50)
    assert kinds == [R] * 5 + [B] * 45


def test_a_group_shows_the_worst() -> None:
    assert folded([[R, R, N], [R, S, R]]) == [R, S, R]


def test_groups_are_neighbours_of_a_power_of_two() -> None:
    assert groups(range(8), 8) == [(rank,) for rank in range(8)]
    assert [len(part) for part in groups(range(1024), 20)] == [64] * 16
    assert groups(range(5), 3) == [(0, 1), (2, 3), (4,)]


@given(
    st.dictionaries(st.integers(0, 99), st.builds(RankSeries, VALUES, VALUES, VALUES), max_size=30),
    st.integers(1, 120), st.integers(1, 20), st.sampled_from(list(Mode)),
)  # fmt: skip
def test_rows_fit(series: dict[int, RankSeries], width: int, height: int, mode: Mode) -> None:
    rows = rank_time_rows(
        series, Span(1000.0, 5.0, 40), BucketRange(1000.0, 5, 40), width, height, mode, cursor=1100.0
    )
    assert len(rows) <= height
    assert all(row_width(row) <= width for row in rows)


def test_a_picture() -> None:
    hung = [float(min(at, 10)) for at in range(30)]
    busy = [float(at) for at in range(30)]
    series = {
        0: RankSeries(step=hung, step_s=[1.0] * 30, wait=[0.0] * 10 + [100.0] * 20),
        1: RankSeries(step=hung, step_s=[1.0] * 30),
        2: RankSeries(step=busy, step_s=[1.0] * 30),
    }
    span, buckets = Span(1_700_000_000.0, 1.0, 30), BucketRange(1_700_000_000.0, 1, 30)
    rows = plain(rank_time_rows(series, span, buckets, 33, 6, Mode.ASCII))
    assert rows[0] == "r0 ##########wwwwwwwwwwwwwwwwwwww"
    assert rows[1] == "r1 ###########___________________"
    assert rows[2] == "r2 ##############################"
    assert "##" in rows[-1]
    assert "running" in rows[-1]


def test_a_cell_shows_the_worst_of_its_time_and_nothing_of_the_future() -> None:
    hung = RankSeries(step=[float(min(at, 11)) for at in range(40)], step_s=[1.0] * 40)
    span, buckets = Span(1000.0, 8.0, 5), BucketRange(1000.0, 1, 40)
    rows = plain(rank_time_rows({0: hung}, span, buckets, 20, 3, Mode.ASCII, until=1030.0))
    assert rows[0] == "r0 #___"


def test_no_two_states_share_a_glyph() -> None:
    for which in (0, 1):
        assert len({glyph[which] for glyph in GLYPHS.values()}) == len(StripState)
