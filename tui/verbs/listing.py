"""ls: the runs of this machine and of others, filtered and sorted, as a table or as JSON."""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct, structs

from ...presets.sanitize import clean_text
from ...runners.removal.directory_trees import size_of
from ...runners.reports.run_list import ReadRun, runs_here
from ...runners.run import clock, run_directories
from ...runners.run.errors import RunError, UnreachableError
from ..rows.list_filter import FilterError, ListFilter
from ..rows.run_filter import RUNS
from ..rows.runs import RunEntry, entry_of, ordered
from ..rows.runs_table import printed, unknown_column, usual
from ..terminal import complain, typeable


class ListOrder(Struct, frozen=True):
    """Filter, columns and order of the options."""

    filter: ListFilter[RunEntry]
    columns: tuple[str, ...]
    """() for the default columns."""
    sort: str
    reverse: bool

    @property
    def measured(self) -> bool:
        """Whether the sizes of the directories are needed, which are slow to measure."""
        return "size" in (*self.columns, self.sort, *self.filter.fields)


class ListedRun(Struct, frozen=True):
    """One run of this machine or another."""

    row: RunEntry
    document: Mapping[str, Any]
    """A RunLine; from another host in that host's version."""
    notes: tuple[str, ...] = ()
    """Sentences for the user in addition to the line."""


def ls(options: argparse.Namespace) -> int:
    """Print the runs, newest first."""
    order = _order(options)
    problems: list[str] = []
    if options.host:
        runs, problems = _runs_of_hosts(options)
    else:
        runs = _runs_here(order.measured)
    for problem in problems:
        complain(problem)
    _print(options, order, runs, problems)
    return UnreachableError.code if problems else 0


def _order(options: argparse.Namespace) -> ListOrder:
    """Parse the options. Raises RunError."""
    try:
        chosen = RUNS.understood(" ".join(options.filter))
    except FilterError as error:
        raise RunError(str(error)) from None
    columns = _names(options.columns or "")
    problem = unknown_column(columns, "--columns")
    problem = problem or unknown_column([options.sort] if options.sort else [], "--sort")
    if problem:
        raise RunError(problem)
    return ListOrder(chosen, columns, options.sort or "", options.reverse)


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _print(
    options: argparse.Namespace, order: ListOrder, runs: list[ListedRun], problems: Sequence[str]
) -> None:
    wide = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    if options.json:
        sys.stdout.write(json.dumps([run.document for run in _chosen(order, runs)]) + "\n")
    elif runs or not problems:
        sys.stdout.write("\n".join(_lines(order, runs, wide, bool(options.host))) + "\n")


def _chosen(order: ListOrder, runs: Sequence[ListedRun]) -> list[ListedRun]:
    by_row = {id(run.row): run for run in runs if order.filter.fits(run.row)}
    rows = ordered([run.row for run in by_row.values()], order.sort, order.reverse)
    return [by_row[id(row)] for row in rows]


def _lines(order: ListOrder, runs: Sequence[ListedRun], width: int | None, hosts: bool) -> list[str]:
    chosen = _chosen(order, runs)
    if not runs:
        text = "no runs yet: `distui launch PRESET -- SCRIPT` starts one, `distui demo` shows one"
        return ["no runs on these hosts" if hosts else typeable(text, sys.stdout)]
    if not chosen:
        return [f"no run of {len(runs)} fits the filter"]
    rows = [run.row for run in chosen]
    names = order.columns or usual(rows, hosts)
    notes = [note for run in chosen for note in run.notes]
    lines = printed(rows, names, width, bool(order.columns))
    return [*lines, *([""] if notes else []), *map(clean_text, notes)]


# -----------------------------------------------------------------------------------------------------------
# Sources of runs.


def _runs_here(measured: bool) -> list[ListedRun]:
    return [_listed(read, size_of(read.entry.path) if measured else None) for read in runs_here()]


def _listed(read: ReadRun, size: int | None) -> ListedRun:
    entry = read.entry
    row = entry_of(entry, read.history, read.phase, read.figures, read.marks).as_of(clock.now())
    notes = [f"damaged: {problem}" for problem in read.problems]
    if read.orphans:
        notes.append(run_directories.why_lost(entry, read.orphans))
    sentences = tuple(f"{entry.record.run}: {note}" for note in notes)
    return ListedRun(structs.replace(row, size=size), read.document(size), sentences)


def _runs_of_hosts(options: argparse.Namespace) -> tuple[list[ListedRun], list[str]]:
    """Return the runs of other hosts, newest first, and a sentence for each host that cannot be queried."""
    from ...runners.launch.hosts import list_on, named_ways  # slow to load
    from ..other_hosts import entry_elsewhere

    ways = named_ways(options.host, "--host", options.ssh_config)
    runs, problems = asyncio.run(list_on(ways))
    now, rows = clock.now(), list[ListedRun]()
    for run in runs:
        entry = entry_elsewhere(str(run.get("on", "")), run)
        if entry is not None:
            row = structs.replace(entry.as_of(now), id=entry.id.rpartition(":")[2])
            rows.append(ListedRun(row, run))
    return sorted(rows, key=lambda run: run.row.began or 0.0, reverse=True), problems
