"""Columns of the rank table and of the GPU table, as data: title, width, priority, text, sort key. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from operator import attrgetter
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from ...runners.diagnosis.rank_activity import Now, RankActivity
from ...runners.run.formatting import NA, duration_short, size_short, spans_short, usage_short
from ...runners.run.model import RankPhase
from ...runners.run.samples import Gpu, RankSample
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
    doing: RankActivity
    is_late: bool
    """Whether its steps have stopped: `sample.step_s` is then the usual time of one, and dim."""


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


TableRow = RankRow | GpuRow


class Column(Struct, frozen=True):
    """One column of a table."""

    id: str
    """The column's name in the settings file."""
    title: str
    about: str
    """Description for the dialog, with the unit."""
    width: int
    priority: int
    """0 is the most important column. Narrow terminals drop the column with the highest number first."""
    text: Callable[[Any], str]
    key: Callable[[Any], Sortable] | None = None
    right: bool = True
    max_width: int = 0
    """Maximum width if the terminal has room to spare; 0 for `width`."""
    shown_if: str = ""
    """Condition: "gpu" needs GPUs, "nccl" NCCL, "nodes" several nodes, "ended" an ended run, "live" a live run."""
    high_is_bad: bool = False
    """Whether a sort by it begins with the largest value."""
    optional: bool = False
    """Whether the column appears only if the user chose it or the others leave room."""

    @property
    def is_shared(self) -> bool:
        """Whether both tables show these values of a GPU. Each has its own columns `node` and `gpu`."""
        return any(self.id == column.id for column in SHARED_COLUMNS)


def _column(
    id: str,
    about: str,
    text: Callable[[Any], str],
    key: Callable[[Any], Sortable] | None = None,
    **more: Any,
) -> Column:
    """Build a column; `title` defaults to the id."""
    return Column(id=id, about=about, text=text, key=key, **{"title": id} | more)


def _number(id: str, about: str, field: str, **more: Any) -> Column:
    """Build a column of a whole number of its rows."""
    value = attrgetter(field)
    return _column(id, about, lambda row: or_na(value(row)), value, **more)


def _words(id: str, about: str, field: str, sorts: bool = False, **more: Any) -> Column:
    """Build a column of a text of its rows."""
    value = attrgetter(field)
    return _column(id, about, lambda row: value(row) or NA, value if sorts else None, right=False, **more)


# --- measured values: one column per quantity that declares one ---


def _reasons(words: Sequence[str] | None) -> str:
    return or_na(words, lambda reasons: ", ".join(reasons) or "-")


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

WORDS_STEP = 8
"""Columns by which the width of words changes, so that the other columns seldom move."""


class _Measured:
    """Makes columns of quantities; `sample` returns the sample of a row, or None."""

    def __init__(self, sample: Callable[[Any], Any], shown_if: str = "") -> None:
        self._sample = sample
        self._shown_if = shown_if

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
            declared.priority,
            text,
            text if declared.words else value,
            right=not declared.words,
            max_width=WORDS_WIDTH if declared.words else 0,
            shown_if=self._shown_if,
            high_is_bad=declared.high_is_bad,
            optional=declared.optional,
        )

    def _field(self, name: str) -> Callable[[TableRow], Any]:
        return lambda row: getattr(self._sample(row), name, None)

    def _sum(self, *names: str) -> Callable[[TableRow], float | None]:
        def add(row: TableRow) -> float | None:
            values = [value for name in names if (value := self._field(name)(row)) is not None]
            return sum(values) if values else None

        return add

    def _text(self, quantity: Quantity, value: Callable[[TableRow], Any]) -> Callable[[TableRow], str]:
        if quantity.limit:
            _, _, field = quantity.limit.partition(".")  # "gpu.mem_total" is the field mem_total
            limit = self._field(field)
            pair_text = _TEXT_WITH_LIMIT[quantity.unit]
            return lambda row: pair_text(value(row), limit(row))
        text = _TEXT_BY_FIELD.get(quantity.field) or _text_of(quantity.unit)
        return lambda row: text(value(row))


def others(row: TableRow) -> tuple[int, int] | None:
    """Return the number of foreign processes on the GPU and their bytes; None if unknown.

    If NVML does not list the rank's own process, the pids belong to another pid namespace and cannot be attributed.
    """
    gpu = row.gpu
    if gpu is None or gpu.pids is None:
        return None
    mine, is_used = _own_processes(row)
    if is_used and mine.isdisjoint(gpu.pids):
        return None
    sizes = gpu.pid_mem if gpu.pid_mem is not None else (None,) * len(gpu.pids)
    foreign = [size or 0 for pid, size in zip(gpu.pids, sizes, strict=False) if pid not in mine]
    return len(foreign), sum(foreign)


def _own_processes(row: TableRow) -> tuple[frozenset[int | None], bool]:
    """Return the pids of the run's ranks, and whether a rank uses the GPU."""
    if isinstance(row, RankRow):
        return frozenset({row.rank.pid}), True
    return row.pids, bool(row.ranks)


def _others_text(row: TableRow) -> str:
    counted = others(row)
    if counted is None:
        return NA
    count, size = counted
    if not count:
        return "-"
    return f"{count} {size_short(size)}" if size else str(count)


def _others_key(row: TableRow) -> float | None:
    """Return the bytes of foreign processes, or their number if the bytes are unknown."""
    counted = others(row)
    return None if counted is None else counted[1] or counted[0]


_MEASURED_OF_GPU = _Measured(attrgetter("gpu"), shown_if="gpu").columns(BY_KIND["gpu"])

SHARED_COLUMNS: tuple[Column, ...] = (
    *(column for column in _MEASURED_OF_GPU.values() if not column.optional),
    _column(
        "others",
        "processes on the GPU that are not the run's, and their memory",
        _others_text,
        _others_key,
        width=7,
        priority=16,
        shown_if="gpu",
    ),
)
"""Columns of the GPU table that the rank table also has, with the values of the rank's GPU."""


# --- ranks ---


def _living(row: RankRow) -> RankSample | None:
    """Return the sample of a living rank; that of a rank that has ended describes a process that no longer exists."""
    return row.sample if row.rank.phase in LIVING else None


def _rank_columns() -> dict[str, Column]:
    living, last = _Measured(_living, shown_if="live"), _Measured(attrgetter("sample"))
    columns: dict[str, Column] = {}
    for quantity in BY_KIND["rank"]:
        measured = living if quantity.column is not None and quantity.column.live else last
        columns |= measured.columns([quantity])
    return columns


_MEASURED_OF_RANK = _rank_columns()


_ACTIVITY: dict[Now, tuple[str, str]] = {
    Now.BEGINS: (glyphs.STALE, "warn"),
    Now.STEPS: ("▶", "ok"),
    Now.WAITS: ("‖", "warn"),
    Now.PAUSES: (glyphs.STALE, "text"),
    Now.BLOCKED: (glyphs.WARN, "warn"),
    Now.STILL: (glyphs.WARN, "warn"),
    Now.STOPPING: ("↻", "warn"),
}
"""Glyph and style of what a rank does, if more is known than the state of its process."""


def rank_mark(phase: RankPhase, doing: RankActivity) -> tuple[str, str]:
    """Return glyph and style of a rank's activity: the culprit of a hang is marked, its victims are dim."""
    if doing.culprit:
        return glyphs.BAD, "bad"
    glyph, style = _ACTIVITY.get(doing.now, glyphs.RANK[phase])
    return glyph, "dim" if doing.victim else style


def worst(row: RankRow) -> str:
    """Return a sort key: failed and to blame before starting and without steps before running."""
    style = rank_mark(row.rank.phase, row.doing)[1]
    return {"bad": "0", "warn": "1", "stale": "2"}.get(style, "3") + str(row.rank.phase)


RANK_NUMBER = _number("rank", "number of the rank", "rank.place.rank", width=4, priority=0)
_NODE = _words("node", "name of its node", "where", sorts=True, width=8, priority=17, max_width=20)
NODE = replace(_NODE, shown_if="nodes")
STATE = _column(
    "state",
    "what the rank does: makes steps, waits in a collective, is blocked, is being stopped",
    lambda row: f"{rank_mark(row.rank.phase, row.doing)[0]} {row.doing.text}",
    worst,
    width=11,
    priority=1,
    right=False,
)
STATE_WIDTHS = (STATE.width, 13, 18, 24)
"""Widths of the state column: few, so that the other columns seldom move."""
MESH = _words("mesh", "coordinates in the preset's mesh", "mesh", width=4, priority=16)
"""`rank_columns` widens it to the coordinates of the last rank, which are the widest."""
EXIT = _column(
    "exit",
    "signal or exit code",
    lambda row: row.rank.signal or or_na(row.rank.exit_code),
    width=8,
    priority=2,
    right=False,
    shown_if="ended",
)
WAIT, LOG = _MEASURED_OF_RANK["wait"], _MEASURED_OF_RANK["log"]
SILENT_S = 60.0
"""Minimum age of the last log line of a silent rank."""


def silent(rows: Sequence[RankRow]) -> bool:
    """Whether silence is a symptom: no rank writes to its log any more, or only a minority has stopped.

    A silent majority is no symptom: after its start a job often logs on few ranks only. If only rank 0 logs, the other
    ranks have no log age and do not count.
    """
    ages = [row.sample.log_age_s for row in rows if row.sample and row.sample.log_age_s is not None]
    silent_ranks = sum(age >= SILENT_S for age in ages)
    if not silent_ranks:
        return False
    return silent_ranks == len(ages) or silent_ranks < len(ages) - silent_ranks


RANK_COLUMNS: tuple[Column, ...] = (
    RANK_NUMBER,
    _number("local", "local rank", "rank.place.local_rank", width=5, priority=18, shown_if="nodes"),
    NODE,
    MESH,
    STATE,
    _number("pid", "process", "rank.pid", width=7, priority=10),
    EXIT,
    _number("gpu", "index of its GPU", "gpu_index", title="GPU", width=3, priority=8, shown_if="gpu"),
    *SHARED_COLUMNS,
    *_MEASURED_OF_RANK.values(),
    _words(
        "nccl",
        "its NCCL_DEBUG",
        "rank.nccl_debug",
        title="NCCL",
        width=4,
        priority=9,
        max_width=7,
        shown_if="nccl",
    ),
    _words("hook", "hook status", "rank.hook", width=6, priority=27, optional=True),
)

# --- GPUs ---

GPU_INDEX = _number("gpu", "index of the GPU", "index", title="GPU", width=3, priority=0)
GPU_RANKS = _column(
    "ranks",
    "ranks of the run that use it",
    lambda row: f"r{spans_short(row.ranks)}" if row.ranks else "-",
    lambda row: min(row.ranks, default=None),
    title="rank",
    width=5,
    priority=4,
    right=False,
)

GPU_COLUMNS: tuple[Column, ...] = (
    replace(_NODE, priority=5),
    GPU_INDEX,
    GPU_RANKS,
    *SHARED_COLUMNS,
    *(column for column in _MEASURED_OF_GPU.values() if column.optional),
    _column(
        "name",
        "product",
        lambda row: row.name.removeprefix("NVIDIA ") or NA,
        lambda row: row.name or None,
        width=14,
        priority=32,
        right=False,
        max_width=30,
        optional=True,
    ),
)

TABLES: dict[str, tuple[Column, ...]] = {"ranks": RANK_COLUMNS, "gpus": GPU_COLUMNS}
"""The tables by their name in the settings file."""


def by_id(table: str, id: str) -> Column | None:
    return next((column for column in TABLES[table] if column.id == id), None)
