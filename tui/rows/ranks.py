"""Ranks and GPUs: the heat map, and the rank table, which after the end of a run is the exit table. Pure.

The map has nodes by GPUs, or nodes by ranks where there is no GPU. One to a few nodes get wide cells with value and
rank; many nodes get one tile of single glyphs each.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from ...runners import status
from ...runners.formatting import NA, duration_short, size_short, spans_short, step_short, usage_short
from ...runners.model import Gpu, RankSample
from ...runners.state import Node, Rank, RunState
from ...runners.status import short
from . import glyphs
from .frame import Frame, fit_name, gpu_of, link_state, names, ranks_on
from .glyphs import Cell, Row, clip, fit, percent, table

CELL = 7
"""Columns of a wide cell with its gap."""

WIDE_NODES = 4
"""Most nodes shown with wide cells."""

_COLD_C, _HOT_C = 30.0, 90.0


@dataclass(frozen=True, slots=True)
class Heat:
    """One cell: its heat, its text, and the text below it."""

    value: float | None
    """0 to 100; None is unknown."""
    text: str
    below: str = ""
    broken: bool = False


def heat_title(frame: Frame) -> str:
    """What the map shows, with its unit."""
    gpu = any(node.gpus for node in frame.state.nodes.values()) or not frame.state.ranks
    names = {
        "util": "GPU utilisation" if gpu else "no GPU · CPU, percent of one core",
        "mem": "GPU memory" if gpu else "no GPU · resident memory",
        "power": "power, share of the limit",
        "temp": "temperature",
        "step-time": "time of a step",
    }
    return names[frame.view.metric]


def heat_rows(frame: Frame, width: int) -> list[Row]:
    """The map in `width` columns."""
    nodes = shown_nodes(frame.state)
    if not nodes:
        return [((" no rank has started yet", "dim"),)]
    if len(nodes) > WIDE_NODES:
        return _tiles(frame, nodes, width)
    rows: list[Row] = []
    named = names(frame.state)
    most = _most(frame)
    for node in nodes:
        rows += _wide(frame, node, named[node.node], width, most)
    return rows


def shown_nodes(state: RunState) -> list[Node]:
    """The nodes of the map: those with something to show, and those to which a hub has a link."""
    return [
        node
        for number, node in sorted(state.nodes.items())
        if node.gpus or node.link is not None or ranks_on(state, number)
    ]


def _wide(frame: Frame, node: Node, name: str, width: int, most: float | None) -> list[Row]:
    cells = _cells(frame, node, most)
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
        if link is not None and start == 0:  # where the values would be, why there are none
            rows.append(clip((*head, (link[2], link[1])), width))
        else:
            rows.append((*head, *(cell for heat in part for cell in _wide_cell(frame, heat))))
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
    number = fit(fit(heat.text, CELL - 3, right=True), CELL - 2)
    return (glyph, style), (number, style.replace("bar", "heat")), (" ", "text")


def _label(frame: Frame, node: Node, name: str, width: int) -> Row:
    glyph, style = _health(frame, node)
    return ((f"{glyph} ", style), (fit_name(name, width - 3) + " ", "text"))


def _health(frame: Frame, node: Node) -> tuple[str, str]:
    link = link_state(frame, node)
    if link is not None:
        return link[0], link[1]
    states = [rank.phase for rank in ranks_on(frame.state, node.node)]
    worst = next((glyphs.RANK[state] for state in states if glyphs.RANK[state][1] == "bad"), None)
    if worst or any(gpu.lost for gpu in node.gpus):
        return glyphs.BAD, "bad"
    if not frame.fresh(node.node, node.heard):
        return glyphs.STALE, "stale"
    return (glyphs.WARN, "warn") if node.gpu_problem and node.gpus else (glyphs.OK, "ok")


def _note(frame: Frame, node: Node) -> str:
    """Below the name: how old the values are, or that there is no GPU."""
    if not frame.answers(node.node):
        return ""  # the age of the link is shown already
    if node.gpus:
        old = frame.age(node.node, node.gpu_sampled)
        return "" if frame.fresh(node.node, node.gpu_sampled) else f"  {duration_short(old)} old"
    return "  no GPU"


def node_cells(frame: Frame, node: Node) -> list[Heat]:
    """One cell a GPU, or one a rank where the node has no GPU."""
    return _cells(frame, node, _most(frame))


def _cells(frame: Frame, node: Node, most: float | None) -> list[Heat]:
    if not node.gpus:
        return [_rank_cell(frame, rank, most) for rank in ranks_on(frame.state, node.node)]
    fresh = frame.fresh(node.node, node.gpu_sampled)
    owners: dict[int, list[Rank]] = {}
    for rank in ranks_on(frame.state, node.node):
        gpu = gpu_of(rank, node)
        if gpu is not None:
            owners.setdefault(gpu.index, []).append(rank)
    return [_gpu_cell(frame, gpu, owners.get(gpu.index, []), fresh, most) for gpu in node.gpus]


def _gpu_cell(frame: Frame, gpu: Gpu, ranks: list[Rank], fresh: bool, most: float | None) -> Heat:
    below = f"r{spans_short(rank.place.rank for rank in ranks)}" if ranks else f"gpu{gpu.index}"
    if gpu.lost:
        return Heat(None, "lost", below, broken=True)
    if not fresh:
        return Heat(None, "", below)
    if frame.view.metric == "step-time":
        value, text = _step(ranks[0] if ranks else None, most)
    else:
        value, text = _gpu_value(frame.view.metric, gpu)
    return Heat(value, text, below)


def _gpu_value(metric: str, gpu: Gpu) -> tuple[float | None, str]:
    if metric == "mem":
        return _share(gpu.mem_used, gpu.mem_total), size_short(gpu.mem_used)
    if metric == "power":
        text = NA if gpu.power_w is None else f"{gpu.power_w:.0f}W"
        return _share(gpu.power_w, gpu.power_limit_w), text
    if metric == "temp":
        if gpu.temp_c is None:
            return None, NA
        return (gpu.temp_c - _COLD_C) / (_HOT_C - _COLD_C) * 100, f"{gpu.temp_c:.0f}C"
    return gpu.util, percent(gpu.util)


def gpu_table(frame: Frame, node: Node) -> list[str]:
    """A node's GPUs as text, a line each: what the map can show of them, and what holds their clocks down."""
    rows: list[tuple[str, ...]] = [("GPU", "name", "util", "mem", "power", "temp", "clocks")]
    fresh = frame.fresh(node.node, node.gpu_sampled)
    for gpu in node.gpus:
        util, power, temp = (_gpu_value(metric, gpu)[1] for metric in ("util", "power", "temp"))
        held = NA if gpu.throttle is None else ", ".join(gpu.throttle) or "free"
        values = ("lost" if gpu.lost else util, usage_short(gpu.mem_used, gpu.mem_total), power, temp, held)
        rows.append((str(gpu.index), gpu.name, *(values if fresh else (NA,) * len(values))))
    return table(rows, frozenset({0, 2, 3, 4, 5}))


def _share(used: float | None, total: float | None) -> float | None:
    return None if used is None or not total else used / total * 100


def _rank_cell(frame: Frame, rank: Rank, most: float | None) -> Heat:
    below = f"r{rank.place.rank}"
    if glyphs.RANK[rank.phase][1] == "bad":
        return Heat(None, str(rank.phase)[:4], below, broken=True)
    sample = rank.sample if frame.fresh(rank.place.node, rank.sampled) else None
    if sample is None:
        return Heat(None, "", below)
    if frame.view.metric == "step-time":
        return Heat(*_step(rank, most), below)
    if frame.view.metric == "mem":
        return Heat(_share(sample.rss_bytes, most), size_short(sample.rss_bytes), below)
    if frame.view.metric == "util":
        return Heat(sample.cpu_percent, percent(sample.cpu_percent), below)
    return Heat(None, "", below)


def _most(frame: Frame) -> float | None:
    """What a whole cell means where ranks are compared with each other: the slowest step, or the most memory."""
    samples = [rank.sample for rank in frame.state.ranks.values() if rank.sample is not None]
    if frame.view.metric == "step-time":
        return max((sample.step_s for sample in samples if sample.step_s), default=None)
    return max((sample.rss_bytes for sample in samples if sample.rss_bytes), default=None)


def _step(rank: Rank | None, slowest: float | None) -> tuple[float | None, str]:
    mine = rank.sample.step_s if rank is not None and rank.sample is not None else None
    return _share(mine, slowest), step_short(mine)


def _node_marks(frame: Frame, node: Node, most: float | None) -> list[Cell]:
    """A glyph a cell: of GPUs that are not compared with each other, found without the texts that a cell has."""
    metric = frame.view.metric
    if not node.gpus or metric == "step-time":
        return [_mark(frame, heat.value, heat.broken) for heat in _cells(frame, node, most)]
    fresh = frame.fresh(node.node, node.gpu_sampled)
    if metric == "util":  # by far the most frequent
        return [_mark(frame, gpu.util if fresh else None, gpu.lost) for gpu in node.gpus]
    return [_mark(frame, _gpu_value(metric, gpu)[0] if fresh else None, gpu.lost) for gpu in node.gpus]


def _mark(frame: Frame, value: float | None, broken: bool) -> Cell:
    return (glyphs.BAD, "bad") if broken else glyphs.heat(value, frame.view.ascii)


def _tiles(frame: Frame, nodes: list[Node], width: int) -> list[Row]:
    """Tiles column by column, so that neighbours stay neighbours."""
    most = _most(frame)
    cells = [_node_marks(frame, node, most) for node in nodes]
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


Sortable = float | str | None


@dataclass(frozen=True, slots=True)
class RankRow:
    """One rank with what belongs to it at the time of this paint; None where unknown or old."""

    rank: Rank
    node: Node | None
    sample: RankSample | None
    util: float | None
    mem: tuple[int | None, int | None]
    gpu: int | None
    where: str
    """Name of its node."""
    mesh: str
    """Its coordinates; "" where the ranks have but one dimension."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column. The highest `order` is left out first where the terminal is narrow."""

    name: str
    width: int
    order: int
    text: Callable[[RankRow], str]
    key: Callable[[RankRow], Sortable] | None = None
    right: bool = True


def _or_na(value: int | None) -> str:
    return NA if value is None else str(value)


def _state(line: RankRow) -> str:
    return f"{glyphs.RANK[line.rank.phase][0]} {line.rank.phase}"


def _worst(line: RankRow) -> str:
    """Sorts failed before starting before running."""
    style = glyphs.RANK[line.rank.phase][1]
    return {"bad": "0", "warn": "1", "stale": "2"}.get(style, "3") + str(line.rank.phase)


def _sampled(
    name: str,
    width: int,
    order: int,
    pick: Callable[[RankSample], float | None],
    text: Callable[[Any], str],
) -> Column:
    """A column of the ranks' samples."""

    def value(line: RankRow) -> float | None:
        return None if line.sample is None else pick(line.sample)

    return Column(name, width, order, lambda line: text(value(line)), value)


_RANK = Column("rank", 4, 0, lambda line: str(line.rank.place.rank), lambda line: line.rank.place.rank)
_STATE = Column(
    "state",
    11,
    1,
    lambda line: " ".join((glyphs.RANK[line.rank.phase][0], line.rank.phase)),
    _worst,
    right=False,
)
_PID = Column("pid", 7, 9, lambda line: _or_na(line.rank.pid))
_LOCAL = Column("local", 5, 13, lambda line: str(line.rank.place.local_rank))
_NODE = Column("node", 8, 12, lambda line: line.where, right=False)

_MESH = Column("mesh", 0, 11, lambda line: line.mesh or NA, right=False)
"""Its width is that of the widest coordinates."""

_STEP = _sampled("step", 7, 6, lambda sample: sample.step, _or_na)
_RSS = _sampled("RSS", 5, 7, lambda sample: sample.rss_bytes, size_short)
_PACE = _sampled("s/step", 6, 5, lambda sample: sample.step_s, step_short)

LIVE: tuple[Column, ...] = (
    _RANK,
    _LOCAL,
    _NODE,
    _STATE,
    _PID,
    Column("GPU", 3, 8, lambda line: _or_na(line.gpu)),
    Column("util", 4, 2, lambda line: percent(line.util), lambda line: line.util),
    Column("mem", 9, 3, lambda line: usage_short(*line.mem), lambda line: line.mem[0]),
    _sampled("CPU", 5, 4, lambda sample: sample.cpu_percent, percent),
    _RSS,
    _STEP,
    _PACE,
    Column("NCCL", 5, 10, lambda line: line.rank.nccl_debug or NA, right=False),
)

_EXIT = Column("exit", 8, 2, lambda line: line.rank.signal or _or_na(line.rank.exit_code), right=False)
ENDED: tuple[Column, ...] = (_RANK, _LOCAL, _NODE, _STATE, _PID, _EXIT, _STEP, _PACE, _RSS)
_NO_GPU = frozenset({"GPU", "util", "mem"})
_TWO_SPACES = 1


def columns(frame: Frame, width: int) -> list[Column]:
    """The columns that fit, in their order on the screen."""
    wanted = ENDED if frame.state.phase.ended else LIVE
    left_out = set() if any(node.gpus for node in frame.state.nodes.values()) else set(_NO_GPU)
    if frame.state.plan is not None and frame.state.plan.backend == "gloo":
        left_out.add("NCCL")
    chosen = [column for column in wanted if column.name not in left_out]
    arranged = status.sizes(frame.state)
    if len(arranged) > 1:
        last = short(arranged, frame.state.attempts[-1].world_size - 1)
        chosen.insert(chosen.index(_STATE), replace(_MESH, width=len(last)))
    several = len(frame.state.nodes) > 1
    while sum(column.width + _TWO_SPACES for column in chosen) + 1 > width and len(chosen) > 2:
        spare = [column for column in chosen if not (several and column is _NODE)]
        chosen.remove(max(spare, key=lambda column: column.order))
    return chosen


def next_sort(frame: Frame) -> str:
    """The column to sort by after the present one, of those that this run has."""
    names = [column.name for column in columns(frame, 1000) if column.key is not None]
    at = names.index(frame.view.sort) if frame.view.sort in names else -1
    return names[(at + 1) % len(names)]


def lines(frame: Frame) -> list[RankRow]:
    """Every rank, sorted by the chosen column; unknown values come last."""
    named = names(frame.state)
    arranged = status.sizes(frame.state)
    rows = [_line(frame, rank, named, arranged) for _, rank in sorted(frame.state.ranks.items())]
    column = next((live for live in LIVE if live.name == frame.view.sort and live.key is not None), _RANK)
    key = column.key
    if key is None:
        return rows
    valued = [(value, line) for line in rows if (value := key(line)) is not None]
    unknown = [line for line in rows if key(line) is None]
    valued.sort(key=lambda item: (isinstance(item[0], str), item[0]), reverse=frame.view.reverse)
    return [line for _, line in valued] + unknown


def _line(frame: Frame, rank: Rank, named: dict[int, str], arranged: dict[str, int]) -> RankRow:
    node = frame.state.nodes.get(rank.place.node)
    gpu = gpu_of(rank, node)
    fresh = node is not None and frame.fresh(node.node, node.gpu_sampled)
    shown = gpu if fresh else None
    return RankRow(
        rank=rank,
        node=node,
        sample=rank.sample if frame.fresh(rank.place.node, rank.sampled) else None,
        util=shown.util if shown else None,
        mem=(shown.mem_used, shown.mem_total) if shown else (None, None),
        gpu=gpu.index if gpu else None,
        where=named.get(rank.place.node, str(rank.place.node)),
        mesh=short(arranged, rank.place.rank),
    )


def head_row(frame: Frame, width: int) -> Row:
    """The names of the columns; the sorted one carries an arrow."""
    cells: list[Cell] = [(" ", "dim")]
    for column in columns(frame, width):
        name = column.name
        if name == frame.view.sort and name != "rank":
            up, down = ("^", "v") if frame.view.ascii else ("▴", "▾")
            name = name[: column.width - 1] + (down if frame.view.reverse else up)
        cells.append((fit(name, column.width, right=column.right) + " ", "dim"))
    return tuple(cells)


def rank_row(frame: Frame, line: RankRow, chosen: list[Column]) -> Row:
    """One rank."""
    marked = line.rank.place.rank in frame.view.marked
    cells: list[Cell] = [(glyphs.MARK if marked else " ", "accent")]
    for column in chosen:
        text = fit_name(line.where, column.width) if column is _NODE else column.text(line)
        style = "stale" if text == NA else "text"
        if column is _STATE:
            fresh = line.node is None or frame.fresh(line.node.node, line.node.heard)
            style = glyphs.RANK[line.rank.phase][1] if fresh else "stale"
        elif text == NA and line.sample is None and line.rank.sample is not None:
            text = glyphs.MISSING  # there was a value, it is too old to be shown as true
        cells.append((fit(text, column.width, right=column.right) + " ", style))
    return tuple(cells)


def table_rows(frame: Frame, width: int) -> tuple[list[Row], list[int]]:
    """Rows of the table without its head, and the rank that each row shows."""
    chosen = columns(frame, width)
    ordered = lines(frame)
    return [rank_row(frame, line, chosen) for line in ordered], [line.rank.place.rank for line in ordered]


def plain_table(frame: Frame) -> list[str]:
    """The whole table as text, its columns as wide as they need; of a run that goes on with what ended of it."""
    chosen, rows = columns(frame, 1000), lines(frame)
    if _EXIT not in chosen and any(row.rank.signal or row.rank.exit_code is not None for row in rows):
        chosen.insert(chosen.index(_STATE) + 1, _EXIT)
    right = frozenset(at for at, column in enumerate(chosen) if column.right)
    texts = [tuple(column.text(row) for column in chosen) for row in rows]
    return table([tuple(column.name for column in chosen), *texts], right)
