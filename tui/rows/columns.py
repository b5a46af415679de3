"""Columns of the rank table and of the GPU table, as data: title, width, priority, text, sort key. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from operator import attrgetter
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from ...runners.run.formatting import NA, duration_short, size_short, spans_short, usage_short
from ...runners.run.model import Gpu, RankSample
from ...runners.run.state import LIVING, Node, Rank
from ...runners.telemetry.quantities import BY_KIND
from ...runners.telemetry.quantity import Quantity, TableColumn
from ...runners.telemetry.quantity_text import value_short
from . import glyphs
from .glyphs import or_na

Sortable = float | str | None


class RankRow(Struct, frozen=True):
    """One rank with its node, sample and GPU at the time of this paint; None if unknown or too old."""

    rank: Rank
    node: Node | None
    sample: RankSample | None
    gpu: Gpu | None
    fresh: bool
    """Whether the values are current; otherwise they are dim."""
    gpu_index: int | None
    where: str
    """Name of its node."""
    mesh: str
    """Its coordinates; "" if the mesh has only one dimension."""


class GpuRow(Struct, frozen=True):
    """One GPU with its samples and ranks at the time of this paint."""

    index: int
    node: int
    gpu: Gpu | None
    fresh: bool
    where: str
    """Name of its node."""
    ranks: tuple[int, ...]
    pids: frozenset[int]
    """Processes of the run's ranks on its node."""
    lost: bool = False
    name: str = ""


Line = RankRow | GpuRow


class Column(Struct, frozen=True):
    """One column. Narrow terminals drop the column with the highest `order` first."""

    id: str
    """The column's name in the settings file."""
    title: str
    about: str
    """Description for the dialog, with the unit."""
    width: int
    order: int
    text: Callable[[Any], str]
    key: Callable[[Any], Sortable] | None = None
    right: bool = True
    most: int = 0
    """Maximum width if there are spare columns; 0 for `width`."""
    only: str = ""
    """Condition: "gpu" needs GPUs, "nccl" NCCL, "nodes" several nodes, "ended" an ended run, "live" a live run."""
    asked: bool = False
    """Whether the column appears only if the user chose it or the terminal is wide."""

    @property
    def of_gpu(self) -> bool:
        """Whether the GPU table also has this column."""
        return self in _OF_GPU


def _column(
    id: str,
    about: str,
    width: int,
    order: int,
    text: Callable[[Any], str],
    key: Callable[[Any], Sortable] | None = None,
    *,
    title: str = "",
    **more: Any,
) -> Column:
    """Build a column; `title` defaults to the id."""
    return Column(id, title or id, about, width, order, text, key, **more)


# --- of the table of quantities ---


def _reasons(words: Sequence[str] | None) -> str:
    return NA if words is None else ", ".join(words) or "-"


def _watts(power: float | None, limit: float | None) -> str:
    if power is None:
        return NA
    return f"{power:.0f}W" if limit is None else f"{power:.0f}/{limit:.0f}W"


_TEXT_BY_FIELD: dict[str, Callable[[Any], str]] = {"log_age_s": duration_short, "throttle": _reasons}
_TEXT_WITH_LIMIT: dict[str, Callable[[Any, Any], str]] = {"B": usage_short, "W": _watts}


def _text_of(unit: str) -> Callable[[Any], str]:
    """Return the text of values in this unit; counts are exact."""
    return partial(value_short, unit=unit) if unit else or_na


WORDS_WIDTH = 24
"""Maximum width of a column of words."""


class _Measured:
    """Makes columns of quantities; `sample` returns the sample of a line, or None."""

    def __init__(self, sample: Callable[[Any], Any], only: str = "") -> None:
        self._sample = sample
        self._only = only

    def columns(self, quantities: Iterable[Quantity]) -> dict[str, Column]:
        """Return the columns of the quantities that have one, by id."""
        return {each.column.id: self._column(each, each.column) for each in quantities if each.column}

    def _column(self, quantity: Quantity, declared: TableColumn) -> Column:
        value = self._sum(quantity.field, declared.plus) if declared.plus else self._field(quantity.field)
        text = self._text(quantity, value)
        return Column(
            declared.id,
            declared.title or declared.id,
            declared.about,
            declared.width,
            declared.order,
            text,
            text if declared.words else value,
            right=not declared.words,
            most=WORDS_WIDTH if declared.words else 0,
            only=self._only,
            asked=declared.asked,
        )

    def _field(self, name: str) -> Callable[[Line], Any]:
        return lambda line: getattr(self._sample(line), name, None)

    def _sum(self, *names: str) -> Callable[[Line], float | None]:
        def add(line: Line) -> float | None:
            values = [value for name in names if (value := self._field(name)(line)) is not None]
            return sum(values) if values else None

        return add

    def _text(self, quantity: Quantity, value: Callable[[Line], Any]) -> Callable[[Line], str]:
        if quantity.limit:
            limit = self._field(quantity.limit.partition(".")[2])
            pair_text = _TEXT_WITH_LIMIT[quantity.unit]
            return lambda line: pair_text(value(line), limit(line))
        text = _TEXT_BY_FIELD.get(quantity.field) or _text_of(quantity.unit)
        return lambda line: text(value(line))


def others(line: Line) -> tuple[int, int] | None:
    """Return the number of foreign processes on the GPU and their bytes; None if unknown.

    If NVML does not list the rank's own process, the pids belong to another pid namespace and cannot be attributed.
    """
    gpu = line.gpu
    if gpu is None or gpu.pids is None:
        return None
    mine, is_used = _own_processes(line)
    if is_used and mine.isdisjoint(gpu.pids):
        return None
    sizes = gpu.pid_mem if gpu.pid_mem is not None else (None,) * len(gpu.pids)
    foreign = [size or 0 for pid, size in zip(gpu.pids, sizes, strict=False) if pid not in mine]
    return len(foreign), sum(foreign)


def _own_processes(line: Line) -> tuple[frozenset[int | None], bool]:
    """Return the pids of the run's ranks, and whether a rank uses the GPU."""
    if isinstance(line, RankRow):
        return frozenset({line.rank.pid}), True
    return line.pids, bool(line.ranks)


def _others(line: Line) -> str:
    counted = others(line)
    if counted is None:
        return NA
    count, size = counted
    if not count:
        return "-"
    return f"{count} {size_short(size)}" if size else str(count)


def _of_others(line: Line) -> float | None:
    """Sort by their bytes, or by their number if the bytes are unknown."""
    counted = others(line)
    return None if counted is None else counted[1] or counted[0]


_GPU = _Measured(attrgetter("gpu"), only="gpu").columns(BY_KIND["gpu"])

_OF_GPU: tuple[Column, ...] = (
    *(column for column in _GPU.values() if not column.asked),
    _column(
        "others",
        "processes on the GPU that are not the run's, and their memory",
        7,
        16,
        _others,
        _of_others,
        only="gpu",
    ),
)


# --- ranks ---


def _living(line: RankRow) -> RankSample | None:
    """Return the sample of a living rank; that of a rank that has ended describes a process that no longer exists."""
    return line.sample if line.rank.phase in LIVING else None


def _rank_columns() -> dict[str, Column]:
    living, last = _Measured(_living, only="live"), _Measured(attrgetter("sample"))
    columns: dict[str, Column] = {}
    for quantity in BY_KIND["rank"]:
        measured = living if quantity.column is not None and quantity.column.live else last
        columns |= measured.columns([quantity])
    return columns


_RANK = _rank_columns()


def worst(line: RankRow) -> str:
    """Return a sort key: failed before starting before running."""
    style = glyphs.RANK[line.rank.phase][1]
    return {"bad": "0", "warn": "1", "stale": "2"}.get(style, "3") + str(line.rank.phase)


_where = attrgetter("where")
RANK = _column(
    "rank",
    "number of the rank",
    4,
    0,
    lambda line: str(line.rank.place.rank),
    attrgetter("rank.place.rank"),
)
_NODE = _column("node", "name of its node", 8, 17, _where, _where, right=False, most=20)
NODE = replace(_NODE, only="nodes")
STATE = _column(
    "state",
    "state of the process",
    11,
    1,
    lambda line: " ".join((glyphs.RANK[line.rank.phase][0], line.rank.phase)),
    worst,
    right=False,
)
MESH = _column("mesh", "coordinates in the preset's mesh", 4, 16, lambda line: line.mesh or NA, right=False)
"""Its width is that of the widest coordinates."""
EXIT = _column(
    "exit",
    "signal or exit code",
    8,
    2,
    lambda line: line.rank.signal or or_na(line.rank.exit_code),
    right=False,
    only="ended",
)
WAIT, LOG = _RANK["wait"], _RANK["log"]
SILENT_S = 60.0
"""Minimum age of the last log line of a silent rank."""


def silent(lines: Sequence[RankRow]) -> bool:
    """Whether ranks have stopped writing to their logs: all of them, or a minority.

    If only rank 0 logs, the other ranks have no log age and do not count.
    """
    ages = [line.sample.log_age_s for line in lines if line.sample and line.sample.log_age_s is not None]
    old = sum(age >= SILENT_S for age in ages)
    return old > 0 and (old == len(ages) or old < len(ages) - old)


RANK_COLUMNS: tuple[Column, ...] = (
    RANK,
    _column(
        "local",
        "local rank",
        5,
        18,
        lambda line: str(line.rank.place.local_rank),
        attrgetter("rank.place.local_rank"),
        only="nodes",
    ),
    NODE,
    MESH,
    STATE,
    _column("pid", "process", 7, 10, lambda line: or_na(line.rank.pid), attrgetter("rank.pid")),
    EXIT,
    _column(
        "gpu",
        "index of its GPU",
        3,
        8,
        lambda line: or_na(line.gpu_index),
        attrgetter("gpu_index"),
        title="GPU",
        only="gpu",
    ),
    *_OF_GPU,
    *_RANK.values(),
    _column(
        "nccl",
        "its NCCL_DEBUG",
        4,
        9,
        lambda line: line.rank.nccl_debug or NA,
        title="NCCL",
        right=False,
        most=7,
        only="nccl",
    ),
    _column(
        "hook", "state of distui's hook", 6, 27, lambda line: line.rank.hook or NA, right=False, asked=True
    ),
)

# --- GPUs ---

GPU_INDEX = _column(
    "gpu", "index of the GPU", 3, 0, lambda line: str(line.index), attrgetter("index"), title="GPU"
)
GPU_RANKS = _column(
    "ranks",
    "ranks of the run that use it",
    5,
    4,
    lambda line: f"r{spans_short(line.ranks)}" if line.ranks else "-",
    lambda line: min(line.ranks, default=None),
    title="rank",
    right=False,
)

GPU_COLUMNS: tuple[Column, ...] = (
    replace(_NODE, order=5),
    GPU_INDEX,
    GPU_RANKS,
    *_OF_GPU,
    *(column for column in _GPU.values() if column.asked),
    _column(
        "name",
        "product",
        10,
        32,
        lambda line: line.name or NA,
        attrgetter("name"),
        right=False,
        most=30,
        asked=True,
    ),
)

TABLES: dict[str, tuple[Column, ...]] = {"ranks": RANK_COLUMNS, "gpus": GPU_COLUMNS}
"""The tables by their name in the settings file."""


def by_id(table: str, id: str) -> Column | None:
    return next((column for column in TABLES[table] if column.id == id), None)
