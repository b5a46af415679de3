"""The map of GPUs: every GPU is a cell, what is far from the others is marked, and unknown is never 0."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import pytest
import scripted as play
import several
from conftest import Start, shown
from each import for_each
from gpu_crowd import LOST, ODD, UNKNOWN, crowd
from test_rows import line_of, text_of

from distui.runners.run.model import GpuTick, RankTick
from distui.runners.run.samples import Gpu
from distui.runners.run.state import RunState
from distui.tui.rows.frame import Frame, LinkPhase, LinkStatus, ViewOptions
from distui.tui.rows.glyphs import row_width
from distui.tui.rows.gpu_map import GpuMap, gpu_map
from distui.tui.rows.list_filter import FilterError
from distui.tui.rows.map_cells import map_nodes, map_scale
from distui.tui.rows.map_filter import MAP, node_filter
from distui.tui.rows.map_layout import Shape, grid_of
from distui.tui.rows.map_metrics import METRICS
from distui.tui.rows.tables import rank_order

LINK = LinkStatus(LinkPhase.FOLLOWING, play.BEGAN)
CROWD = RunState().apply_all(several.stamped(crowd(128)))


def frame_of(events: Iterable[several.Told], now: float = play.NOW, **view: object) -> Frame:
    return Frame(RunState().apply_all(several.stamped(events)), LINK, now, now, ViewOptions(**view))  # type: ignore[arg-type]


def crowded(**view: object) -> Frame:
    return Frame(CROWD, LINK, play.NOW, play.NOW, ViewOptions(**view))  # type: ignore[arg-type]


def on_a_node(*gpus: Gpu, **view: object) -> Frame:
    """A node with these GPUs, one rank for each."""
    return frame_of([*several.running(1, len(gpus)), (124.8, 0, GpuTick(gpus))], play.NOW, **view)


def styles_of(made: GpuMap) -> dict[str, str]:
    """The text of each style on the map."""
    found: dict[str, str] = {}
    for row in made.rows[1:]:
        for text, style in row:
            found[style] = found.get(style, "") + text
    return found


@for_each(
    "width, height, lines",
    [(80, 19, 16), (118, 34, 32), (198, 55, 43), (118, 13, 12), (198, 13, 12)],
)
def test_every_gpu_of_128_nodes_is_a_cell(width: int, height: int, lines: int) -> None:
    frame = crowded()
    made = gpu_map(frame, width, height)
    assert made.grid is not None
    assert list(made.grid.visible) == list(range(128))
    assert made.grid.down == lines
    assert len(made.rows) <= height
    assert max(map(row_width, made.rows)) <= width
    columns = made.grid.form.cell
    left = "".join(line_of(row)[: made.grid.width] for row in made.rows[1:])
    cells = sum(left.count(glyph) for glyph in "▁▂▃▄▅▆▇█?") + (left.count("✖") // columns) * columns
    labels = sum(label in left for label in ["✖c64"])
    assert cells - labels * (columns == 1) == 1024 * columns


def test_80_by_24_has_no_gaps_and_all_nodes() -> None:
    rows = gpu_map(crowded(), 80, 19).rows
    assert line_of(rows[1]).startswith("█" * 64)
    assert all(len(line_of(row)[:64].strip()) == 64 for row in rows[1:17])


def test_the_legend_has_the_scale_the_median_and_what_stands_out() -> None:
    assert line_of(gpu_map(crowded(), 80, 19).rows[0]).rstrip() == (
        " util ▁0 ▄50 █100 %  median 95  ▄ 5 far from it  ✖ 1 broken  ? 8 unknown"
    )
    assert line_of(gpu_map(crowded(metric="power"), 80, 19).rows[0]).startswith(
        " power ▁0 ▄350 █700 W  median 600"
    )
    assert line_of(gpu_map(crowded(ascii=True), 80, 19).rows[0]).startswith(" util 0=0 5=50 9=100 %")


def test_the_worst_ten_are_beside_the_map_broken_ones_first() -> None:
    made = gpu_map(crowded(), 118, 34, (0, 0))
    assert made.grid is not None
    listed = [line_of(row)[made.grid.width :].strip() for row in made.rows[1:]]
    assert listed[:6] == [
        "util lost c64 g2 rank 506",
        "util 0 % c91 g0 rank 720",
        "util 12 % c2 g3 rank 11",
        "util 12 % c38 g4 rank 300",
        "util 30 % c126 g6 rank 1006",
        "util 55 % c7 g7 rank 55",
    ]
    assert len([text for text in listed if text]) == 10
    narrow = gpu_map(crowded(), 80, 19)
    assert line_of(narrow.rows[3])[64:] == " 12% c2 g3 r11"
    assert len(narrow.listed) == 1 + len(ODD), "those near the median only with the cursor"


def test_noise_is_not_painted() -> None:
    """The order of GPUs near the median changes with each sample; without the cursor they are not listed."""
    calm = several.running(16, 8)[:-1]
    shown = [
        text_of(
            gpu_map(
                frame_of([*calm, *((124.8, node, GpuTick(busy(node + more))) for node in range(16))]),
                118,
                13,
            ).rows
        )
        for more in range(3)
    ]
    assert "all near median" in shown[0]
    assert shown == shown[:1] * 3


def busy(turn: int) -> tuple[Gpu, ...]:
    """GPUs whose utilisation varies a little."""
    return tuple(msgspec.structs.replace(gpu, util=93.0 + (turn + gpu.index) % 4) for gpu in play.gpus())


def test_what_is_far_from_the_median_is_marked_and_the_rest_is_neutral() -> None:
    found = styles_of(gpu_map(crowded(), 80, 19))
    assert len(found["outlier"]) == len(ODD)
    assert set(found["calm"] + found["calm_next"]) == {"█"}
    assert "warn" not in found


@for_each(
    "metric, values, outliers",
    [
        ("util", [95, 96, 97, 95, 12, 96, 95, 97], 1),
        ("util", [0, 0, 0, 0, 100, 0, 0, 0], 0),
        ("util", [100] * 8, 0),
        ("util", [10, 90, 20, 80, 30, 70, 40, 60], 0),
        ("temp", [60, 61, 62, 60, 88, 61, 60, 62], 1),
        ("temp", [60, 61, 62, 60, 32, 61, 60, 62], 0),
        ("power", [600, 610, 590, 600, 100, 605, 600, 590], 1),
    ],
)
def test_the_bad_direction_is_that_of_the_metric(metric: str, values: list[float], outliers: int) -> None:
    field = METRICS[metric].gpu_field
    gpus = [
        msgspec.structs.replace(gpu, **{field: value})
        for gpu, value in zip(play.gpus(), values, strict=True)
    ]
    frame = on_a_node(*gpus, metric=metric)
    assert map_scale(frame).count_far() == outliers
    assert ("outlier" in styles_of(gpu_map(frame, 118, 12))) == bool(outliers)


def test_the_slowest_rank_stands_out_by_its_step() -> None:
    paces = tuple(
        msgspec.structs.replace(sample, step_s=0.1 if sample.rank == 5 else 0.04)
        for sample in play.samples(8)
    )
    frame = frame_of([*several.running(1, 8), (124.9, 0, RankTick(paces))], metric="step-time")
    made = gpu_map(frame, 118, 12)
    assert "step 100 ms c1 g5 rank 5" in text_of(made.rows)
    assert styles_of(made)["outlier"].startswith("█100ms")


def test_unknown_is_a_question_mark_and_never_0() -> None:
    made = gpu_map(crowded(), 118, 34)
    assert f"c{UNKNOWN + 1} ????????" in text_of(made.rows)
    old = gpu_map(crowded_later(60), 80, 19)
    assert set(line_of(old.rows[1])[:64]) == {"?"}
    assert "1,023 unknown" in line_of(old.rows[0]) or "1023 unknown" in line_of(old.rows[0])


def crowded_later(seconds: float) -> Frame:
    return Frame(CROWD, LINK, play.NOW + seconds, play.NOW)


def test_a_clock_that_is_wrong_on_the_node_does_not_make_values_old() -> None:
    late = play.NOW + 9000
    state = RunState().apply_all(play.stamped(play.running()))
    frame = Frame(state, LINK, late, late)
    assert map_nodes(frame)[0].values[0] == 97


@for_each(
    "metric, wanted", [("mem", "61.0 GiB"), ("power", "400 W"), ("temp", "55 °C"), ("step-time", "41 ms")]
)
def test_every_metric_has_its_unit(metric: str, wanted: str) -> None:
    assert (
        f"{wanted} c1 g0 rank 0"
        in gpu_map(frame_of(several.running(1, 8), metric=metric), 118, 12, (0, 0)).title
    )


def test_few_nodes_have_numbers() -> None:
    made = gpu_map(frame_of(several.running(2, 8)), 118, 12)
    assert line_of(made.rows[1]).startswith(" c1 █97%")
    plain = gpu_map(frame_of(several.running(2, 8), ascii=True), 118, 12)
    assert line_of(plain.rows[1]).startswith(" c1  97%   96%")


def test_without_gpus_a_cell_is_a_rank_and_the_title_says_so() -> None:
    state = RunState().apply_all(play.stamped(play.running(2, gpu=False)))
    made = gpu_map(Frame(state, LINK, play.NOW, play.NOW), 78, 8, (0, 1))
    assert made.title.startswith("no GPU · CPU per rank")
    assert made.title.endswith("99 % n001 rank 1")


def test_gpus_that_the_run_does_not_use_are_dim_and_count_for_nothing() -> None:
    frame = frame_of([*several.running(1, 4), (124.8, 0, GpuTick(play.gpus(8)))])
    assert len(map_scale(frame).values) == 4
    assert "g7" not in text_of(gpu_map(frame, 118, 12).rows)


@for_each("metric", METRICS)
@for_each("ascii", [False, True])
@for_each("width, height", [(58, 12), (78, 6), (118, 13), (198, 55)])
def test_no_row_is_wider_than_the_pane(metric: str, ascii: bool, width: int, height: int) -> None:
    for made in (
        gpu_map(crowded(metric=metric, ascii=ascii), width, height, (3, 3)),
        gpu_map(frame_of(several.lost(16, 8, which=5), metric=metric, ascii=ascii), width, height),
    ):
        assert len(made.rows) <= height
        assert max(map(row_width, made.rows)) <= width
        assert made.grid is not None
        left = "".join(line_of(row)[: made.grid.width] for row in made.rows[1:])
        assert not ascii or not set(left) & set("▁▂▃▄▅▆▇█")


def test_what_does_not_fit_is_said_and_reached_by_the_cursor() -> None:
    made = gpu_map(crowded(), 80, 6, (0, 0))
    assert made.title.endswith("nodes 0–39 of 128, beside them the worst of all")
    spot = made.spot
    for _ in range(8 * 8):
        spot = gpu_map(crowded(), 80, 6, spot).moved(1, 0)
    there = gpu_map(crowded(), 80, 6, spot)
    assert there.title.endswith("nodes 40–79 of 128, beside them the worst of all")
    assert there.spot == (40, 0)


def test_the_cursor_visits_neighbours_and_stays_on_the_map() -> None:
    made = gpu_map(crowded(), 80, 19, (0, 7))
    assert made.moved(1, 0) == (16, 0), "the node to the right"
    assert made.moved(0, 1) == (1, 7), "the node below"
    assert made.moved(0, -1) == (0, 7)
    assert gpu_map(crowded(), 80, 19, (127, 7)).moved(1, 1) == (127, 7)
    assert gpu_map(crowded(), 80, 19, (37, 4)).title == "GPU utilisation · 12 % c38 g4 rank 300"
    assert (made.end(False), made.end(True)) == ((0, 0), (127, 7))


def test_a_place_on_the_screen_is_a_cell_or_an_entry_of_the_list() -> None:
    made = gpu_map(crowded(), 80, 19)
    assert made.spot_under(0, 1) == (0, 0)
    assert made.spot_under(2 * 8 + 4, 1 + 5) == (37, 4)
    assert made.spot_under(70, 1) == LOST
    assert made.spot_under(70, 18) is None
    assert made.spot_under(3, 0) is None


def test_more_than_8_gpus_of_a_node_take_several_rows() -> None:
    frame = frame_of(several.running(2, 16))
    made = gpu_map(frame, 118, 12, (1, 12))
    assert made.title.endswith("c2 g12 rank 28")
    assert made.moved(0, -1) == (1, 4)
    assert made.moved(0, 1) == (1, 12)
    grid = grid_of(Shape(2, 16, 2, 30), 118, 12)
    assert grid.cell_under(grid.label, 3) == (1, 8)


@for_each(
    "text, nodes, cells",
    [
        ("node:c3", 11, 88),
        ("node:3*", 11, 88),
        ("util<50", 4, 4),
        ("node:3* util<50", 1, 1),
        ("rank:0-7", 1, 8),
        ("state:lost", 1, 1),
        ("!util>10", 1, 1),
        ("c100", 1, 8),
        ("util<0", 0, 0),
    ],
)
def test_the_filter_hides_what_does_not_match(text: str, nodes: int, cells: int) -> None:
    made = gpu_map(crowded(map_filter=text), 118, 34)
    assert len(made.nodes) == nodes
    assert sum(len(node.values) - len(node.hidden) for node in made.nodes) == cells
    assert not MAP.mistake(text)


def test_a_filter_changes_neither_the_median_nor_the_scale() -> None:
    made = gpu_map(crowded(map_filter="util<50"), 118, 34)
    assert "median 95" in line_of(made.rows[0])
    assert len(made.listed) == 4
    assert made.title == "GPU utilisation · /util<50: 4 GPUs"
    assert "esc removes the filter" in text_of(gpu_map(crowded(map_filter="node:zzz"), 118, 34).rows)


def test_a_node_without_a_host_can_be_opened() -> None:
    state = RunState().apply_all(several.stamped(crowd(128)))
    for node in state.nodes.values():
        node.host = ""
    wanted = node_filter(Frame(state, LINK, play.NOW, play.NOW), 77)
    made = gpu_map(Frame(state, LINK, play.NOW, play.NOW, ViewOptions(map_filter=wanted)), 118, 34)
    assert [node.node.node for node in made.nodes] == [77]
    assert made.title == 'GPU utilisation · /node="node 77": 8 GPUs'


@for_each("text", ["node 77", "node:77"])
def test_a_number_after_a_field_is_compared_whole(text: str) -> None:
    made = gpu_map(crowded(map_filter=text), 118, 34)
    assert [node.node.node for node in made.nodes] == [76]  # its name is c77; c177 and rank 77 do not match


def test_the_ranks_begin_with_those_that_are_far_from_the_median() -> None:
    assert rank_order(crowded())[0] == 11  # 12 % on c2
    assert rank_order(crowded(metric="temp"))[0] == 0


def test_nothing_is_unknown_before_the_first_state_has_come() -> None:
    connecting = LinkStatus(LinkPhase.CONNECTING, play.NOW)
    empty = gpu_map(Frame(RunState(), connecting, play.NOW, 0.0), 118, 34)
    assert text_of(empty.rows) == " connecting…"
    state = RunState().apply_all(several.stamped(crowd(128)[:-1]))  # not yet CaughtUp
    legend = line_of(gpu_map(Frame(state, connecting, play.NOW, play.NOW), 118, 34).rows[0])
    assert "unknown" not in legend


def test_a_wrong_field_is_one_sentence() -> None:
    with pytest.raises(FilterError, match=r"unknown field utl; did you mean util"):
        MAP.understood("utl<50")


async def test_arrows_and_enter_lead_to_the_node_and_to_the_log_of_the_rank(rig: Start) -> None:
    async with shown(rig(nodes=crowd(128))) as it:
        await it.until(lambda: "RUNNING" in it.screen())
        it.app.change_view(maximised="map")
        await it.until(lambda: "93 % c1 g0 rank 0" in it.screen())
        await it.press("right", "right", "right", "down")
        await it.until(lambda: "12 % c2 g3 rank 11" in it.screen())
        await it.press("enter")
        await it.until(lambda: "/node=c2: 8 GPUs" in it.screen())
        assert it.app.view.rank_filter == "node=c2"  # the table shows the ranks of the node, too
        await it.press("escape")
        await it.until(lambda: "/node=c2" not in it.screen())
        assert not it.app.view.rank_filter
        await it.press("enter", "enter")
        await it.until(lambda: "rank 11" in it.screen() and "log ·" in it.screen())


async def test_clicks_open_a_node_m_switches_the_metric_and_slash_filters(rig: Start) -> None:
    async with shown(rig(nodes=crowd(128))) as it:
        await it.until(lambda: "RUNNING" in it.screen())
        it.app.change_view(maximised="map")
        await it.until(lambda: "median 95" in it.screen())
        await it.pilot.click("#map", offset=(3, 3))
        await it.until(lambda: "12 % c2 g3 rank 11" in it.screen())
        await it.pilot.click("#map", offset=(3, 3))
        await it.until(lambda: "/node=c2: 8 GPUs" in it.screen())
        await it.press("escape")
        await it.until(lambda: "/node=c2" not in it.screen())
        await it.press("m")
        await it.until(lambda: "GPU memory" in it.screen())
        await it.press("slash", *"util<50", "enter")
        await it.until(lambda: "/util<50: 4 GPUs" in it.screen())
