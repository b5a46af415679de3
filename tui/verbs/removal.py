"""rm, prune: remove runs that have ended."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from ...presets.plurals import plural
from ...runners.removal import run_removal
from ...runners.removal.directory_trees import size_of
from ...runners.removal.run_removal import Removal
from ...runners.run import clock, run_directories
from ...runners.run.errors import RunError
from ...runners.run.formatting import size_short
from ..rows.glyphs import table
from ..terminal import answer, complain, confirmed


class RemovedRun(Struct, frozen=True):
    run: str
    name: str
    path: str
    why: str
    folders: list[str]
    bytes: int


class Removed(Struct, frozen=True):
    """`rm`, and `prune` without --dry-run."""

    removed: list[RemovedRun]
    freed_bytes: int
    failed: list[str]


class Removable(Struct, frozen=True):
    """`prune --dry-run`."""

    would_remove: list[RemovedRun]


def rm(options: argparse.Namespace) -> int:
    """Remove runs by their names. Refuse if one of them is live, before any is removed."""
    entries = {entry.path: entry for entry in map(run_directories.resolve, options.runs)}
    chosen = [run_removal.examine(entry) for entry in entries.values()]
    for removal in chosen:
        if removal.refusal:
            raise RunError(removal.refusal)
    return _remove(options, chosen)


def prune(options: argparse.Namespace) -> int:
    """Remove ended runs by age, number and outcome."""
    if options.older_than is None and options.keep is None and not options.failed:
        raise RunError("which runs? add --older-than 30d, --keep 20 or --failed")
    chosen = run_removal.pruned(
        run_removal.candidates(run_directories.entries()),
        clock.now(),
        older_than_s=options.older_than,
        keep=options.keep,
        failed=options.failed,
    )
    return _show(options, chosen) if options.dry_run else _remove(options, chosen)


def _sizes(chosen: Sequence[Removal]) -> dict[Path, int]:
    """Return the bytes of each directory."""
    return {folder: size_of(folder) for removal in chosen for folder in removal.folders}


def _lines(chosen: Sequence[Removal], sizes: Mapping[Path, int]) -> list[str]:
    """Return the runs as a table, each with all its directories."""
    now = clock.now()
    rows = [("name", "state", "age", "size", "directory")]
    for removal in chosen:
        about = removal.entry.record.name, str(removal.phase), removal.age_text(now)
        for folder in removal.folders:
            rows.append((*about, size_short(sizes[folder]), str(folder)))
            about = "", "", ""
        if removal.checkpoints is not None:
            size = size_short(size_of(removal.checkpoints))
            rows.append(("", "", "unless another run uses it", size, str(removal.checkpoints)))
    return table(rows, frozenset({3}))


def _total(chosen: Sequence[Removal], sizes: Mapping[Path, int]) -> str:
    return f"{plural(len(chosen), 'run')}, {size_short(sum(sizes.values()))}"


def _show(options: argparse.Namespace, chosen: Sequence[Removal]) -> int:
    sizes = _sizes(chosen)
    documents = [
        _document(removal, removal.folders, sum(sizes[folder] for folder in removal.folders))
        for removal in chosen
    ]
    lines = [*_lines(chosen, sizes), f"would remove {_total(chosen, sizes)}"]
    answer(options.json, Removable(documents), lines if chosen else ["nothing to remove"])
    return 0


def _document(removal: Removal, folders: Sequence[Path], size: int) -> RemovedRun:
    record = removal.entry.record
    why = f"{removal.phase}, {removal.age_text(clock.now())}"
    paths = [str(folder) for folder in folders]
    return RemovedRun(record.run, record.name, str(removal.entry.path), why, paths, size)


def _remove(options: argparse.Namespace, chosen: Sequence[Removal]) -> int:
    if chosen and not _sure(options, chosen):
        return 1
    said, removed, failed = run_removal.sweep(), list[RemovedRun](), list[str]()
    for removal in chosen:
        try:
            gone = run_removal.remove(removal.entry)
            removed.append(_document(removal, gone.folders, gone.size))
        except run_removal.GoneError:
            continue  # the run is already removed
        except RunError as error:
            failed.append(str(error))
    freed = sum(each.bytes for each in removed)
    lines = list(map(_removed_line, removed))
    lines.append(f"removed {plural(len(removed), 'run')}, {size_short(freed)} freed")
    answer(options.json, Removed(removed, freed, failed), lines if chosen else ["nothing to remove"])
    for text in (*said, *failed):
        complain(text)
    return 1 if failed else 0


def _removed_line(removed: RemovedRun) -> str:
    return f"{removed.name}  {size_short(removed.bytes)}  {', '.join(removed.folders)}"


def _sure(options: argparse.Namespace, chosen: Sequence[Removal]) -> bool:
    """Ask on the terminal; without one only --yes confirms. Raises RunError."""
    if options.yes:
        return True
    if not sys.stdin.isatty():
        raise RunError("there is no terminal to ask on: add --yes, or --dry-run with prune")
    sizes = _sizes(chosen)
    lines = [f"Remove {_total(chosen, sizes)}?", *_lines(chosen, sizes), ""]
    return confirmed("\n".join(lines), "nothing was removed")
