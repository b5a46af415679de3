"""The filter of the map of GPUs: `node:3* util<50`. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable

from msgspec import Struct
from msgspec.structs import replace

from .frame import Frame, name_of, names
from .list_filter import FilterField, FilterGrammar, ListFilter, Value
from .map_cells import MapCell, MapNode, cell_of, map_nodes

_LAST_NUMBER = re.compile(r"\d+$")


class FilteredCell(Struct, frozen=True):
    """A cell, and the name of its node."""

    name: str
    cell: MapCell


Reader = Callable[[FilteredCell], tuple[Value, ...]]


def _node(item: FilteredCell) -> tuple[Value, ...]:
    """Return the name of the node, and the number at its end, so that `node:3*` finds n37."""
    number = _LAST_NUMBER.search(item.name)
    return (item.name,) if number is None else (item.name, number[0])


def _gpu(field: str) -> Reader:
    """Return a reader of a field of the GPU."""
    return lambda item: (getattr(item.cell.gpu, field, None),)


def _ranks(field: str) -> Reader:
    """Return a reader of a field of the samples of the ranks."""
    return lambda item: tuple(getattr(rank.sample, field, None) for rank in item.cell.ranks)


def _memory_percent(item: FilteredCell) -> tuple[Value, ...]:
    gpu = item.cell.gpu
    if gpu is None or gpu.mem_used is None or not gpu.mem_total:
        return (None,)
    return (100 * gpu.mem_used / gpu.mem_total,)


def _numbers(item: FilteredCell) -> tuple[Value, ...]:
    return tuple(rank.place.rank for rank in item.cell.ranks)


def _state(item: FilteredCell) -> tuple[Value, ...]:
    return (item.cell.broken, *(str(rank.phase) for rank in item.cell.ranks))


MAP: FilterGrammar[FilteredCell] = FilterGrammar(
    {
        "node": FilterField("host", _node, "node:3*"),
        "util": FilterField("percent", _gpu("util"), "util<50"),
        "rank": FilterField("number", _numbers, "rank:0-7"),
        "gpu": FilterField("number", _gpu("index"), "gpu:0-3"),
        "mem": FilterField("percent", _memory_percent, "mem>90"),
        "temp": FilterField("number", _gpu("temp_c"), "temp>80"),
        "power": FilterField("number", _gpu("power_w"), "power<300"),
        "pace": FilterField("number", _ranks("step_s"), "pace>0.5"),
        "cpu": FilterField("percent", _ranks("cpu_percent"), "cpu<10"),
        "state": FilterField("text", _state, "state:failed"),
    },
    lambda item: (item.name, *map(str, _state(item))),
)


def matching_nodes(frame: Frame) -> list[MapNode]:
    """Return the nodes with a cell that matches the filter of the view; their other cells are hidden."""
    nodes = frame.once(map_nodes)
    if not frame.view.map_filter:
        return nodes
    wanted, named = MAP.typed(frame.view.map_filter), names(frame.state)
    matching = [_with_hidden(frame, node, named[node.node.node], wanted) for node in nodes]
    return [node for node in matching if len(node.hidden) < len(node.values)]


def _with_hidden(frame: Frame, node: MapNode, name: str, wanted: ListFilter[FilteredCell]) -> MapNode:
    cells = range(len(node.values))
    hidden = [cell for cell in cells if not wanted.fits(FilteredCell(name, cell_of(frame, node, cell)))]
    return replace(node, hidden=frozenset(hidden))


def node_filter(frame: Frame, node: int) -> str:
    """Return the filter that shows only one node."""
    name = name_of(frame.state, node)
    return f'node="{name}"' if " " in name else f"node={name}"
