"""rm, prune: removing runs that have ended."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable
from typing import Any

from ...presets.sanitize import clean_text
from ...runners import clock, run_directories, run_removal
from ...runners.errors import RunError
from ...runners.formatting import duration_short, plural, size_short
from ...runners.run_directories import Entry
from ...runners.run_removal import Removable
from ..rows.glyphs import table
from ..terminal import complain


def rm(options: argparse.Namespace) -> int:
    """Remove runs by their names; refuses where one of them is live, before any is removed."""
    entries = {entry.path: entry for entry in map(run_directories.resolve, options.runs)}
    for entry in entries.values():
        if why := run_removal.refusal(entry):
            raise RunError(why)
    sized = [(entry, run_removal.size_of(entry.path)) for entry in entries.values()]
    lines = [f"{entry.record.name}  {size_short(size)}  {entry.path}" for entry, size in sized]
    if not _sure(options, f"Remove {plural(len(sized), 'run')}?", lines):
        return 1
    return _remove(options, entries.values())


def prune(options: argparse.Namespace) -> int:
    """Remove ended runs by age, number and outcome."""
    if options.older_than is None and options.keep is None and not options.failed:
        raise RunError("which runs? add --older-than 30d, --keep 20 or --failed")
    now = clock.now()
    run_removal.sweep()
    chosen = run_removal.pruned(
        run_removal.removable(run_directories.entries()),
        now,
        older_than_s=options.older_than,
        keep=options.keep,
        failed=options.failed,
    )
    if options.dry_run:
        return _show(options, chosen, now)
    if not chosen:
        if options.json:
            sys.stdout.write('{"removed": [], "freed_bytes": 0, "failed": []}\n')
        else:
            sys.stdout.write("nothing to remove\n")
        return 0
    total = size_short(sum(run.size for run in chosen))
    if not _sure(options, f"Remove {plural(len(chosen), 'run')}, {total}?", _lines(chosen, now)):
        return 1
    return _remove(options, (run.entry for run in chosen))


def _lines(chosen: list[Removable], now: float) -> list[str]:
    rows = [("name", "state", "ended", "size", "id")]
    rows += [
        (
            run.entry.record.name,
            str(run.phase),
            f"{duration_short(run_removal.age(run, now))} ago",
            size_short(run.size),
            run.entry.record.run,
        )
        for run in chosen
    ]
    return table(rows, frozenset({3}))


def _show(options: argparse.Namespace, chosen: list[Removable], now: float) -> int:
    if options.json:
        documents = [_document(run.entry, run.size) for run in chosen]
        sys.stdout.write(json.dumps({"would_remove": documents}) + "\n")
    elif chosen:
        total = size_short(sum(run.size for run in chosen))
        sys.stdout.write(
            "\n".join([*_lines(chosen, now), f"would remove {plural(len(chosen), 'run')}, {total}"]) + "\n"
        )
    else:
        sys.stdout.write("nothing to remove\n")
    return 0


def _document(entry: Entry, size: int) -> dict[str, Any]:
    return {"run": entry.record.run, "name": entry.record.name, "path": str(entry.path), "bytes": size}


def _remove(options: argparse.Namespace, entries: Iterable[Entry]) -> int:
    removed, failed = list[dict[str, Any]](), list[str]()
    for entry in entries:
        try:
            removed.append(_document(entry, run_removal.remove(entry)))
        except run_removal.GoneError:
            continue  # what was wanted
        except RunError as error:
            failed.append(str(error))
    freed = sum(each["bytes"] for each in removed)
    if options.json:
        sys.stdout.write(json.dumps({"removed": removed, "freed_bytes": freed, "failed": failed}) + "\n")
    else:
        sys.stdout.write(f"removed {plural(len(removed), 'run')}, {size_short(freed)} freed\n")
    for text in failed:
        complain(text)
    return 1 if failed else 0


def _sure(options: argparse.Namespace, question: str, lines: list[str]) -> bool:
    """Ask on the terminal; without one only --yes is an answer. Raises RunError."""
    if options.yes:
        return True
    if not sys.stdin.isatty():
        raise RunError("there is no terminal to ask on: add --yes, or --dry-run with prune")
    write: Callable[[str], Any] = sys.stderr.write
    write("".join(f"{clean_text(line)}\n" for line in (question, *lines)) + "Really? [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() in ("y", "yes"):
        return True
    complain("nothing was removed")
    return False
