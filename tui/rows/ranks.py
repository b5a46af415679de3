"""Ranks and GPUs as a heat map, and a node's GPUs as text. Pure.

The map shows nodes by GPUs, or nodes by ranks if there is no GPU. Up to WIDE_NODES nodes have wide cells with value and
rank; more nodes have one tile of single glyphs each.
"""

from __future__ import annotations

from itertools import chain
from operator import attrgetter

from msgspec import Struct

from ...runners.run.formatting import NA, duration_short, size_short, spans_short, step_short, usage_short
from ...runners.run.samples import Gpu
from ...runners.run.state import Node, Rank, RunState
from . import glyphs
from .frame import Frame, fit_name, gpu_owners, link_state, names
from .glyphs import Cell, Row, clip, fit, or_na, percent, table

CELL = 7
"""Columns of a wide cell with its gap."""

WIDE_NODES = 4
"""Maximum number of nodes with wide cells."""

_COLD_C, _HOT_C = 30.0, 90.0


class Heat(Struct, frozen=True):
    """One cell: its heat, its text, and the text below it."""

    value: float | None
    """0 to 100; None is unknown."""
    text: str
    below: str = ""
    broken: bool = False


def heat_title(frame: Frame) -> str:
    """Return the metric of the map, with its unit."""
    if any(node.gpus for node in frame.state.nodes.values()):
        utilisation, memory = "GPU utilisation", "GPU memory"
    elif frame.state.ranks:
        utilisation, memory = "no GPU · CPU, percent of one core", "no GPU · resident memory"
    else:
        utilisation, memory = "utilisation", "memory"
    names = {
        "util": utilisation,
        "mem": memory,
        "power": "power, share of the limit",
        "temp": "temperature",
        "step-time": "time of a step",
    }
    return names[frame.view.metric]


def heat_rows(frame: Frame, width: int) -> list[Row]:
    """Return the map in `width` columns."""
    nodes = shown_nodes(frame.state)
    if not nodes:
        return [((" no rank has started yet", "dim"),)]
    if len(nodes) > WIDE_NODES:
        return _tiles(frame, nodes, width)
    rows: list[Row] = []
    named = names(frame.state)
    for node in nodes:
        rows += _wide(frame, node, named[node.node], width)
    return rows


def shown_nodes(state: RunState) -> list[Node]:
    """Return the nodes of the map: those with GPUs or ranks, and those with a link to a hub."""
    return [
        node
        for number, node in sorted(state.nodes.items())
        if node.gpus or node.link is not None or state.ranks_of(number)
    ]


def _wide(frame: Frame, node: Node, name: str, width: int) -> list[Row]:
    cells = node_cells(frame, node)
    label = 10
    across = max(1, (width - label) // CELL)
    link = link_state(frame, node)
    named = _label(frame, node, name, label)
    rows: list[Row] = []
    if not cells:
        words, style = ("no rank yet", "dim") if link is None else (link[2], link[1])
        return [clip((*named, (words, style)), width)]
    for start in range(0, len(cells), across):
        part = cells[start : start + across]
        head = named if start == 0 else ((" " * label, "text"),)
        below = fit(_note(frame, node), label) if start == 0 else " " * label
        if link is not None and start == 0:  # the link's state replaces the values
            rows.append(clip((*head, (link[2], link[1])), width))
        else:
            rows.append((*head, *chain.from_iterable(_wide_cell(frame, heat) for heat in part)))
        rows.append(((below, "stale"), *((fit(f" {heat.below}", CELL), "dim") for heat in part)))
    return rows


def _wide_cell(frame: Frame, heat: Heat) -> tuple[Cell, ...]:
    if heat.broken:
        return (fit(f"{glyphs.BAD}{fit(heat.text, CELL - 2, right=True)}", CELL - 1), "bad"), (" ", "text")
    if heat.value is None:
        return (fit(fit(heat.text or glyphs.MISSING, CELL - 2, right=True), CELL - 1), "stale"), (
            " ",
            "text",
        )
    glyph, style = glyphs.heat(heat.value, frame.view.ascii)
    number = fit(heat.text.rjust(CELL - 3), CELL - 2)
    if frame.view.ascii:
        glyph = " "  # a digit before the number would look like part of it
    return (glyph, style), (number, style.replace("bar", "heat")), (" ", "text")


def _label(frame: Frame, node: Node, name: str, width: int) -> Row:
    glyph, style = _health(frame, node)
    return ((f"{glyph} ", style), (fit_name(name, width - 3) + " ", "text"))


def _health(frame: Frame, node: Node) -> tuple[str, str]:
    link = link_state(frame, node)
    if link is not None:
        return link[0], link[1]
    if node.node in frame.state.once(_hit) or any(map(_LOST, node.gpus)):
        return glyphs.BAD, "bad"
    if not frame.fresh(node.node, node.heard):
        return glyphs.UNHEARD, "stale"
    return (glyphs.WARN, "warn") if node.gpu_problem and node.gpus else (glyphs.OK, "ok")


_LOST = attrgetter("lost")


def _hit(state: RunState) -> set[int]:
    """Return nodes with a failed rank."""
    return {rank.place.node for rank in state.ranks.values() if glyphs.RANK[rank.phase][1] == "bad"}


def _note(frame: Frame, node: Node) -> str:
    """Return the text below the name: the age of old values, or that there is no GPU."""
    if not frame.answers(node.node):
        return ""  # the age of the link is already shown
    if node.gpus:
        old = frame.age(node.node, node.gpu_sampled)
        return "" if frame.fresh(node.node, node.gpu_sampled) else f"  {duration_short(old)} old"
    return "  no GPU"


def node_cells(frame: Frame, node: Node) -> list[Heat]:
    """Return one cell per GPU, or one per rank if the node has no GPU."""
    if not node.gpus:
        return [_rank_cell(frame, rank) for rank in frame.state.ranks_of(node.node)]
    fresh = frame.fresh(node.node, node.gpu_sampled)
    owners = frame.once(gpu_owners)
    return [_gpu_cell(frame, gpu, owners.get((node.node, gpu.index), []), fresh) for gpu in node.gpus]


def _gpu_cell(frame: Frame, gpu: Gpu, ranks: list[int], fresh: bool) -> Heat:
    below = f"r{spans_short(ranks)}" if ranks else f"gpu{gpu.index}"
    if gpu.lost:
        return Heat(None, "lost", below, broken=True)
    if not fresh:
        return Heat(None, "", below)
    if frame.view.metric == "step-time":
        value, text = _step(frame, frame.state.ranks.get(ranks[0]) if ranks else None)
    else:
        value, text = _gpu_value(frame.view.metric, gpu)
    return Heat(value, text, below)


def _gpu_value(metric: str, gpu: Gpu) -> tuple[float | None, str]:
    if metric == "mem":
        return _share(gpu.mem_used, gpu.mem_total), size_short(gpu.mem_used)
    if metric == "power":
        return _share(gpu.power_w, gpu.power_limit_w), or_na(gpu.power_w, "{:.0f}W".format)
    if metric == "temp":
        if gpu.temp_c is None:
            return None, NA
        return (gpu.temp_c - _COLD_C) / (_HOT_C - _COLD_C) * 100, f"{gpu.temp_c:.0f}C"
    return gpu.util, percent(gpu.util)


def plain_gpus(frame: Frame, node: Node) -> list[str]:
    """Return a node's GPUs as text, one line each: the values of the map, and reasons for throttled clocks."""
    rows: list[tuple[str, ...]] = [("GPU", "name", "util", "mem", "power", "temp", "clocks")]
    fresh = frame.fresh(node.node, node.gpu_sampled)
    for gpu in node.gpus:
        util, power, temp = (_gpu_value(metric, gpu)[1] for metric in ("util", "power", "temp"))
        held = or_na(gpu.throttle, lambda reasons: ", ".join(reasons) or "free")
        values = ("lost" if gpu.lost else util, usage_short(gpu.mem_used, gpu.mem_total), power, temp, held)
        rows.append((str(gpu.index), gpu.name, *(values if fresh else (NA,) * len(values))))
    return table(rows, frozenset({0, 2, 3, 4, 5}))


def _share(used: float | None, total: float | None) -> float | None:
    return None if used is None or not total else used / total * 100


def _rank_cell(frame: Frame, rank: Rank) -> Heat:
    below = f"r{rank.place.rank}"
    if glyphs.RANK[rank.phase][1] == "bad":
        return Heat(None, str(rank.phase)[:4], below, broken=True)
    sample = rank.sample if frame.fresh(rank.place.node, rank.sampled) else None
    if sample is None:
        return Heat(None, "", below)
    if frame.view.metric == "step-time":
        return Heat(*_step(frame, rank), below)
    if frame.view.metric == "mem":
        return Heat(_share(sample.rss_bytes, frame.once(_most)), size_short(sample.rss_bytes), below)
    if frame.view.metric == "util":
        return Heat(sample.cpu_percent, percent(sample.cpu_percent), below)
    return Heat(None, "", below)


def _most(frame: Frame) -> float | None:
    """Return the value of a full cell if ranks are compared: the slowest step, or the most memory."""
    samples = [rank.sample for rank in frame.state.ranks.values() if rank.sample is not None]
    if frame.view.metric == "step-time":
        return max((sample.step_s for sample in samples if sample.step_s), default=None)
    return max((sample.rss_bytes for sample in samples if sample.rss_bytes), default=None)


def _step(frame: Frame, rank: Rank | None) -> tuple[float | None, str]:
    mine = rank.sample.step_s if rank is not None and rank.sample is not None else None
    return _share(mine, frame.once(_most)), step_short(mine)


def _node_marks(frame: Frame, node: Node) -> list[Cell]:
    """Return one glyph per cell; for GPU values without building the texts of cells."""
    metric = frame.view.metric
    if not node.gpus or metric == "step-time":
        return [_mark(frame, heat.value, heat.broken) for heat in node_cells(frame, node)]
    fresh, plain = frame.fresh(node.node, node.gpu_sampled), frame.view.ascii
    if metric == "util" and fresh:  # by far the most frequent case
        return [_BROKEN if gpu.lost else glyphs.heat(gpu.util, plain) for gpu in node.gpus]
    return [_mark(frame, _gpu_value(metric, gpu)[0] if fresh else None, gpu.lost) for gpu in node.gpus]


def _mark(frame: Frame, value: float | None, broken: bool) -> Cell:
    return _BROKEN if broken else glyphs.heat(value, frame.view.ascii)


_BROKEN: Cell = (glyphs.BAD, "bad")


def _tiles(frame: Frame, nodes: list[Node], width: int) -> list[Row]:
    """Return tiles column by column, so that neighbours stay neighbours."""
    cells = [_node_marks(frame, node) for node in nodes]
    named = names(frame.state)
    name = 9
    tile = 3 + name + 2 * max(1, *(len(part) for part in cells)) + 2
    across = max(1, width // tile)
    down = -(-len(nodes) // across)
    rows: list[Row] = []
    for y in range(down):
        row: list[Cell] = []
        for index in range(y, len(nodes), down):
            node = nodes[index]
            row += _tile(frame, node, cells[index], fit_name(named[node.node], name), tile)
        rows.append(tuple(row))
    return rows


def _tile(frame: Frame, node: Node, cells: list[Cell], name: str, tile: int) -> list[Cell]:
    glyph, style = _health(frame, node)
    out: list[Cell] = [(f" {glyph}", style), (f"{name} ", "text")]
    room = tile - 3 - len(name)
    link = link_state(frame, node)
    words = "" if link is None else link[2].partition(",")[0]
    if link is not None and len(words) < room:
        return [*out, (fit(words, room), link[1])]
    for mark in cells:
        out += (mark, (" ", "text"))
    out.append((" " * (room - 2 * len(cells)), "text"))
    return out
