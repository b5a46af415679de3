"""The runs list as rows: columns that fill the width, filter and order. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct, structs

from ...runners.formatting import NA, duration_short, elapsed, plural, size_short
from ...runners.status import HUNG
from . import glyphs
from .glyphs import Cell, Row, fit


class RunEntry(Struct, frozen=True, kw_only=True):
    """One line of the run list."""

    id: str
    name: str
    phase: str
    """A RunPhase value, or a word of the source's own ("watched")."""
    live: bool
    readonly: bool
    preset: str
    problem: str = ""
    """What is damaged of it, and names the file."""
    lasted_s: float | None = None
    """Seconds that it took, or has taken."""
    nodes: int | None = None
    ranks: int | None = None
    step: int | None = None
    total: int | None = None
    """Steps after which the training is over."""
    exit_code: int | None = None
    finding: str = ""
    """The worst of them, or how the run ended."""
    hung: bool = False
    """Whether it seems to hang, see runners.progress.hung."""
    size: int | None = None
    """Bytes of its directory."""
    host: str = ""
    """Where it is kept; "" for this machine."""
    path: str = ""
    """Of its directory here; "" where it has none."""
    tags: tuple[str, ...] = ()
    note: str = ""
    attempt: int | None = None
    began: float | None = None
    """When it was launched, unix seconds."""
    ended: float | None = None
    """Unix seconds; None of one that is live, and where it is unknown."""
    age_s: float | None = None
    """Seconds since `began`; see `as_of`."""
    ended_s: float | None = None
    """Seconds since `ended`."""
    instead: str = ""
    """What stands in place of the columns: of a host whose runs are not known."""

    def as_of(self, now: float) -> RunEntry:
        """The line with its ages at a unix time."""
        return structs.replace(self, age_s=elapsed(self.began, now), ended_s=elapsed(self.ended, now))


EMPTY: tuple[Row, ...] = (
    (("No run yet.", "head"),),
    ((f"  {fit('^n', 32)}", "accent"), ("pick a preset and start one", "text")),
    ((f"  {fit('distui launch PRESET -- SCRIPT', 32)}", "accent"), ("the same from the shell", "text")),
    ((f"  {fit('distui watch', 32)}", "accent"), ("jobs that distui did not start", "text")),
)
"""What to do when there is nothing to show."""


class RunColumn(Struct, frozen=True):
    """One column."""

    name: str
    width: int
    text: Callable[[RunEntry], str]
    order: Callable[[RunEntry], float | str | None]
    """What it is sorted by; None comes last."""
    right: bool = False
    rank: int = 0
    """The lower, the sooner it has a place; 0 always has one."""
    grows: int = 0
    """Most columns that it takes of what is left."""


def _world(entry: RunEntry) -> str:
    if entry.ranks is None:
        return NA
    return (
        f"{entry.nodes}×{entry.ranks // entry.nodes}"
        if entry.nodes and entry.ranks % entry.nodes == 0
        else str(entry.ranks)
    )


def share_done(entry: RunEntry) -> float | None:
    """How much of its steps a run has made, 0 to 1."""
    return entry.step / entry.total if entry.step is not None and entry.total else None


def _percent(entry: RunEntry) -> str:
    done = share_done(entry)
    return NA if done is None else f"{min(100, int(100 * done))} %"


def _number(value: int | None) -> str:
    return NA if value is None else f"{value:,}"


def _count(value: int | None) -> float | None:
    return None if value is None else float(value)


def _finding(entry: RunEntry) -> str:
    return f"{glyphs.WARN} {entry.problem}" if entry.problem else entry.finding


def _state(entry: RunEntry) -> str:
    return f"{glyphs.BAD} {HUNG}" if entry.hung else f"{glyphs.run_phase(entry.phase)[0]} {entry.phase}"


def words_of_state(entry: RunEntry) -> str:
    """The state as one filters and sorts by it."""
    return f"{entry.phase} {HUNG}" if entry.hung else entry.phase


COLUMNS: tuple[RunColumn, ...] = (
    RunColumn("state", 12, _state, words_of_state),
    RunColumn("name", 12, lambda run: run.name or run.id, lambda run: run.name.lower(), grows=32),
    RunColumn("host", 12, lambda run: run.host or "here", lambda run: run.host, rank=1, grows=24),
    RunColumn("preset", 8, lambda run: run.preset or "-", lambda run: run.preset.lower(), rank=3, grows=16),
    RunColumn("ranks", 5, _world, lambda run: _count(run.ranks), right=True, rank=4),
    RunColumn("step", 7, lambda run: _number(run.step), lambda run: _count(run.step), right=True, rank=6),
    RunColumn("done", 5, _percent, share_done, right=True, rank=8),
    RunColumn("age", 4, lambda run: duration_short(run.age_s), lambda run: run.age_s, right=True, rank=2),
    RunColumn("took", 4, lambda run: duration_short(run.lasted_s), lambda run: run.lasted_s, right=True, rank=7),
    RunColumn("exit", 4, lambda run: NA if run.exit_code is None else str(run.exit_code),
              lambda run: _count(run.exit_code), right=True, rank=9),
    RunColumn("size", 6, lambda run: size_short(run.size), lambda run: _count(run.size), right=True, rank=10),
    RunColumn("finding", 14, _finding, lambda run: _finding(run).lower() or None, rank=5, grows=90),
    RunColumn("tags", 8, lambda run: " ".join(run.tags), lambda run: " ".join(run.tags) or None, rank=3, grows=24),
    RunColumn("note", 10, lambda run: run.note, lambda run: run.note.lower() or None, rank=6, grows=40),
    RunColumn("id", 24, lambda run: run.id, lambda run: run.id, rank=11, grows=100),
)  # fmt: skip
"""In their order on the screen."""

NAMES = tuple(column.name for column in COLUMNS)

IF_ANY = ("host", "tags", "note")
"""Columns that are there where a run has something in them."""

DESCENDING = frozenset({"step", "done", "took", "size", "ranks", "exit"})
"""Columns whose largest values come first, unless the order is reversed."""


class PlacedColumn(Struct, frozen=True):
    """A column with its place on the screen."""

    column: RunColumn
    first: int
    width: int


def placed(runs: Sequence[RunEntry], width: int) -> list[PlacedColumn]:
    """The columns that fit, over all of `width`: by their ranks; what is left goes to those whose texts need it."""
    wanted = [column for column in COLUMNS if column.name not in IF_ANY or any(map(column.order, runs))]
    chosen: list[RunColumn] = []
    room = width - 2
    for column in sorted(wanted, key=lambda column: column.rank):
        if column.width + 2 <= room or not column.rank:
            chosen.append(column)
            room -= column.width + 2
    widths = {column.name: column.width for column in chosen}
    for column in sorted(chosen, key=lambda column: column.rank):
        longest = max((len(column.text(run)) for run in runs), default=0)
        more = max(0, min(longest, column.grows) - column.width, 0)
        taken = min(more, max(0, room))
        widths[column.name] += taken
        room -= taken
    ends = [column for column in chosen if column.grows]
    if room > 0 and ends:
        widths[max(ends, key=lambda column: column.rank).name] += room
    places, at = [], 1
    for column in (column for column in COLUMNS if column in chosen):
        places.append(PlacedColumn(column, at, widths[column.name]))
        at += widths[column.name] + 2
    return places


def head_row(places: Sequence[PlacedColumn], sort: str = "", reverse: bool = False) -> Row:
    """The names of the columns; the one that orders the list is marked."""
    cells: list[Cell] = [(" ", "dim")]
    for place in places:
        name = place.column.name
        mark = ("▴" if reverse else "▾") if name == sort else ""
        shown = name if len(name) + len(mark) <= place.width else name[: place.width - len(mark)]
        text = fit(f"{shown}{mark}", place.width, right=place.column.right)
        cells.append((f"{text}  ", "accent" if mark else "dim"))
    return tuple(cells)


def run_row(entry: RunEntry, places: Sequence[PlacedColumn], marked: bool = False) -> Row:
    """One run."""
    cells: list[Cell] = [(glyphs.MARK if marked else " ", "accent")]
    if entry.instead:
        width = places[-1].first + places[-1].width - places[0].first - places[0].width
        state = fit(f"{glyphs.STALE} {entry.phase}", places[0].width)
        return (
            *cells,
            (f"{state}  ", "stale"),
            (fit(entry.instead, width), "warn" if entry.problem else "stale"),
        )
    for place in places:
        text = place.column.text(entry)
        style = "stale" if text in (NA, "-") else _style(place.column.name, entry)
        cells.append((fit(text, place.width, right=place.column.right) + "  ", style))
    return tuple(cells)


def _style(column: str, entry: RunEntry) -> str:
    if column == "state":
        return "bad" if entry.hung else glyphs.run_phase(entry.phase)[1]
    if column == "name":
        return "head" if entry.live else "text"
    if column == "finding":
        return "warn" if entry.problem else "text"
    return "dim" if column in ("id", "age", "host") else "text"


def ordered(runs: Sequence[RunEntry], sort: str, reverse: bool = False) -> list[RunEntry]:
    """By a column, unknown values last; "" keeps the order of the source, the newest first."""
    column = next((column for column in COLUMNS if column.name == sort), None)
    if column is None:
        return list(reversed(runs)) if reverse else list(runs)
    with_value = [run for run in runs if column.order(run) is not None]
    backwards = (sort in DESCENDING) != reverse
    keys = {run.id: column.order(run) for run in with_value}
    with_value.sort(key=lambda run: keys[run.id], reverse=backwards)  # type: ignore[arg-type, return-value]
    return with_value + [run for run in runs if column.order(run) is None]


def next_sort(sort: str, places: Sequence[PlacedColumn]) -> str:
    """The next column that is on the screen; after the last one the source's own order."""
    names = ["", *(place.column.name for place in places)]
    return names[(names.index(sort) + 1) % len(names)] if sort in names else ""


def at_column(places: Sequence[PlacedColumn], x: int) -> str:
    """The column under the pointer; "" where none is."""
    return next((each.column.name for each in places if each.first <= x < each.first + each.width + 2), "")


def removal_rows(runs: Sequence[RunEntry]) -> list[Row]:
    """What a removal takes away."""
    total = sum(run.size or 0 for run in runs)
    rows: list[Row] = [
        (
            (fit("lost", 7), "dim"),
            ("logs, metrics, findings and the ledger; checkpoints elsewhere stay", "warn"),
        )
    ]
    if any(run.size is None for run in runs) or len(runs) > 1:
        unknown = " and more" if any(run.size is None for run in runs) else ""
        rows.append(
            (
                (fit("size", 7), "dim"),
                (f"{size_short(total)}{unknown} in {plural(len(runs), 'run')}", "text"),
            )
        )
    for run in runs:
        rows.append(((fit("run", 7), "dim"), (f"{run.name}  {run.phase}  {size_short(run.size)}", "head")))
        rows.append(((fit("", 7), "dim"), (run.path, "text")))
    return rows
