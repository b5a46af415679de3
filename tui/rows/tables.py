"""The rank table, which becomes the exit table after the end of a run, and the GPU table. Pure.

Only visible rows are built; of the others a table knows only the order.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from ...presets.plurals import plural
from ...runners.diagnosis import mesh
from ...runners.diagnosis.rank_activity import Activities
from ...runners.run.formatting import NA, spans_short, usage_short
from ...runners.run.model import RankPhase
from ...runners.run.nccl_reach import uses_gloo
from ...runners.run.state import Node, Rank, RunState
from ...runners.telemetry.progress import STEPS_SOURCE
from . import glyphs
from .column_widths import GAP, filled_up, fitting, in_column, least, sorted_rows, widths
from .columns import (
    EXIT,
    LOG,
    MESH,
    NODE,
    RANK_NUMBER,
    STATE,
    STATE_WIDTHS,
    TABLES,
    WAIT,
    WORDS_STEP,
    Column,
    GpuRow,
    RankRow,
    by_id,
    rank_mark,
    silent,
)
from .frame import Frame, fit_name, gpu_of, gpu_owners, names, training_line
from .glyphs import Cell, Row, fit, or_na, percent, table
from .map_cells import far_ranks
from .pane_filters import GPUS, RANKS
from .sort_keys import SortKey, offered, sort_keys


class Table(Struct):
    head: Row = ()
    rows: list[Row] = field(default_factory=list)
    """() for an invisible row."""
    order: list[int] = field(default_factory=list)
    """Subject of each row: a rank, or an index in the list of GPUs."""
    areas: list[tuple[int, int, str]] = field(default_factory=list)
    """First and last column of each title in the head, and its id."""
    shown: int = 0
    """Number of shown columns, of `of`."""
    of: int = 0
    more: bool = False
    """Whether columns to the right were left out."""


# --- ranks ---


def rank_table(
    frame: Frame,
    width: int,
    first: int = 0,
    count: int | None = None,
    skip: int = 0,
    beside_gpus: bool = False,
) -> Table:
    """Return the table in `width` columns, with rows built for `count` ranks from row `first`.

    `skip` columns after the rank are skipped, to show those that did not fit. `beside_gpus` means that the GPU table is
    visible and shows the GPU values, so that this table has them only if it has room to spare.
    """
    order = shown_ranks(frame)
    view = frame.view
    make = _RankRows(frame)
    first = max(0, min(first, len(order) - 1))
    last = len(order) if count is None else min(len(order), first + count)
    visible = [make.row(frame.state.ranks[order[at]]) for at in range(first, last)]
    columns = [_sized(each, visible) for each in rank_columns(frame)]
    spare: frozenset[str] = frozenset()
    if not view.columns:
        columns = [
            _raised(each, visible)
            for each in columns
            if each.id == view.sort or _is_default(frame, each, visible)
        ]
        spare = frozenset(each.id for each in columns if each.optional or (beside_gpus and each.is_shared))
    laid = _laid_out(columns, spare, view.sort, width, _kept(frame, "rank"), skip, bool(view.columns))
    chosen, sizes = laid.columns, laid.sizes
    rows: list[Row] = [()] * len(order)
    rows[first:last] = [_drawn_rank(frame, row, chosen, sizes) for row in visible]
    head, areas = _head(chosen, sizes, view.sort, view.reverse)
    return Table(head, rows, order, areas, len(chosen), laid.of, laid.more)


_SHOWN_IF_UNKNOWN = 7
"""Columns of this priority and above are left out if all their values are unknown; the others then show n/a."""


def _is_default(frame: Frame, column: Column, visible: Sequence[RankRow]) -> bool:
    """Whether the table has a column that the user did not choose."""
    if column.id == "step" and not _steps_differ(frame):
        return False
    return _worth(column, visible, frame.view.sort)


def _worth(column: Column, rows: Sequence[RankRow] | Sequence[GpuRow], sort: str) -> bool:
    """Whether a column that the user did not choose has a value to show."""
    return (
        column.priority < _SHOWN_IF_UNKNOWN
        or column.id == sort
        or any(column.text(row) != NA for row in rows)
    )


def _steps_differ(frame: Frame) -> bool:
    """Whether the steps that the hooks count say more than the step that the script reports, in the header.

    The two counts differ, since a script reports now and then, and a resumed one does not count from 0.
    """
    if frame.once(training_line).sources.get("step", STEPS_SOURCE) == STEPS_SOURCE:
        return True
    samples = [rank.sample for rank in frame.state.ranks.values() if rank.sample is not None]
    counts = [sample.step for sample in samples if sample.step is not None]
    return bool(counts) and max(counts) - min(counts) > 1


def _raised(column: Column, rows: Sequence[RankRow]) -> Column:
    """Return the column; the age of the log takes the place of the wait if the ranks are silent."""
    return replace(column, priority=WAIT.priority) if column is LOG and silent(rows) else column


def _sized(column: Column, rows: Sequence[RankRow] | Sequence[GpuRow]) -> Column:
    """Return the column, whose width follows the words in the visible rows; numbers have fixed widths."""
    if column is not STATE and column.max_width <= column.width:
        return column
    longest = max((len(column.text(row)) for row in rows), default=0)
    if column is STATE:
        width = next((width for width in STATE_WIDTHS if width >= longest), STATE_WIDTHS[-1])
        return replace(column, width=width)
    rounded = -(-longest // WORDS_STEP) * WORDS_STEP
    return replace(column, max_width=min(column.max_width, rounded))


def rank_columns(frame: Frame) -> list[Column]:
    """Return the columns that apply to this run, in the user's or the table's order."""
    state = frame.state
    gone = absent(frame, "ranks")
    shown: list[Column] = []
    for column in _in_order("ranks", frame.view.columns):
        if column.id in gone:
            continue
        if column is MESH:
            arranged = mesh.sizes(state)
            column = replace(column, width=max(4, len(mesh.short(arranged, state.world_size - 1))))
        shown.append(column)
    return shown


def _gone(state: RunState) -> set[str]:
    """Return the `shown_if` conditions that this run does not meet, or no longer meets."""
    gone = {"live"} if state.phase.ended else {"ended"}
    if len(state.nodes) < 2:
        gone.add("nodes")
    if not any(node.gpus for node in state.nodes.values()) or state.phase.ended:
        gone.add("gpu")
    if state.phase.ended or uses_gloo(state):
        gone.add("nccl")
    return gone


def _in_order(name: str, ids: Sequence[str]) -> list[Column]:
    """Return the user's columns, else all of the table."""
    if not ids:
        return list(TABLES[name])
    return [column for id in ids if (column := by_id(name, id)) is not None]


def _kept(frame: Frame, subject: str) -> frozenset[str]:
    return frozenset({subject, "node"} if len(frame.state.nodes) > 1 else {subject})


class _Laid(Struct, frozen=True):
    columns: list[Column]
    sizes: list[int]
    of: int
    more: bool


def _laid_out(
    columns: list[Column],
    spare: frozenset[str],
    sort: str,
    width: int,
    keep: frozenset[str],
    skip: int,
    own: bool,
) -> _Laid:
    """Return the columns that fit, always including the sort column, so that its mark is visible.

    Columns in `spare` are for the room that the others leave. `own` means that the user chose the columns.
    """
    keep |= {sort}
    wanted = [column for column in columns if column.id == sort or column.id not in spare]
    chosen = fitting(wanted, width, keep, sort, own)
    all_fit = len(chosen) == len(wanted)
    if skip and not all_fit:
        chosen = _scrolled(wanted, sort, width, keep, skip)
    more = not all_fit and not (skip and wanted[-1] in chosen)
    if all_fit:
        chosen = filled_up(columns, chosen, width, sort)
    return _Laid(chosen, widths(chosen, width, sort), len(wanted), more)


def _scrolled(wanted: list[Column], sort: str, width: int, keep: frozenset[str], skip: int) -> list[Column]:
    """Return the columns to keep, and those that fit after the `skip` first others."""
    others = [column for column in wanted if column.id not in keep]
    chosen = [column for column in wanted if column.id in keep]
    for column in others[min(skip, len(others) - 1) :]:
        if 1 + sum(least(each, sort) + GAP for each in (*chosen, column)) > width:
            break
        chosen.append(column)
    return chosen


def rank_order(frame: Frame) -> list[int]:
    """Return ranks in the order of the table: by the chosen column, else the worst first."""
    state = frame.state
    column = by_id("ranks", frame.view.sort) if frame.view.sort else None
    if column is None or column.key is None:
        order = frame.once(_worst_first)
        return order[::-1] if frame.view.reverse else order
    if column is RANK_NUMBER:
        return sorted(state.ranks, reverse=frame.view.reverse)
    make = _RankRows(frame)
    rows = [make.row(rank) for _, rank in sorted(state.ranks.items())]
    return [row.rank.place.rank for row in sorted_rows(rows, column, frame.view.reverse)]


def shown_ranks(frame: Frame) -> list[int]:
    """Return the ranks that match the filter, in the order of the table."""
    order = rank_order(frame)
    if not frame.view.rank_filter:
        return order
    make = _RankRows(frame)
    rows = [make.row(frame.state.ranks[number]) for number in order]
    return [row.rank.place.rank for row in RANKS.fitting(rows, frame.view.rank_filter)]


ON_A_SCREEN = 64
"""Ranks that a table can show at once: in a longer one, those far from the median would be out of sight."""


def _worst_first(frame: Frame) -> list[int]:
    """Return the ranks that a finding names, those that failed, those far from the median of the map, the others."""
    ranks, blamed = frame.state.ranks, _blamed(frame.state)
    far = frame.once(far_ranks) if len(ranks) > ON_A_SCREEN else set[int]()
    return sorted(
        ranks,
        key=lambda number: (
            number not in blamed,
            _SEVERE.get(ranks[number].phase, 4),
            number not in far,
            number,
        ),
    )


_SEVERE = {
    RankPhase.FAILED: 0,
    RankPhase.KILLED: 1,
    RankPhase.LOST: 1,
    RankPhase.STARTING: 2,
    RankPhase.STOPPED: 3,
    RankPhase.ENDED: 3,
}


def _blamed(state: RunState) -> set[int]:
    """Return the ranks that caused a failure or a finding; none if that is all of them."""
    blamed: set[int] = set()
    cause = state.attempts[-1].first_cause if state.attempts else None
    if cause is not None:
        return {cause.rank}
    for finding in state.findings.values():
        if finding.alarm and finding.role == "cause":
            blamed |= set(finding.ranks) if finding.ranks else {finding.rank} - {None}  # type: ignore[arg-type]
    return blamed if len(blamed) < len(state.ranks) else set()


class _RankRows:
    """Builds the rows of ranks; data that all rows need is computed once."""

    def __init__(self, frame: Frame, dim: bool = True) -> None:
        """Create the builder; `dim` includes old values."""
        self._frame, self._dim = frame, dim
        self._shown = frame.usable if dim else frame.fresh
        self._names = names(frame.state)
        self._arranged = mesh.sizes(frame.state)
        self._activities = Activities(frame.state, frame.node_now(0))

    def row(self, rank: Rank) -> RankRow:
        frame = self._frame
        node = frame.state.nodes.get(rank.place.node)
        gpu = gpu_of(rank, node)
        sampled = node is not None and self._shown(node.node, node.gpu_sampled)
        sample = rank.sample if self._shown(rank.place.node, rank.sampled) else None
        doing = self._activities.of(rank, sample)
        is_late = self._dim and sample is not None and sample.usual_s is not None
        if is_late and sample is not None:
            sample = replace(sample, step_s=sample.usual_s)
        return RankRow(
            rank=rank,
            node=node,
            sample=sample,
            gpu=gpu if sampled else None,
            fresh=frame.fresh(rank.place.node, rank.sampled),
            gpu_index=gpu.index if gpu else None,
            where=self._names.get(rank.place.node, str(rank.place.node)),
            mesh=mesh.short(self._arranged, rank.place.rank),
            doing=doing,
            is_late=is_late,
        )


def _drawn_rank(frame: Frame, row: RankRow, chosen: Sequence[Column], sizes: Sequence[int]) -> Row:
    marked = row.rank.place.rank in frame.view.marked
    cells: list[Cell] = [(glyphs.MARK if marked else " ", "accent")]
    for column, width in zip(chosen, sizes, strict=True):
        if column.id == NODE.id:
            text, style = fit_name(row.where, width), _style(row, column, row.where)
        else:
            text, style = _rank_cell(frame, row, column)
        cells.append((in_column(column, text, width) + " ", style))
    return tuple(cells)


def _rank_cell(frame: Frame, row: RankRow, column: Column) -> Cell:
    text = column.text(row)
    if column.id == STATE.id:
        return text, _state_style(frame, row)
    style = _style(row, column, text)
    if text == NA and row.sample is None and row.rank.sample is not None:
        text = glyphs.MISSING  # there is a value, but it is too old to show
    return text, style


def _style(row: RankRow, column: Column, text: str) -> str:
    is_old = not row.fresh or (row.is_late and column.id == "pace")
    return "stale" if text == NA or is_old else "text"


def _state_style(frame: Frame, row: RankRow) -> str:
    fresh = row.node is None or frame.fresh(row.node.node, row.node.heard)
    return rank_mark(row.rank.phase, row.doing)[1] if fresh else "stale"


def _head(
    chosen: Sequence[Column], sizes: Sequence[int], sort: str, reverse: bool
) -> tuple[Row, list[tuple[int, int, str]]]:
    """Return the titles, with an arrow at the sort column, and their positions."""
    cells: list[Cell] = [(" ", "dim")]
    areas: list[tuple[int, int, str]] = []
    at = 1
    arrow = "▾" if reverse else "▴"
    for column, width in zip(chosen, sizes, strict=True):
        current = column.id == sort
        title = column.title + arrow if current else column.title
        cells.append((fit(title, width, right=column.right) + " ", "head" if current else "dim"))
        areas.append((at, at + width, column.id))
        at += width + GAP
    return tuple(cells), areas


def table_sort_keys(frame: Frame, table: str) -> list[SortKey]:
    """Return the keys to sort a table by its columns with values."""
    make = rank_table if table == "ranks" else gpu_table
    own_order = "worst first" if table == "ranks" else "index"
    columns = [column for column in TABLES[table] if column.key is not None]
    columns.sort(key=lambda column: column.priority)
    keys = sort_keys([(column.id, column.title) for column in columns], own_order)
    return offered(keys, {id for _, _, id in make(frame, 1000, 0, 64).areas})


def rank_rows(frame: Frame, dim: bool = True) -> list[RankRow]:
    """Return every rank in the order of the table; `dim` includes old values."""
    make = _RankRows(frame, dim)
    return [make.row(frame.state.ranks[number]) for number in rank_order(frame)]


def plain_table(frame: Frame) -> list[str]:
    """Return the whole table as text with full-width columns. A live run with ended ranks also has their exit codes."""
    rows = rank_rows(dataclasses.replace(frame, view=replace(frame.view, sort="rank")), dim=False)
    columns = _plain_columns(frame, rows)
    right = frozenset(at for at, column in enumerate(columns) if column.right)
    texts = [tuple(column.text(row) for column in columns) for row in rows]
    return table([tuple(column.title for column in columns), *texts], right)


def _plain_columns(frame: Frame, rows: Sequence[RankRow]) -> list[Column]:
    chosen = [column for column in rank_columns(frame) if not column.optional]
    if EXIT not in chosen and any(EXIT.text(row) != NA for row in rows):
        chosen.insert(chosen.index(STATE) + 1, EXIT)
    return [
        column for column in chosen if column.id in _PLAIN or any(column.text(row) != NA for row in rows)
    ]


_PLAIN = frozenset(
    (
        "rank",
        "local",
        "node",
        "state",
        "mesh",
        "pid",
        "exit",
        "gpu",
        "util",
        "mem",
        "cpu",
        "rss",
        "step",
        "pace",
    )
)
"""Columns that are printed even if all their values are unknown."""


# --- GPUs ---


def plain_gpus(frame: Frame, node: Node) -> list[str]:
    """Return a node's GPUs as text, one line each, with the reasons for throttled clocks."""
    rows: list[tuple[str, ...]] = [("GPU", "name", "util", "mem", "power", "temp", "clocks")]
    fresh = frame.fresh(node.node, node.gpu_sampled)
    for gpu in node.gpus:
        values = (
            "lost" if gpu.lost else percent(gpu.util),
            usage_short(gpu.mem_used, gpu.mem_total),
            or_na(gpu.power_w, "{:.0f}W".format),
            or_na(gpu.temp_c, "{:.0f}C".format),
            or_na(gpu.throttle, lambda reasons: ", ".join(reasons) or "free"),
        )
        rows.append((str(gpu.index), gpu.name, *(values if fresh else (NA,) * len(values))))
    return table(rows, frozenset({0, 2, 3, 4, 5}))


def gpu_rows(frame: Frame) -> tuple[list[GpuRow], list[GpuRow]]:
    """Return the GPUs that ranks use, and the others of the same nodes, by node and index."""
    state = frame.state
    named, used = names(state), frame.once(gpu_owners)
    pids: dict[int, set[int]] = {}
    for rank in state.ranks.values():
        if rank.pid is not None:
            pids.setdefault(rank.place.node, set()).add(rank.pid)
    mine: list[GpuRow] = []
    rest: list[GpuRow] = []
    for number, node in sorted(state.nodes.items()):
        fresh, usable = frame.fresh(number, node.gpu_sampled), frame.usable(number, node.gpu_sampled)
        for gpu in node.gpus:
            ranks = tuple(used.get((number, gpu.index), ()))
            row = GpuRow(
                gpu.index,
                number,
                gpu if usable and not gpu.lost else None,
                fresh,
                named[number],
                ranks,
                frozenset(pids.get(number, ())),
                gpu.lost,
                gpu.name,
            )
            (mine if ranks else rest).append(row)
    return mine, rest


def listed_gpus(frame: Frame) -> tuple[list[GpuRow], list[GpuRow]]:
    """Return the GPUs that have one row each, and those that share a row. If no rank uses a GPU, none share a row."""
    mine, rest = gpu_rows(frame)
    return (mine, rest) if mine else (rest, [])


def gpu_table(frame: Frame, width: int, first: int = 0, count: int | None = None, skip: int = 0) -> Table:
    """Return the run's GPUs, one row each; other GPUs of its nodes share one row below, unless a filter is set."""
    view = frame.view
    mine, rest = listed_gpus(frame)
    if view.gpu_filter:
        mine, rest = GPUS.fitting(mine, view.gpu_filter), []
    column = by_id("gpus", view.gpu_sort) if view.gpu_sort else None
    ordered = mine if column is None else sorted_rows(mine, column, view.gpu_reverse)
    columns = [_sized(each, ordered[:64]) for each in gpu_columns(frame)]
    spare: frozenset[str] = frozenset()
    if not view.gpu_columns:
        columns = [each for each in columns if _worth(each, ordered[:64], view.gpu_sort)]
        spare = frozenset(each.id for each in columns if each.optional)
    kept = _kept(frame, "gpu")
    laid = _laid_out(columns, spare, view.gpu_sort, width, kept, skip, bool(view.gpu_columns))
    chosen, sizes = laid.columns, laid.sizes
    head, areas = _head(chosen, sizes, view.gpu_sort, view.gpu_reverse)
    rows: list[Row] = [()] * len(ordered)
    last = len(ordered) if count is None else min(len(ordered), first + count)
    for at in range(max(0, first), last):
        rows[at] = _drawn_gpu(frame, ordered[at], chosen, sizes)
    if rest:
        rows.append(((f"  {_rest(rest)}", "dim"),))
    return Table(head, rows, list(range(len(ordered))), areas, len(chosen), laid.of, laid.more)


def absent(frame: Frame, table: str) -> set[str]:
    """Return the ids of columns that do not apply to this run, or no longer apply."""
    if table == "gpus":
        return {"node"} if len(frame.state.nodes) < 2 else set()
    gone = _gone(frame.state)
    flat = len(mesh.sizes(frame.state)) < 2
    return {column.id for column in TABLES[table] if column.shown_if in gone or (column is MESH and flat)}


def gpu_columns(frame: Frame) -> list[Column]:
    """Return the columns that apply to this run, in the user's or the table's order."""
    gone = absent(frame, "gpus")
    return [column for column in _in_order("gpus", frame.view.gpu_columns) if column.id not in gone]


def gpu_rows_wanted(frame: Frame) -> int:
    """Return the rows of the table with its head; unused GPUs share one row."""
    used = len(frame.once(gpu_owners))
    total = sum(len(node.gpus) for node in frame.state.nodes.values())
    if not used:
        return 1 + total if total else 0
    return 1 + used + (1 if used < total else 0)


def _drawn_gpu(frame: Frame, row: GpuRow, chosen: Sequence[Column], sizes: Sequence[int]) -> Row:
    cells: list[Cell] = [(" ", "text")]
    for column, width in zip(chosen, sizes, strict=True):
        if column.id == "util" and row.lost:
            text = glyphs.BAD + "lost" if width > 4 else "lost"
            cells.append((in_column(column, text, width) + " ", "bad"))
        elif column.id == "util" and row.fresh and row.gpu is not None and row.gpu.util is not None:
            cells += _with_bar(row.gpu.util, column.text(row), width)
        else:
            text, style = _gpu_text(row, column)
            cells.append((in_column(column, text, width) + " ", style))
    return tuple(cells)


def _gpu_text(row: GpuRow, column: Column) -> Cell:
    text = column.text(row)
    if text == NA:
        return glyphs.MISSING if row.gpu is None else NA, "stale"
    if column.id == "throttle" and text != "-":
        return text, "warn"
    return text, "text" if row.fresh else "stale"


def _with_bar(value: float, text: str, width: int) -> list[Cell]:
    """Return a value on the background colour of its step in the heat ramp."""
    return [(fit(text, width, right=True), f"heat{glyphs.bucket(value)}"), (" ", "text")]


def _rest(rest: Sequence[GpuRow]) -> str:
    """Return `6 GPUs not used by this run (2-7), util 0-22%`, or `…, idle`."""
    utils = [row.gpu.util for row in rest if row.gpu is not None and row.gpu.util is not None]
    text = f"{plural(len(rest), 'GPU')} not used by this run"
    if len({row.node for row in rest}) == 1:
        text += f" ({spans_short(row.index for row in rest)})"
    if not utils:
        return text
    if max(utils) < 1:
        return f"{text}, idle"
    return f"{text}, util {min(utils):.0f}-{max(utils):.0f}%"
