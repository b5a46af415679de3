"""Several runs removed at once: by their names, or by age, number and outcome."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from msgspec import Struct

from ..run import clock, run_directories
from ..run.errors import RunError
from . import directory_removal, run_removal
from .directory_trees import size_of
from .run_removal import Removal


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


def checked(entries: Iterable[run_directories.Entry]) -> list[Removal]:
    """Return what a removal of these runs takes. Raises RunError if one of them must stay."""
    by_path = {entry.path: entry for entry in entries}
    chosen = [run_removal.examine(entry) for entry in by_path.values()]
    for removal in chosen:
        if removal.refusal:
            raise RunError(removal.refusal)
    return chosen


def to_prune(older_than_s: float | None, keep: int | None, failed: bool) -> list[Removal]:
    """Return the ended runs that fit all conditions. Raises RunError without a condition."""
    if older_than_s is None and keep is None and not failed:
        raise RunError("which runs? add --older-than 30d, --keep 20 or --failed")
    candidates = run_removal.candidates(run_directories.entries())
    return run_removal.pruned(candidates, clock.now(), older_than_s=older_than_s, keep=keep, failed=failed)


def remove_all(chosen: Sequence[Removal]) -> Removed:
    """Remove runs one by one; a run that cannot be removed does not keep the others."""
    removed, failed = list[RemovedRun](), list[str]()
    for removal in chosen:
        try:
            gone = run_removal.remove(removal.entry)
        except directory_removal.GoneError:
            continue  # the run is already removed
        except RunError as error:
            failed.append(str(error))
        else:
            removed.append(_described(removal, gone.folders, gone.size))
    return Removed(removed, sum(each.bytes for each in removed), failed)


def removable(chosen: Sequence[Removal]) -> Removable:
    """Return what a removal would take."""
    runs = []
    for removal in chosen:
        size = sum(map(size_of, removal.folders))
        runs.append(_described(removal, removal.folders, size))
    return Removable(runs)


def _described(removal: Removal, folders: Sequence[Path], size: int) -> RemovedRun:
    """Return a run with its directories. `size`: their bytes."""
    record = removal.entry.record
    why = f"{removal.phase}, {removal.age_text(clock.now())}"
    return RemovedRun(
        record.run, record.name, str(removal.entry.path), why, [str(folder) for folder in folders], size
    )
