"""The GPU heat map, and how the panes share the terminal."""

from __future__ import annotations

from dataclasses import dataclass

from ...runners.formatting import NA, duration_short, size_short, spans_short, step_short, usage_short
from ...runners.model import Gpu, RankSample
from ...runners.state import Node, Rank, RunState
from . import glyphs
from .frame import Frame, gpu_of, ranks_on
from .glyphs import Cell, Row, clip, fit, percent
from .plain import table
from .status import fit_name, link_state, names

# -----------------------------------------------------------------------------------------------------------
# How the panes of the run screen share the terminal.


SMALLEST = (60, 15)
"""Columns and rows below which only a summary is shown."""

TALL = 30
"""From this many rows on, panes have a whole frame; below, only a title line."""

WIDE = 160
"""From this many columns on, the log stands beside the rest."""

SIDE = 90
"""Most columns of a log that stands beside."""


@dataclass(frozen=True, slots=True)
class PaneHeights:
    """Heights in rows, frames included; 0 hides a pane. The log (or `main`) takes what is left."""

    small: bool = False
    framed: bool = False
    beside: int = 0
    """Columns of the log where it stands beside the rest; 0 where it stands below."""
    banner: int = 1
    heat: int = 0
    table: int = 0
    events: int = 0
    main: str = "log"
    """The pane that takes the rest: "log", "table", "events", "findings" or "nccl"."""


def side_width(width: int) -> int:
    """Columns of the log where it stands beside the rest."""
    return min(SIDE, width * 9 // 20) if width >= WIDE else 0


def plan_layout(
    width: int,
    height: int,
    pane: str,
    heat_rows: int,
    ranks: int,
    banner: int,
    ended: bool = False,
    launching: bool = False,
) -> PaneHeights:
    """What each pane gets; `heat_rows` and `ranks` are the rows that map and table would like.

    After the end the map's place holds the report, and before the first rank the launch: both may take more.
    """
    if width < SMALLEST[0] or height < SMALLEST[1]:
        return PaneHeights(small=True)
    framed = height >= TALL
    extra = 2 if framed else 1
    shown = max(1, min(banner, 6 if framed else 2))
    if pane in ("log", "events", "findings", "nccl"):
        return PaneHeights(framed=framed, banner=1 if pane == "findings" else shown, main=pane)
    if pane == "ranks":
        return PaneHeights(framed=framed, banner=shown, main="table")
    room = height - 2 - shown  # the status line and the footer
    if width >= WIDE:
        heat = min(heat_rows + extra, room // 2)
        table = 0 if launching else min(ranks + 1 + extra, room - heat)
        events = room - heat - table
        if events < 2 + extra:
            table, events = table + events, 0
        return PaneHeights(
            framed=framed, beside=side_width(width), banner=shown, heat=heat, table=table, events=events
        )
    if launching:
        return PaneHeights(framed=framed, banner=shown, heat=min(heat_rows + extra, max(3, room * 2 // 3)))
    heat = min(heat_rows + extra, max(3, room // 2 if ended else room // 3))
    least_log = max(5, room // 4 if ended else room // 3)
    table = max(min(ranks + 1 + extra, room - heat - least_log), 0)
    return PaneHeights(framed=framed, banner=shown, heat=heat, table=table)


# -----------------------------------------------------------------------------------------------------------
# The heat map: nodes by GPUs, or nodes by ranks where there is no GPU.
# One to a few nodes get wide cells with value and rank; many nodes get one tile of single glyphs each.


CELL = 7
"""Columns of a wide cell with its gap."""

WIDE_NODES = 4
"""Most nodes shown with wide cells."""

_COLD_C, _HOT_C = 30.0, 90.0


@dataclass(frozen=True, slots=True)
class Heat:
    """One cell: how hot, what it says, what stands below it."""

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
    for node in nodes:
        rows += _wide(frame, node, named[node.node], width)
    return rows


def shown_nodes(state: RunState) -> list[Node]:
    """The nodes of the map: those with something to show, and those that a hub stands to."""
    return [
        node
        for number, node in sorted(state.nodes.items())
        if node.gpus or node.link is not None or ranks_on(state, number)
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
        return ""  # the link's age is told already
    if node.gpus:
        old = frame.age(node.node, node.gpu_sampled)
        return "" if frame.fresh(node.node, node.gpu_sampled) else f"  {duration_short(old)} old"
    return "  no GPU"


def node_cells(frame: Frame, node: Node) -> list[Heat]:
    """One cell a GPU, or one a rank where the node has no GPU."""
    if not node.gpus:
        return [_rank_cell(frame, rank) for rank in ranks_on(frame.state, node.node)]
    fresh = frame.fresh(node.node, node.gpu_sampled)
    owners: dict[int, list[Rank]] = {}
    for rank in ranks_on(frame.state, node.node):
        gpu = gpu_of(rank, node)
        if gpu is not None:
            owners.setdefault(gpu.index, []).append(rank)
    return [_gpu_cell(frame, gpu, owners.get(gpu.index, []), fresh) for gpu in node.gpus]


def _gpu_cell(frame: Frame, gpu: Gpu, ranks: list[Rank], fresh: bool) -> Heat:
    below = f"r{spans_short(rank.place.rank for rank in ranks)}" if ranks else f"gpu{gpu.index}"
    if gpu.lost:
        return Heat(None, "lost", below, broken=True)
    if not fresh:
        return Heat(None, "", below)
    if frame.view.metric == "step-time":
        value, text = _step(frame, ranks[0] if ranks else None)
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
        return Heat(_share(sample.rss_bytes, _most_rss(frame)), size_short(sample.rss_bytes), below)
    if frame.view.metric == "util":
        return Heat(sample.cpu_percent, percent(sample.cpu_percent), below)
    return Heat(None, "", below)


def _samples(frame: Frame) -> list[RankSample]:
    return [rank.sample for rank in frame.state.ranks.values() if rank.sample is not None]


def _most_rss(frame: Frame) -> int | None:
    return max((sample.rss_bytes for sample in _samples(frame) if sample.rss_bytes), default=None)


def _step(frame: Frame, rank: Rank | None) -> tuple[float | None, str]:
    """The slowest rank is 100."""
    slowest = max((sample.step_s for sample in _samples(frame) if sample.step_s), default=None)
    mine = rank.sample.step_s if rank is not None and rank.sample is not None else None
    return _share(mine, slowest), step_short(mine)


def _tiles(frame: Frame, nodes: list[Node], width: int) -> list[Row]:
    """Tiles column by column, so that neighbours stay neighbours."""
    cells = [node_cells(frame, node) for node in nodes]
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


def _tile(frame: Frame, node: Node, cells: list[Heat], name: str, tile: int) -> list[Cell]:
    glyph, style = _health(frame, node)
    out: list[Cell] = [(f" {glyph}", style), (f"{name} ", "text")]
    room = tile - 3 - len(name)
    link = link_state(frame, node)
    words = "" if link is None else link[2].partition(",")[0]
    if link is not None and len(words) < room:
        return [*out, (fit(words, room), link[1])]
    for heat in cells:
        mark, ink = (glyphs.BAD, "bad") if heat.broken else glyphs.heat(heat.value, frame.view.ascii)
        out += [(mark, ink), (" ", "text")]
    out.append((" " * (room - 2 * len(cells)), "text"))
    return out
