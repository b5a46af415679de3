"""The run list as rows: columns that fill the width, filter and order. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any

from msgspec import Struct, structs

from ...presets.plurals import plural
from ...presets.sanitize import clean_text
from ...runners.diagnosis.status import HUNG, RunFigures
from ...runners.run.formatting import NA, duration_short, duration_text, elapsed, size_short, time_of_day
from ...runners.run.history import History
from ...runners.run.model import RunPhase
from ...runners.run.run_directories import Entry
from ...runners.run.run_notes import RunNotes
from . import glyphs
from .glyphs import Cell, Row, fit, label_row, or_na
from .header import worst_alarm
from .sort_keys import SortKey, offered, sort_keys


class RunEntry(Struct, frozen=True, kw_only=True):
    """One line of the run list."""

    id: str
    name: str
    phase: str
    """A RunPhase value, or a word of the source ("watched")."""
    live: bool
    readonly: bool
    preset: str
    problem: str = ""
    """What is damaged in its directory, with the name of the file."""
    lasted_s: float | None = None
    """Seconds that it took, or has taken."""
    nodes: int | None = None
    ranks: int | None = None
    step: int | None = None
    total: int | None = None
    """Number of steps of the whole training."""
    exit_code: int | None = None
    finding: str = ""
    """The worst finding, or how the run ended."""
    alarm: str = ""
    """Word of the worst finding of a live run that needs a person, as its header shows it."""
    hung: bool = False
    """Whether the run seems to hang, see runners.telemetry.progress.hung."""
    size: int | None = None
    """Bytes of its directory."""
    host: str = ""
    """The host that keeps it; "" for this machine."""
    path: str = ""
    """Path of its directory on this machine; "" if it has none."""
    tags: tuple[str, ...] = ()
    note: str = ""
    attempt: int | None = None
    began: float | None = None
    """Unix time of its launch, in seconds."""
    ended: float | None = None
    """Unix seconds; None if it is live, or if the time is unknown."""
    age_s: float | None = None
    """Seconds since `began`; see `as_of`."""
    ended_s: float | None = None
    """Seconds since `ended`."""
    instead: str = ""
    """Text in place of the columns, for a host whose runs are unknown."""

    def as_of(self, now: float) -> RunEntry:
        """Return the line with its ages at a unix time."""
        return structs.replace(self, age_s=elapsed(self.began, now), ended_s=elapsed(self.ended, now))


UNRECORDED = "agent and runner are gone, and no end was recorded: a reboot, or all was killed"
"""Why a run is lost."""


def entry_of(
    entry: Entry, history: History, phase: RunPhase, figures: RunFigures, notes: RunNotes
) -> RunEntry:
    """Return the entry of a run of this machine, without its ages. `notes`: the user's tags and note."""
    state = history.state
    if phase is RunPhase.LOST and not figures.finding:
        figures = structs.replace(figures, finding=UNRECORDED)
    return RunEntry(
        id=entry.record.run,
        name=entry.record.name,
        phase=str(phase),
        live=not phase.ended,
        readonly=phase.ended,
        preset=state.plan.preset or state.plan.launcher if state.plan else "",
        problem=clean_text(f"damaged: {history.problems[0]}") if history.problems else "",
        path=str(entry.path),
        began=entry.record.created,
        tags=notes.tags,
        note=notes.note,
        alarm="" if phase.ended else (worst_alarm(state) or ("",))[0],
        **structs.asdict(figures),
    )


EMPTY: tuple[Row, ...] = (
    (("No run yet.", "head"),),
    ((f"  {fit('^n', 32)}", "accent"), ("pick a preset and start one", "text")),
    ((f"  {fit('distui launch PRESET -- SCRIPT', 32)}", "accent"), ("the same from the shell", "text")),
    ((f"  {fit('distui watch', 32)}", "accent"), ("jobs that distui did not start", "text")),
)
"""Hints for an empty list."""


class RunColumn(Struct, frozen=True):
    """One column of the list and of `ls`."""

    name: str
    text: Callable[[RunEntry], str]
    order: Callable[[RunEntry], float | str | None]
    """Sort key; None sorts last."""
    right: bool = False
    descending: bool = False
    """Whether the largest values come first."""
    width: int = 0
    """Minimum width in the list; 0 if only `ls` has the column."""
    priority: int = 0
    """If there is no room for all columns, the largest numbers are left out first, and 0 never."""
    max_width: int = 0
    """Maximum width if there is room to spare; 0 if the column keeps its minimum width."""
    shown: Callable[[RunEntry], str] | None = None
    """Its text in the list, if it differs from `text`."""
    short: Callable[[RunEntry], str] | None = None
    """Its text in the list where the whole one does not fit."""

    def in_list(self, run: RunEntry, width: int | None = None) -> str:
        """Return its text in the list, in a column of this width."""
        text = (self.shown or self.text)(run)
        if width is not None and self.short is not None and len(text) > width:
            return self.short(run)
        return text


def _world(entry: RunEntry) -> str:
    if entry.ranks and entry.nodes and entry.ranks % entry.nodes == 0:
        return f"{entry.nodes}×{entry.ranks // entry.nodes}"
    return or_na(entry.ranks)


def share_done(entry: RunEntry) -> float | None:
    """Return the completed share of a run's steps, 0 to 1."""
    return entry.step / entry.total if entry.step is not None and entry.total else None


def _percent(entry: RunEntry) -> str:
    return or_na(share_done(entry), lambda done: f"{min(100, int(100 * done))} %")


def _step(entry: RunEntry) -> str:
    return or_na(entry.step, "{:,}".format)


def _began(entry: RunEntry) -> str:
    return or_na(entry.age_s, lambda seconds: f"{duration_text(seconds)} ago")


def _clock(entry: RunEntry) -> str:
    """Return the time of the launch, with the day if it was not today."""
    if entry.began is None or entry.age_s is None:
        return NA
    began, now = (time_of_day(at, date=True) for at in (entry.began, entry.began + entry.age_s))
    return began[11:16] if began[:10] == now[:10] else began[5:16]


def _finding(entry: RunEntry) -> str:
    return entry.problem or entry.finding


def _marked_finding(entry: RunEntry) -> str:
    return f"{glyphs.WARN} {entry.problem}" if entry.problem else entry.finding


def _state(entry: RunEntry) -> str:
    return HUNG if entry.hung else entry.phase


def _marked_state(entry: RunEntry) -> str:
    if entry.hung:
        return f"{glyphs.BAD} {HUNG}"
    if entry.alarm:
        return f"{glyphs.WARN} {entry.phase} · {entry.alarm}"
    return f"{glyphs.run_phase(entry.phase)[0]} {entry.phase}"


def _end_of_id(entry: RunEntry) -> str:
    """Return the end of an id, which verbs accept."""
    return entry.id.rpartition("-")[2]


def words_of_state(entry: RunEntry) -> str:
    """Return the state for filters and sorting."""
    return f"{entry.phase} {HUNG}" if entry.hung else entry.phase


def _number(name: str, field: str, text: Callable[[Any], str] = or_na, **about: Any) -> RunColumn:
    """Return a column of right-aligned numbers, the largest first."""
    value = attrgetter(field)
    return RunColumn(
        name, lambda run: text(value(run)), value, **{"right": True, "descending": True} | about
    )


def _words(name: str, text: Callable[[RunEntry], str], **about: Any) -> RunColumn:
    """Return a column of words; sorting ignores case and puts empty texts last."""
    return RunColumn(name, text, lambda run: text(run).lower() or None, **about)


_COLUMNS = (
    RunColumn("state", _state, words_of_state, width=12, max_width=26, shown=_marked_state),
    _words("name", lambda run: run.name or run.id, width=12, max_width=32),
    RunColumn(
        "host", lambda run: run.host or "here", lambda run: run.host, width=12, priority=1, max_width=24
    ),
    _words(
        "preset",
        attrgetter("preset"),
        width=8,
        priority=3,
        max_width=16,
        shown=lambda run: run.preset or "-",
    ),
    _number("attempt", "attempt"),
    _number("nodes", "nodes"),
    _number("ranks", "ranks", width=5, priority=4, shown=_world),
    _number("step", "step", width=7, priority=7, shown=_step),
    RunColumn("done", _percent, share_done, right=True, descending=True, width=5, priority=8),
    RunColumn("began", _began, lambda run: run.age_s, width=5, priority=7, max_width=12, shown=_clock),
    _number("age", "age_s", duration_short, descending=False, width=4, priority=2),
    _number("took", "lasted_s", duration_short, width=4, priority=7),
    _number("ended", "ended_s", duration_short, descending=False),
    _number("exit", "exit_code", width=4, priority=9),
    _number("size", "size", size_short, width=6, priority=10),
    _words("finding", _finding, width=14, priority=5, max_width=90, shown=_marked_finding),
    _words("tags", lambda run: " ".join(run.tags), width=8, priority=3, max_width=24),
    _words("note", attrgetter("note"), width=10, priority=6, max_width=40),
    _words("id", attrgetter("id"), width=8, priority=11, max_width=100, short=_end_of_id),
    _words("path", attrgetter("path")),
)
COLUMNS = {column.name: column for column in _COLUMNS}
"""Columns by name, in their order on the screen; unknown values are n/a."""

IF_ANY = ("host", "tags", "note")
"""Columns that the list has only if a run has a value."""


class PlacedColumn(Struct, frozen=True):
    column: RunColumn
    first: int
    width: int


TEXTS = 6
"""Columns up to this priority have their whole texts before any column of a higher number is shown."""


def place_columns(runs: Sequence[RunEntry], width: int) -> list[PlacedColumn]:
    """Choose the columns that fit, by priority. Spare width goes to columns with longer texts."""
    needs = {column.name: _need(column, runs) for column in _COLUMNS if column.width}
    chosen = _fitting(_wanted(runs), needs, width - 2)
    widths = _widths(chosen, needs, width - 2)
    placed_columns, at = [], 1
    for column in chosen:
        placed_columns.append(PlacedColumn(column, at, widths[column.name]))
        at += widths[column.name] + 2
    return placed_columns


def _wanted(runs: Sequence[RunEntry]) -> list[RunColumn]:
    """Return the columns that these runs have; if several runs have the same name, their ids are next to it."""
    wanted = [column for column in _COLUMNS if column.width]
    wanted = [column for column in wanted if column.name not in IF_ANY or any(map(column.order, runs))]
    names = {(run.host, run.name) for run in runs}
    if len(names) == len(runs):
        return wanted
    id_column = structs.replace(COLUMNS["id"], priority=1)
    wanted = [column for column in wanted if column.name != "id"]
    return [*wanted[:2], id_column, *wanted[2:]]


def _need(column: RunColumn, runs: Sequence[RunEntry]) -> int:
    """Return the width of a column's texts, within its limits."""
    if not column.max_width:
        return column.width
    longest = max((len(column.in_list(run)) for run in runs), default=0)
    return min(max(longest, len(column.name) + 1), column.max_width)


def _least(column: RunColumn, needs: Mapping[str, int]) -> int:
    return min(column.width, needs[column.name])


def _fitting(wanted: Sequence[RunColumn], needs: Mapping[str, int], room: int) -> list[RunColumn]:
    """Return the columns that fit, in their order on the screen. Those of priority 0 are always among them."""
    chosen: list[RunColumn] = []
    for column in sorted(wanted, key=lambda column: column.priority):
        taken = sum(_least(each, needs) + 2 for each in chosen)
        if column.priority > TEXTS:
            taken = sum(needs[each.name] + 2 for each in chosen if each.short is None)
            taken += sum(_least(each, needs) + 2 for each in chosen if each.short is not None)
        if not column.priority or taken + _least(column, needs) + 2 <= room:
            chosen.append(column)
    return [column for column in wanted if column in chosen]


def _widths(chosen: Sequence[RunColumn], needs: Mapping[str, int], room: int) -> dict[str, int]:
    """Return the width of each column.

    Columns whose texts do not fit share the spare width; those that need least are satisfied first, and those that have
    a short text last. The rest goes to that which may be widest.
    """
    widths = {column.name: _least(column, needs) for column in chosen}
    room -= sum(width + 2 for width in widths.values())
    growing = [column for column in chosen if column.max_width]
    growing.sort(key=lambda column: (column.short is not None, needs[column.name] - widths[column.name]))
    for place, column in enumerate(growing):
        sharing = sum(each.short is None for each in growing[place:]) or 1
        missing = needs[column.name] - widths[column.name]
        taken = max(0, min(missing, room // sharing))
        widths[column.name] += taken
        room -= taken
    if room > 0 and growing:
        widths[max(growing, key=lambda column: column.max_width).name] += room
    return widths


def head_row(placed_columns: Sequence[PlacedColumn], sort: str = "", reverse: bool = False) -> Row:
    """Return the names of the columns, with a mark at the sort column."""
    cells: list[Cell] = [(" ", "dim")]
    arrow = "▴" if reverse else "▾"
    for place in placed_columns:
        name = place.column.name
        mark = arrow if name == sort else ""
        shown = name if len(name) + len(mark) <= place.width else name[: place.width - len(mark)]
        text = fit(f"{shown}{mark}", place.width, right=place.column.right)
        cells.append((f"{text}  ", "accent" if mark else "dim"))
    return tuple(cells)


def run_row(entry: RunEntry, placed_columns: Sequence[PlacedColumn], marked: bool = False) -> Row:
    cells: list[Cell] = [(glyphs.MARK if marked else " ", "accent")]
    if entry.instead:
        state_column, last = placed_columns[0], placed_columns[-1]
        width = last.first + last.width - state_column.first - state_column.width
        state = fit(f"{glyphs.UNHEARD} {entry.phase}", state_column.width)
        return (
            *cells,
            (f"{state}  ", "stale"),
            (fit(entry.instead, width), "warn" if entry.problem else "stale"),
        )
    for place in placed_columns:
        text = place.column.in_list(entry, place.width)
        style = "stale" if text in (NA, "-") else _style(place.column.name, entry)
        cells.append((fit(text, place.width, right=place.column.right) + "  ", style))
    return tuple(cells)


def _style(column: str, entry: RunEntry) -> str:
    if column == "state" and (entry.hung or entry.alarm):
        return "bad" if entry.hung else "warn"
    if column == "state":
        return glyphs.run_phase(entry.phase)[1]
    if column == "name":
        return "head" if entry.live else "text"
    if column == "finding":
        return "warn" if entry.problem else "text"
    return "dim" if column in ("id", "age", "host") else "text"


def ordered(runs: Sequence[RunEntry], sort: str, reverse: bool = False) -> list[RunEntry]:
    """Sort by a column, unknown values last; "" keeps the order of the source, the newest first."""
    if not sort:
        return list(reversed(runs)) if reverse else list(runs)
    column = COLUMNS[sort]
    known = [run for run in runs if column.order(run) is not None]
    unknown = [run for run in runs if column.order(run) is None]
    return sorted(known, key=column.order, reverse=column.descending != reverse) + unknown  # type: ignore[arg-type]


def run_sort_keys(placed_columns: Sequence[PlacedColumn]) -> list[SortKey]:
    """Return the keys to sort the list by its columns."""
    columns = sorted((column for column in _COLUMNS if column.width), key=lambda column: column.priority)
    keys = sort_keys([(column.name, column.name) for column in columns], "newest first")
    return offered(keys, {place.column.name for place in placed_columns})


def at_column(placed_columns: Sequence[PlacedColumn], x: int) -> str:
    """Return the name of the column under the pointer; "" if there is none."""
    for place in placed_columns:
        if place.first <= x < place.first + place.width + 2:
            return place.column.name
    return ""


def removal_rows(runs: Sequence[RunEntry]) -> list[Row]:
    """Return what a removal deletes."""
    lost = "logs, metrics, findings, journal; checkpoints outside this directory stay"
    rows = [label_row("lost", 7, lost, "warn")]
    has_unknown = any(run.size is None for run in runs)
    if has_unknown or len(runs) > 1:
        total = size_short(sum(run.size or 0 for run in runs)) + (" and more" if has_unknown else "")
        rows.append(label_row("size", 7, f"{total} in {plural(len(runs), 'run')}"))
    for run in runs:
        rows.append(label_row("run", 7, f"{run.name}  {run.phase}  {size_short(run.size)}", "head"))
        rows.append(label_row("", 7, run.path))
    return rows
