"""rm, prune: remove runs that have ended."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from ...presets.plurals import plural
from ...runners.removal import directory_removal, removed_runs
from ...runners.removal.directory_trees import size_of
from ...runners.removal.removed_runs import RemovedRun
from ...runners.removal.run_removal import Removal
from ...runners.run import clock, run_directories
from ...runners.run.errors import RunError
from ...runners.run.formatting import size_short
from ..rows.glyphs import table
from ..terminal import answer, complain, confirmed


def rm(options: argparse.Namespace) -> int:
    """Remove runs by their names. Refuse if one of them is live, before any is removed."""
    return _remove(options, removed_runs.checked(map(run_directories.resolve, options.runs)))


def prune(options: argparse.Namespace) -> int:
    """Remove ended runs by age, number and outcome."""
    chosen = removed_runs.to_prune(options.older_than, options.keep, options.failed)
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
    lines = [*_lines(chosen, sizes), f"would remove {_total(chosen, sizes)}"]
    answer(options.json, removed_runs.removable(chosen), lines if chosen else ["nothing to remove"])
    return 0


def _remove(options: argparse.Namespace, chosen: Sequence[Removal]) -> int:
    if chosen and not _sure(options, chosen):
        return 1
    problems = directory_removal.sweep()
    done = removed_runs.remove_all(chosen)
    lines = list(map(_removed_line, done.removed))
    lines.append(f"removed {plural(len(done.removed), 'run')}, {size_short(done.freed_bytes)} freed")
    answer(options.json, done, lines if chosen else ["nothing to remove"])
    for text in (*problems, *done.failed):
        complain(text)
    return 1 if done.failed else 0


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
