"""The map of GPUs: a cell per GPU, a legend, and the worst GPUs next to it. Pure.

It is a function of the frame: the pane keeps only the place of the cursor.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct, field

from ...presets.plurals import plural
from ...runners.run.state import Node, RunState
from . import glyphs
from .frame import CONNECTING, Frame, fit_name, link_state, names
from .glyphs import Cell, Row, clip, joined
from .map_cells import MapNode, Scale, cell_of, map_nodes, map_scale, metric_of
from .map_filter import matching_nodes
from .map_layout import LEGEND, LIST_GAP, LONGEST_NAME, NODE, Grid, Shape, grid_of, rows_wanted
from .map_list import LONGEST_ENTRY, Place, described, list_row, silent_rows, worst
from .map_pen import BROKEN, UNKNOWN, MapPen, map_pens, style_of

Spot = tuple[int, int]
"""Number of a node, and one of its cells."""


class GpuMap(Struct):
    """The map of one frame in a pane of some size."""

    title: str
    rows: list[Row] = field(default_factory=list)
    nodes: Sequence[MapNode] = ()
    grid: Grid | None = None
    cursor: Place | None = None
    listed: list[Place] = field(default_factory=list)
    """The worst GPUs, as listed."""
    list_from: int = 0
    """Row of the pane with the first of them."""

    @property
    def spot(self) -> Spot | None:
        """The cell under the cursor."""
        return self._spot(self.cursor)

    def spot_under(self, x: int, y: int) -> Spot | None:
        """Return the cell at a column and a row of the pane, on the map or in the list."""
        if self.grid is None or y < LEGEND:
            return None
        if x < self.grid.width:
            return self._spot(self.grid.cell_under(x, y - LEGEND))
        entry = y - self.list_from
        if not 0 <= entry < len(self.listed):
            return None
        return self._spot(self.listed[entry])

    def moved(self, right: int, down: int) -> Spot | None:
        """Return the cell to the right of and below the cursor."""
        if self.grid is None or self.cursor is None:
            return None
        return self._spot(self.grid.moved(*self.cursor, right, down))

    def end(self, last: bool) -> Spot | None:
        """Return the first or the last cell."""
        if not self.nodes:
            return None
        if last:
            return self._spot((len(self.nodes) - 1, len(self.nodes[-1].values)))
        return self._spot((0, 0))

    def put_cursor(self, wanted: Spot) -> None:
        """Move the cursor to a cell, or to the first one if that cell is gone."""
        at = next((at for at, node in enumerate(self.nodes) if node.node.node == wanted[0]), 0)
        self.cursor = (at, max(0, min(wanted[1], len(self.nodes[at].values) - 1)))
        if self.grid is not None:
            self.grid = self.grid.showing(at)

    def _spot(self, place: Place | None) -> Spot | None:
        """Return a cell of a node, or its last one; None if it has none."""
        if place is None:
            return None
        node = self.nodes[place[0]]
        if not node.values:
            return None
        return node.node.node, min(place[1], len(node.values) - 1)


def gpu_map(frame: Frame, width: int, height: int, cursor: Spot | None = None) -> GpuMap:
    """Return the map in a pane of this size. With a `cursor` the title names the GPU under it."""
    nodes = frame.once(matching_nodes)
    made = GpuMap(_metric_title(frame), nodes=nodes)
    if not nodes:
        made.rows = [((f" {_why_empty(frame)}", "dim"),)]
        return made
    scale = frame.once(map_scale)
    made.grid = grid_of(_shape(frame, nodes), width, height)
    if cursor is not None:
        made.put_cursor(cursor)
    made.title = " · ".join([made.title, *_title_words(frame, made, scale)])
    left = made.grid.width
    beside = _beside(frame, made, scale, width - left, max(0, height - LEGEND))
    made.rows = [clip(_legend(frame, scale), width), *_joined(_map_rows(frame, made, scale), beside, left)]
    return made


def _why_empty(frame: Frame) -> str:
    if not frame.state.live:
        return CONNECTING
    if frame.view.map_filter:
        return "no GPU matches: esc removes the filter"
    return "no rank has started yet"


def map_rows_wanted(frame: Frame, width: int) -> int:
    """Return the rows that the whole map could fill."""
    return rows_wanted(_shape(frame, frame.once(map_nodes)), width)


def _shape(frame: Frame, nodes: Sequence[MapNode]) -> Shape:
    name = len(next(iter(frame.state.once(_fitted_names).values()), ""))
    most = max((len(node.values) for node in nodes), default=0)
    return Shape(len(nodes), most, name, len(metric_of(frame).word) + name + LONGEST_ENTRY)


def _fitted_names(state: RunState) -> dict[int, str]:
    """Return the names of all nodes, equally long."""
    named = names(state)
    longest = min(LONGEST_NAME, max(map(len, named.values()), default=0))
    return {node: fit_name(name, longest) for node, name in named.items()}


def _metric_title(frame: Frame) -> str:
    metric = metric_of(frame)
    has_gpus = any(node.gpus for node in frame.state.nodes.values())
    if has_gpus or not frame.state.ranks:
        return metric.title
    return metric.cpu_title


def _title_words(frame: Frame, made: GpuMap, scale: Scale) -> list[str]:
    """Return the title after the metric: the GPU under the cursor, the filter, and nodes that did not fit."""
    words = []
    if made.cursor is not None and made.spot is not None:
        at, cell = made.cursor
        words.append(described(frame, cell_of(frame, made.nodes[at], cell), scale))
    if frame.view.map_filter:
        matching = sum(len(node.values) - len(node.hidden) for node in made.nodes)
        words.append(f"/{frame.view.map_filter}: {plural(matching, 'GPU')}")
    if made.grid is not None and len(made.grid.visible) < len(made.nodes):
        shown = made.grid.visible
        first, last = (made.nodes[at].node.node for at in (shown.start, shown.stop - 1))
        words.append(f"nodes {first}–{last} of {len(made.nodes)}, beside them the worst of all")
    return words


def _joined(left: list[Row], right: list[Row], width: int) -> list[Row]:
    """Return two blocks of rows next to each other; `width` is that of the left block."""
    count = max(len(left), len(right))
    blank: Row = ((" " * width, "text"),)
    left = left + [blank] * (count - len(left))
    right = right + [()] * (count - len(right))
    return [(*one, *other) for one, other in zip(left, right, strict=True)]


# --- the legend ---


def _legend(frame: Frame, scale: Scale) -> Row:
    """Return what the heights mean, the median, and how many GPUs of the run are far from it, broken, or unknown."""
    plain = frame.view.ascii
    between = ""
    if plain:
        between = "="
    row: list[Cell] = [(f" {metric_of(frame).word} ", "text")]
    for share in (0, 50, 100):
        number = scale.unit.round_number(scale.low + (scale.high - scale.low) * share / 100)
        row.append((f"{glyphs.height(share, plain)}{between}{number} ", "dim"))
    row.append((scale.unit.name, "dim"))
    if scale.median is not None:
        row.append((f"  median {scale.unit.number(scale.median)}", "text"))
    nodes = frame.once(map_nodes)
    broken = sum(len(node.broken) for node in nodes)
    cells = sum(len(node.values) - len(node.others - node.broken.keys()) for node in nodes)
    unknown = cells - broken - len(scale.values)
    if not frame.state.live:
        unknown = 0  # their samples are on the way
    for sample, count, words in (
        ((glyphs.height(50, plain), "outlier"), scale.count_far(), "far from it"),
        (BROKEN, broken, "broken"),
        (UNKNOWN, unknown, "unknown"),
    ):
        if count:
            row += [("  ", "text"), sample, (f" {count} {words}", "text")]
    return tuple(row)


# --- the map ---


def _map_rows(frame: Frame, made: GpuMap, scale: Scale) -> list[Row]:
    grid = made.grid
    assert grid is not None
    pens, named = map_pens(scale, frame.view.ascii, grid.form), frame.state.once(_fitted_names)
    rows: list[Row] = []
    for y in range(grid.down * grid.shape.lines):
        row, line = divmod(y, grid.shape.lines)
        cells: list[Cell] = []
        for column in range(grid.width // grid.block):
            index = grid.node_at(column, row)
            if index is None:
                cells.append((" " * grid.block, "text"))
                continue
            node = made.nodes[index]
            if grid.label:
                cells += _label(frame, node, named, grid.label, line)
            at, cursor = made.cursor or (None, 0)
            cells += _node_row(node, pens[column % 2], line, grid, cursor if at == index else None)
        rows.append(joined(cells))
    return rows


def _node_row(node: MapNode, pen: MapPen, line: int, grid: Grid, cursor: int | None) -> list[Cell]:
    """Return the cells of one row of a node, with the gap after them."""
    first = line * NODE
    row = pen.row(node, first)
    if cursor is not None and first <= cursor < first + len(row):
        text, _ = row[cursor - first]
        row[cursor - first] = (glyphs.CURSOR + text[1:], "hit")
    missing = grid.shape.cells - len(row)
    row.append((" " * (missing * grid.form.cell + grid.form.gap), "text"))
    return row


def _label(frame: Frame, node: MapNode, named: dict[int, str], width: int, line: int) -> list[Cell]:
    """Return the mark and the name of a node before its first row, blanks before its other rows."""
    if line:
        return [(" " * width, "text")]
    glyph, style = _health(frame, node.node, bool(node.broken))
    return [(glyph, style), (named[node.node.node] + " ", style)]


def _health(frame: Frame, node: Node, is_broken: bool) -> Cell:
    """Return the mark of a node, and the style of its name; a blank if it is well."""
    link = link_state(frame, node)
    if link is not None:
        return link[0], link[1]
    if is_broken or node.node in frame.state.once(_failed_nodes):
        return glyphs.BAD, "bad"
    if not frame.fresh(node.node, node.heard):
        return glyphs.UNHEARD, "stale"
    if node.gpu_problem and node.gpus:
        return glyphs.WARN, "warn"
    return " ", "text"


def _failed_nodes(state: RunState) -> set[int]:
    return {rank.place.node for rank in state.ranks.values() if glyphs.RANK[rank.phase][1] == "bad"}


# --- next to the map ---

_LIST_STYLES = {"outlier": "bad", "warn": "warn"}
"""Styles of entries by those of their cells; others are plain text."""


def _beside(frame: Frame, made: GpuMap, scale: Scale, width: int, height: int) -> list[Row]:
    """Return the nodes that do not answer, and the worst GPUs."""
    assert made.grid is not None
    gap: Cell = (" " * LIST_GAP, "text")
    room = 0
    if not made.grid.form.is_list_long:
        gap, room = (" ", "text"), width
    rows = silent_rows(frame, made.nodes)[: height // 2]
    made.list_from = LEGEND + len(rows)
    made.listed = worst(frame, made.nodes, scale, only_far=made.cursor is None)[: height - len(rows)]
    if not made.listed and scale.median is not None:
        rows.append((("all near median", "dim"),))
    for at, cell in made.listed:
        node = made.nodes[at]
        value = node.value(cell)
        style = "bad"
        if value is not None:
            style = _LIST_STYLES.get(style_of(scale.badness(value)), "text")
        rows.append(list_row(frame, node, cell, scale, style, room))
    return [clip((gap, *row), width) for row in rows]
