"""The rank table: which columns fit, what stands in them, and in which order the ranks come.

After the end of a run it is the exit table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from ...runners import status
from ...runners.formatting import NA, size_short, step_short, usage_short
from ...runners.model import RankSample
from ...runners.state import Node, Rank
from ...runners.status import short
from . import glyphs
from .frame import Frame, gpu_of
from .glyphs import Cell, Row, fit, percent
from .plain import table
from .status import fit_name, names

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


def _end(line: RankRow) -> str:
    if line.rank.signal:
        return line.rank.signal
    return _or_na(line.rank.exit_code)


def _sample(pick: Callable[[RankSample], Sortable]) -> Callable[[RankRow], Sortable]:
    return lambda line: None if line.sample is None else pick(line.sample)


_RANK = Column("rank", 4, 0, lambda line: str(line.rank.place.rank), lambda line: line.rank.place.rank)
_STATE = Column("state", 11, 1, _state, _worst, right=False)
_PID = Column("pid", 7, 9, lambda line: _or_na(line.rank.pid))
_LOCAL = Column("local", 5, 13, lambda line: str(line.rank.place.local_rank))
_NODE = Column("node", 8, 12, lambda line: line.where, right=False)
_MESH = Column("mesh", 0, 11, lambda line: line.mesh or NA, right=False)
"""Its width is that of the widest coordinates."""
_STEP = Column(
    "step",
    7,
    6,
    lambda line: _or_na(line.sample.step if line.sample else None),
    _sample(lambda sample: sample.step),
)
_RSS = Column(
    "RSS",
    5,
    7,
    lambda line: size_short(line.sample.rss_bytes if line.sample else None),
    _sample(lambda sample: sample.rss_bytes),
)
_PACE = Column(
    "s/step",
    6,
    5,
    lambda line: step_short(line.sample.step_s if line.sample else None),
    _sample(lambda sample: sample.step_s),
)

LIVE: tuple[Column, ...] = (
    _RANK,
    _LOCAL,
    _NODE,
    _STATE,
    _PID,
    Column("GPU", 3, 8, lambda line: _or_na(line.gpu)),
    Column("util", 4, 2, lambda line: percent(line.util), lambda line: line.util),
    Column("mem", 9, 3, lambda line: usage_short(*line.mem), lambda line: line.mem[0]),
    Column(
        "CPU",
        5,
        4,
        lambda line: percent(line.sample.cpu_percent if line.sample else None),
        _sample(lambda sample: sample.cpu_percent),
    ),
    _RSS,
    _STEP,
    _PACE,
    Column("NCCL", 5, 10, lambda line: line.rank.nccl_debug or NA, right=False),
)

_EXIT = Column("exit", 8, 2, _end, right=False)

ENDED: tuple[Column, ...] = (
    _RANK,
    _LOCAL,
    _NODE,
    _STATE,
    _PID,
    _EXIT,
    _STEP,
    _PACE,
    _RSS,
)

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
    """Every rank, sorted as the view says; unknown values come last."""
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
