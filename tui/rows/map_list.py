"""The list next to the map of GPUs: nodes that do not answer, and the worst GPUs. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import nsmallest

from ...runners.run.formatting import NA, spans_short
from .frame import Frame, fit_name, link_state, name_of
from .glyphs import Row
from .map_cells import MapCell, MapNode, Scale, cell_of, metric_of
from .map_layout import LONGEST_NAME, WORST

LONGEST_ENTRY = len(" 1023 MiB  g0 rank 1023")
"""Columns of an entry without its metric and its node."""

Place = tuple[int, int]
"""Index of a node on the map, and of one of its cells."""


def worst(frame: Frame, nodes: Sequence[MapNode], scale: Scale, only_far: bool) -> list[Place]:
    """Return broken GPUs, then those that are worse than the median, the worst first; at most WORST.

    `only_far` leaves out those near the median, whose order is noise and would be painted with each sample.
    """
    found = [(at, cell) for at, node in enumerate(nodes) for cell in node.broken if cell not in node.hidden]
    if frame.view.map_filter:
        bound = scale.median
    elif only_far:
        bound = scale.far
    else:
        bound = scale.worst(WORST)
    if bound is not None:
        found += [(at, cell) for _, at, cell in nsmallest(WORST, _as_bad_as(bound, nodes, scale))]
    return found[:WORST]


def _as_bad_as(bound: float, nodes: Sequence[MapNode], scale: Scale) -> list[tuple[float, int, int]]:
    """Return the cells that are worse than the median and at least as bad as a value, with a sort key."""
    sign, bad = scale.sign, list[tuple[float, int, int]]()
    for at, node in enumerate(nodes):
        for cell, value in enumerate(node.values):
            if value is None or sign * value < sign * bound:
                continue
            if node.counts(cell) and cell not in node.hidden and scale.badness(value) > 0:
                bad.append((-sign * value, at, cell))
    return bad


def described(frame: Frame, cell: MapCell, scale: Scale) -> str:
    """Return `12 % n37 g4 rank 300`."""
    name = name_of(frame.state, cell.node.node)
    return f"{_value(cell, scale, f' {scale.unit.name}')} {name}{_gpu(cell)}{_ranks(cell, ' rank ')}"


def list_row(frame: Frame, node: MapNode, cell: int, scale: Scale, style: str, width: int) -> Row:
    """Return an entry: `util 12 % n37 g4 rank 300`, or `12% n37 g4 r300` in `width` columns if that is not 0."""
    known = cell_of(frame, node, cell)
    if not width:
        return ((f"{metric_of(frame).word} {described(frame, known, scale)}", style),)
    name = name_of(frame.state, node.node.node)
    value, gpu = _value(known, scale, scale.unit.short), _gpu(known)
    text = f"{value} {name}{gpu}{_ranks(known, ' r')}"
    if len(text) >= width:
        text = f"{value} {name}{gpu}"
    if len(text) >= width:
        text = f"{value} {fit_name(name, max(1, width - 2 - len(value) - len(gpu)))}{gpu}"
    return ((text, style),)


def silent_rows(frame: Frame, nodes: Sequence[MapNode]) -> list[Row]:
    """Return `✖ c2 no answer 12 s, next try in 3 s` for each node that does not answer."""
    rows: list[Row] = []
    for node in nodes:
        link = link_state(frame, node.node)
        if link is not None:
            glyph, style, words = link
            name = name_of(frame.state, node.node.node)
            rows.append(((f"{glyph} {fit_name(name, min(len(name), LONGEST_NAME))} {words}", style),))
    return rows


def _gpu(cell: MapCell) -> str:
    return "" if cell.gpu is None else f" g{cell.gpu.index}"


def _ranks(cell: MapCell, word: str) -> str:
    numbers = [rank.place.rank for rank in cell.ranks]
    return f"{word}{spans_short(numbers)}" if numbers else ""


def _value(cell: MapCell, scale: Scale, unit: str) -> str:
    if cell.broken:
        return cell.broken
    return NA if cell.value is None else f"{scale.unit.number(cell.value)}{unit}"
