"""Where panes stand: inside the screen, never over each other, the important ones first, and no empty part."""

from __future__ import annotations

from itertools import combinations, product

from each import for_each
from msgspec.structs import replace

from distui.tui.rows.layout import LEAST_LOG, LEAST_RANKS, Arrangement, Choice, Rect, Wants, arrange
from distui.tui.rows.layouts import LAYOUTS
from distui.tui.rows.rank_time import rows_wanted

SIZES = [
    (60, 15),
    (60, 24),
    (80, 24),
    (80, 30),
    (109, 60),
    (110, 30),
    (120, 40),
    (159, 45),
    (160, 45),
    (200, 60),
    (300, 100),
]
OVERVIEW = Choice()
PANES = ["overview", "ranks", "log", "curves", "nccl", "findings", "events"]


def wants(ranks: int, gpus: int, nodes: int = 1, **more: object) -> Wants:
    rows = -(-nodes // 3) if nodes > 4 else 2 * nodes
    values: dict[str, object] = {
        "map": lambda width: rows,
        "gpus": gpus + 1 if 0 < gpus <= 32 else 0,
        "ranks": ranks + 1 if ranks else 0,
        "strip": lambda most: rows_wanted(nodes if ranks > 64 else ranks, most),
        "card": lambda width: 9,
        "crowded": nodes > 24,
    }
    return Wants(**(values | more))  # type: ignore[arg-type]


RUNS = {
    "two on the cpu": wants(2, 0),
    "demo": wants(2, 3),
    "a node": wants(8, 8),
    "four nodes": wants(32, 32, 4),
    "128 nodes": wants(1024, 1024, 128),
    "ended": wants(8, 0, ended=True, end=lambda width: 30),
    "launching": wants(0, 0, launching=True, launch=lambda width: 9),
}


def body(width: int, height: int, made: Arrangement) -> Rect:
    return Rect(0, 0, width, height - made.header - 2 - made.banner - made.flash)


def overlap(one: Rect, other: Rect) -> bool:
    apart = (
        one.x + one.width <= other.x or other.x + other.width <= one.x
        or one.y + one.height <= other.y or other.y + other.height <= one.y
    )  # fmt: skip
    return not apart


CHOICES = [
    *(Choice(pane) for pane in PANES),
    *(Choice(layout=layout) for layout in LAYOUTS),
    *(Choice(maximised=pane) for pane in ("ranks", "curves", "nothing")),
]


@for_each("size, choice, run, notices", product(SIZES, CHOICES, RUNS, [(0, 0), (4, 0), (9, 3)]))
def test_panes_fill_the_body_and_do_not_overlap(
    size: tuple[int, int], choice: Choice, run: str, notices: tuple[int, int]
) -> None:
    width, height = size
    made = arrange(width, height, choice, RUNS[run], *notices)
    whole = body(width, height, made)
    for rect in made.panes.values():
        assert min(rect.x, rect.y) >= 0
        assert rect.width > 0
        assert rect.height > 1
        assert rect.x + rect.width <= whole.width
        assert rect.y + rect.height <= whole.height
    for one, other in combinations(made.panes.values(), 2):
        assert not overlap(one, other)
    assert sum(rect.width * rect.height for rect in made.panes.values()) == whole.width * whole.height


def test_a_maximised_pane_is_alone() -> None:
    made = arrange(200, 60, Choice(maximised="curves"), RUNS["a node"])
    assert list(made.panes) == ["curves"]
    assert made.main == "curves"
    absent = arrange(200, 60, Choice(maximised="nccl"), RUNS["a node"])
    assert absent == arrange(200, 60, OVERVIEW, RUNS["a node"])


@for_each(
    ("layout", "panes"),
    [
        ("cluster", "curves events gpus log ranks strip"),
        ("log", "card curves events log ranks"),
        ("profile", "curves gpus log ranks strip"),
    ],
)
def test_layouts_have_their_panes(layout: str, panes: str) -> None:
    made = arrange(200, 60, Choice(layout=layout), RUNS["a node"])
    assert " ".join(sorted(made.panes)) == panes
    assert len(arrange(80, 24, Choice(layout=layout), RUNS["a node"]).panes) == 2
    ended = arrange(200, 60, Choice(layout=layout), RUNS["ended"])
    assert ended == arrange(200, 60, OVERVIEW, RUNS["ended"]), "how a run ended is always shown"


@for_each(
    "size, run, banner",
    product(
        [(80, 24), (120, 40), (200, 60)],
        ["two on the cpu", "demo", "a node", "four nodes", "128 nodes"],
        [0, 2],
    ),
)
def test_ranks_and_the_log_are_always_there(size: tuple[int, int], run: str, banner: int) -> None:
    made = arrange(*size, OVERVIEW, RUNS[run], banner)
    frame = 2 if made.framed else 1
    count = RUNS[run].ranks - 1
    assert made.panes["ranks"].height - frame - 1 >= min(count, LEAST_RANKS)
    assert made.panes["log"].height - frame >= LEAST_LOG


def test_what_80_by_24_shows() -> None:
    made = arrange(80, 24, OVERVIEW, RUNS["a node"])
    assert list(made.panes) == ["ranks", "curves", "log"]
    assert (made.header, made.banner) == (2, 0)
    many = arrange(80, 24, OVERVIEW, RUNS["128 nodes"])
    assert list(many.panes) == ["map", "ranks", "log"]


@for_each("run, flash", product(["demo", "a node"], [0, 1, 3]))
def test_a_notice_takes_no_table_of_the_rank_pane_away(run: str, flash: int) -> None:
    made = arrange(80, 24, Choice("ranks"), RUNS[run], flash=flash)
    assert {"gpus", "ranks"} <= set(made.panes)
    assert made.panes["ranks"].height > min(RUNS[run].ranks, LEAST_RANKS)


def test_a_large_screen_has_all_of_it() -> None:
    made = arrange(200, 60, OVERVIEW, RUNS["a node"])
    assert set(made.panes) == {"gpus", "ranks", "strip", "card", "events", "curves", "log"}
    assert made.panes["strip"].height == 8 + 2 + 2, "a row a rank, the times, the legend, and a frame"
    assert made.panes["ranks"].y < made.panes["strip"].y < made.panes["card"].y
    assert set(arrange(200, 60, OVERVIEW, RUNS["128 nodes"]).panes) >= {"map", "ranks", "curves", "log"}


@for_each(
    "size, run",
    product(
        [(200, 60), (200, 46), (160, 45), (300, 100)],
        ["demo", "a node", "four nodes", "128 nodes"],
    ),
)
def test_ranks_over_time_takes_nothing_from_the_ranks(size: tuple[int, int], run: str) -> None:
    made = arrange(*size, OVERVIEW, RUNS[run])
    without = arrange(*size, OVERVIEW, replace(RUNS[run], strip=lambda most: 0))
    assert made.panes["ranks"].height >= min(without.panes["ranks"].height, LEAST_RANKS + 3 + 2)


@for_each("size, least", [((80, 24), 7), ((80, 30), 8), ((110, 30), 12), ((120, 40), 18), ((200, 60), 16)])
def test_charts_of_a_small_run_are_high_enough_to_be_read(size: tuple[int, int], least: int) -> None:
    made = arrange(*size, Choice(), RUNS["two on the cpu"])
    frame = 2 if made.framed else 1
    assert made.panes["curves"].height - frame >= least


def test_a_log_of_short_lines_is_next_to_the_curves_and_one_of_long_lines_below_them() -> None:
    short = arrange(200, 60, OVERVIEW, replace(RUNS["a node"], log=64)).panes
    assert short["log"].height == short["curves"].height == 56
    assert short["log"].width == 64 + 2
    long = arrange(200, 60, OVERVIEW, replace(RUNS["a node"], log=96)).panes
    assert long["log"].y == long["curves"].y + long["curves"].height
    assert long["log"].width == long["curves"].width == 110
    assert {name: short[name] for name in ("gpus", "ranks")} == {
        name: long[name] for name in ("gpus", "ranks")
    }


@for_each("log, width", [(0, 66), (64, 66), (96, 98), (200, 110)])
def test_the_rows_that_a_small_run_leaves_free_are_for_charts(log: int, width: int) -> None:
    panes = arrange(200, 60, OVERVIEW, replace(RUNS["two on the cpu"], log=log)).panes
    assert panes["curves"].x == 0
    assert panes["log"].height == 56
    assert panes["log"].width == width


@for_each("banner", [0, 2])
def test_all_rows_of_a_node_are_on_a_middle_screen(banner: int) -> None:
    panes = arrange(120, 40, OVERVIEW, RUNS["a node"], banner).panes
    assert panes["gpus"].height == panes["ranks"].height == 8 + 1 + 2


def test_ranks_over_time_on_a_middle_screen_where_there_is_room() -> None:
    assert "strip" in arrange(120, 40, OVERVIEW, RUNS["demo"]).panes
    crowded = arrange(120, 40, OVERVIEW, RUNS["four nodes"]).panes
    assert "strip" not in crowded
    assert "strip" not in arrange(80, 24, OVERVIEW, RUNS["demo"]).panes
    assert "strip" not in arrange(200, 60, OVERVIEW, replace(RUNS["demo"], strip=lambda most: 0)).panes


def test_a_terminal_that_is_too_small_gets_a_summary() -> None:
    assert arrange(59, 40, OVERVIEW, RUNS["a node"]).small
    assert arrange(80, 14, OVERVIEW, RUNS["a node"]).small
    assert not arrange(60, 15, OVERVIEW, RUNS["a node"]).small
