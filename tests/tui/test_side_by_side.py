"""Rows of two runs in any width, and their curves over each other: by time, by step, in ASCII, with nothing there."""

from __future__ import annotations

import math

import pytest
from each import for_each
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from distui.runners.comparison.account import Account, MetricCurve, Quantity
from distui.runners.comparison.differences import compare, single
from distui.tui.rows.command_line import RunNames, candidates, parse
from distui.tui.rows.compared_curves import charts, points
from distui.tui.rows.comparison import comparison_rows, single_rows
from distui.tui.rows.glyphs import plain, row_width
from distui.tui.rows.plot import Mode
from distui.tui.rows.step_axis import spread_points
from distui.tui.rows.typed_commands import CommandError

STEPS = tuple(float(step) for step in range(0, 100, 5))


def side(title: str, factor: float, steps: tuple[float | None, ...] = STEPS) -> Account:
    values = tuple(factor * (2 + math.sin(at)) for at in range(20))
    curves = (MetricCurve("rank.step_s", 3.0, 2.0, values), MetricCurve("rank.step", 3.0, 2.0, steps))
    numbers = (Quantity("rank.step_s", "step time", "s", factor, 100, (factor, factor), "less"),)
    return Account(
        title, f"run-{title}", "succeeded", quantities=numbers, curves=curves, env_whole=True,
        env={"PATH": ":".join([title] * 60), "A": title}, facts={"plan": {"a name longer than all others are": title}},
    )  # fmt: skip


A, B = side("night", 0.1), side("morning", 0.2, tuple(2 * step for step in STEPS))


@for_each("width", [20, 60, 80, 120, 200])
def test_rows_keep_to_the_width(width: int) -> None:
    rows = [*comparison_rows(compare(A, B), width), *single_rows(single(A), width)]
    assert rows
    if width >= 60:
        assert max(map(row_width, rows)) <= width
    text = "\n".join(plain(rows))
    assert "morning" in text
    assert "2.00x" in text


@for_each("mode", [Mode.BRAILLE, Mode.ASCII])
@for_each(("width", "height"), [(20, 4), (70, 14), (110, 33), (190, 50), (1, 1)])
@for_each("by_step", [False, True])
def test_curves_fill_their_room(mode: Mode, width: int, height: int, by_step: bool) -> None:
    rows = charts(A, B, by_step, mode, width, height)
    assert len(rows) <= max(height, 7)
    assert all(row_width(row) <= max(width, 1) for row in rows)
    if width >= 70:
        text = "\n".join(plain(rows))
        assert "step time  A" in text
        assert text.count("A") > 1  # a letter on each curve
        assert text.count("B") > 1
        assert ("step 0" in text) == by_step
        assert mode is not Mode.ASCII or text.isascii()


def of_training(title: str, *values: float) -> Account:
    """A run with a loss, step times and a metric of the system."""
    account = side(title, values[0])
    curves = tuple(
        MetricCurve(name, 3.0, 2.0, tuple(value / at for at in range(1, 21)))
        for name, value in (("train.loss", values[1]), ("rank.cpu", 10.0), ("train.accuracy", 0.5))
    )
    loss = Quantity("last:train.loss", "loss, last", "", values[1], 20)
    return structs.replace(
        account, curves=(*account.curves, *curves), quantities=(*account.quantities, loss), env={}
    )


def test_the_training_comes_first_and_the_charts_that_do_not_fit_follow_below() -> None:
    a, b = of_training("a", 0.1, 2.5), of_training("b", 0.1, 2.25)
    rows = plain(charts(a, b, False, Mode.BRAILLE, 70, 13))
    titles = [row.split("  A ")[0] for row in rows if "  A " in row and "  B " in row]
    assert titles == ["loss, last", "step time", "accuracy, last", "rank CPU, last"]
    assert len(rows) == 2 * 13, "two pages"
    assert [at for at, row in enumerate(rows) if "0s" in row] == [12, 25]
    assert rows[0].startswith("loss, last  A 2.5  B 2.25")


def test_charts_and_table_have_the_same_numbers_and_equal_ones_no_rows() -> None:
    a, b = of_training("a", 0.1, 2.5), of_training("b", 0.1, 2.25)
    chart = next(row for row in plain(charts(a, b, False, Mode.BRAILLE, 70, 13)) if "step time" in row)
    assert chart.startswith("step time  A 100 ms  B 100 ms")
    compared = compare(a, b, everything=True)
    table = plain(comparison_rows(compared, 90, everything=True))
    assert any(row.split()[:6] == ["step", "time", "100", "ms", "100", "ms"] for row in table)
    shorter = plain(comparison_rows(compare(a, b), 90))
    assert [row for row in shorter if "step time" in row] == [
        "  the same within 2 % or their spread: step time"
    ]
    assert any(row.split()[:2] == ["loss,", "last"] for row in shorter)


def test_by_step_each_value_stands_at_its_step() -> None:
    assert points(A, "rank.step_s", True)[-1][0] == 95
    assert points(B, "rank.step_s", True)[-1][0] == 190
    assert points(A, "rank.step_s", False)[0][0] == 3.0
    assert points(A, "train.loss", False) == []
    unknown = side("x", 1.0, (None,) * 20)
    assert points(unknown, "rank.step_s", True) == []
    assert (
        "x puts the curves over each other by time"
        in plain(charts(unknown, unknown, True, Mode.BRAILLE, 80, 20))[0]
    )


def test_what_is_unknown_is_a_gap() -> None:
    assert spread_points([], 10.0, 4) == [None] * 4
    assert spread_points([(0.0, 1.0), (9.9, 3.0)], 10.0, 4)[0] == 1.0
    far = spread_points([(float(at), 1.0) for at in range(10)] + [(90.0, 1.0)], 100.0, 100)
    assert far[50] is None


def test_without_any_metric_it_says_so() -> None:
    empty = Account("a", "r", "running")
    assert plain(charts(empty, empty, False, Mode.BRAILLE, 80, 20)) == ["no metrics"]
    rows = plain(comparison_rows(compare(empty, empty), 80))
    assert any("no metrics are kept" in row for row in rows)


@settings(max_examples=40)
@given(
    st.lists(st.none() | st.floats(), max_size=30),
    st.floats(0.5, 1e6),
    st.integers(1, 150),
    st.integers(1, 40),
)
def test_any_curve_is_drawn(values: list[float | None], seconds: float, width: int, height: int) -> None:
    """What another host sends may be anything."""
    account = Account("a", "r", "s", curves=(MetricCurve("train.loss", -5.0, seconds, tuple(values)),))
    for mode in (Mode.BRAILLE, Mode.ASCII):
        assert charts(account, A, False, mode, width, height)


def test_the_command_names_another_run() -> None:
    assert parse("compare night@2", lambda: "id").action == "run.compare('night@2')"
    assert "compare" in candidates("com", RunNames())
    for line in ("compare", "compare a b"):
        with pytest.raises(CommandError, match="compare needs the other run"):
            parse(line, lambda: "id")
