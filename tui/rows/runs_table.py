"""What `ls` prints: columns by their names, the order, the table. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct

from ...presets.finding import did_you_mean
from ...presets.sanitize import quoted
from ...runners.formatting import NA, duration_short, duration_text, size_short
from ...runners.status import HUNG
from .glyphs import table
from .runs import RunEntry, share_done


class PrintedColumn(Struct, frozen=True):
    """One column of `ls`."""

    text: Callable[[RunEntry], str]
    order: Callable[[RunEntry], float | str | None]
    """What it is sorted by; None comes last."""
    right: bool = False
    falling: bool = False
    """Whether the largest values come first."""


def _count(value: int | None) -> str:
    return NA if value is None else str(value)


def _share(run: RunEntry) -> str:
    done = share_done(run)
    return NA if done is None else f"{min(100, int(100 * done))} %"


def _began(run: RunEntry) -> str:
    return NA if run.age_s is None else f"{duration_text(run.age_s)} ago"


COLUMNS: dict[str, PrintedColumn] = {
    "host": PrintedColumn(lambda run: run.host or "here", lambda run: run.host),
    "name": PrintedColumn(lambda run: run.name, lambda run: run.name.lower()),
    "state": PrintedColumn(lambda run: HUNG if run.hung else run.phase, lambda run: run.phase),
    "preset": PrintedColumn(lambda run: run.preset, lambda run: run.preset.lower() or None),
    "attempt": PrintedColumn(lambda run: _count(run.attempt), lambda run: run.attempt, True, True),
    "nodes": PrintedColumn(lambda run: _count(run.nodes), lambda run: run.nodes, True, True),
    "ranks": PrintedColumn(lambda run: _count(run.ranks), lambda run: run.ranks, True, True),
    "step": PrintedColumn(lambda run: _count(run.step), lambda run: run.step, True, True),
    "done": PrintedColumn(_share, share_done, True, True),
    "began": PrintedColumn(_began, lambda run: run.age_s),
    "age": PrintedColumn(lambda run: duration_short(run.age_s), lambda run: run.age_s, True),
    "took": PrintedColumn(
        lambda run: duration_short(run.lasted_s), lambda run: run.lasted_s, True, True
    ),
    "ended": PrintedColumn(lambda run: duration_short(run.ended_s), lambda run: run.ended_s, True),
    "exit": PrintedColumn(lambda run: _count(run.exit_code), lambda run: run.exit_code, True, True),
    "size": PrintedColumn(lambda run: size_short(run.size), lambda run: run.size, True, True),
    "tags": PrintedColumn(lambda run: " ".join(run.tags), lambda run: " ".join(run.tags) or None),
    "note": PrintedColumn(lambda run: run.note, lambda run: run.note.lower() or None),
    "finding": PrintedColumn(
        lambda run: run.problem or run.finding, lambda run: (run.problem or run.finding).lower() or None
    ),
    "id": PrintedColumn(lambda run: run.id, lambda run: run.id),
    "path": PrintedColumn(lambda run: run.path, lambda run: run.path or None),
}  # fmt: skip
"""By name; unknown values are n/a."""

USUAL = ("name", "state", "preset", "attempt", "ranks", "began", "id")
"""Without `--columns`; of hosts with `host` before them, where there are any with tags and note before the id."""
NOTE_WIDTH = 40
"""Characters of a note where nobody asked for the column."""


def unknown_column(names: Sequence[str], option: str) -> str:
    """What is wrong with the names of columns, in a sentence; "" where all are there, each once."""
    for name in names:
        if name not in COLUMNS:
            hint = did_you_mean(name, COLUMNS) or f"there are {', '.join(COLUMNS)}"
            return f"{option}: no column is called {quoted(name)}; {hint}"
    twice = next((name for at, name in enumerate(names) if name in names[:at]), "")
    return f"{option}: column {twice} stands there twice: leave out one" if twice else ""


def usual(runs: Sequence[RunEntry], hosts: bool) -> tuple[str, ...]:
    """The columns that are printed where nobody chose any."""
    more = [name for name in ("tags", "note") if any(COLUMNS[name].text(run) for run in runs)]
    return (*(["host"] if hosts else []), *USUAL[:-1], *more, USUAL[-1])


def sorted_by(runs: Sequence[RunEntry], sort: str, reverse: bool) -> list[RunEntry]:
    """In the order of a column, unknown values last; without one as they came."""
    if not sort:
        return list(reversed(runs)) if reverse else list(runs)
    column = COLUMNS[sort]
    keys = [column.order(run) for run in runs]
    places = [at for at, key in enumerate(keys) if key is not None]
    places.sort(key=lambda at: keys[at], reverse=column.falling != reverse)  # type: ignore[arg-type, return-value]
    return [runs[at] for at in (*places, *(at for at, key in enumerate(keys) if key is None))]


def printed(runs: Sequence[RunEntry], names: Sequence[str], width: int | None, chosen: bool) -> list[str]:
    """The table with its head. `width`: of a terminal, for which ids are cut; `chosen`: the user named the columns."""
    rows = [tuple(names), *(tuple(COLUMNS[name].text(run) for name in names) for run in runs)]
    if not chosen and "note" in names:
        at = names.index("note")
        rows = [(*row[:at], _cut(row[at], NOTE_WIDTH), *row[at + 1 :]) for row in rows]
    if width is not None and "id" in names:
        rows = narrowed(rows, width, names.index("id"))
    right = frozenset(at for at, name in enumerate(names) if COLUMNS[name].right)
    return table(rows, right)


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"


def narrowed(rows: list[tuple[str, ...]], width: int, at: int = -1) -> list[tuple[str, ...]]:
    """The rows for a terminal: where they are wider, the ends of the ids, which the verbs take as well."""
    if max(map(len, table(rows))) <= width:
        return rows
    at %= len(rows[0])
    return [(*row[:at], row[at].rpartition("-")[2], *row[at + 1 :]) for row in rows]
