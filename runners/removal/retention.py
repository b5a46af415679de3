"""Automatic removal of ended runs: `[retention]` of settings.toml, off by default.

It acts only after a launch from the shell or the cockpit, never on a read, and only briefly: the next launch removes the
rest. `removed.log` next to the runs has a line per removal. It never removes lost runs, which may be restarted, or
damaged runs.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from ...presets.plurals import plural
from ..run import clock, file_io, run_directories
from ..run.errors import RunError
from ..run.formatting import duration_text, seconds_of, size_short, time_of_day
from ..run.model import RunPhase
from ..run.run_directories import Entry
from ..run.settings_file import loaded, no_section, unknown_keys
from . import run_removal

SECTION = "retention"
LOG = "removed.log"
MOST_LOG = 1 << 20
"""Maximum bytes of the log; above that it begins again."""
SECONDS = 2.0
"""Maximum seconds of removals per launch; a removal that has begun is completed."""
KEYS = ("older_than", "keep")


class Retention(Struct, frozen=True):
    """Rules of the settings; without a rule it is off."""

    older_than_s: float | None = None
    """Remove runs that ended at least this many seconds ago."""
    keep: int | None = None
    """Keep this number of newest runs, whatever their age."""
    problems: tuple[str, ...] = ()
    """A sentence for each invalid setting; then nothing is removed."""

    @property
    def acts(self) -> bool:
        """Whether it removes anything."""
        return not self.problems and (self.older_than_s is not None or self.keep is not None)

    @property
    def text(self) -> str:
        """Sentence about the runs that a launch removes; "" if off."""
        older = (
            ""
            if self.older_than_s is None
            else f" that ended {duration_text(self.older_than_s)} ago or more"
        )
        kept = "" if self.keep is None else f", not among the newest {self.keep}"
        return (
            f"retention: after the start ended runs{older}{kept} are removed (settings.toml)"
            if self.acts
            else ""
        )


def load(environ: Mapping[str, str] = os.environ) -> Retention:
    """Load the settings of this user. Never fails."""
    return loaded(SECTION, of_table, lambda why: Retention(problems=(why,)), environ)


def of_table(table: Any, path: Path) -> Retention:
    """Parse `[retention]`."""
    if not isinstance(table, Mapping):
        return Retention(problems=(no_section(path, SECTION),))
    problems = unknown_keys(path, SECTION, table, KEYS, f"there are {' and '.join(KEYS)}")
    older, keep = table.get("older_than"), table.get("keep")
    age = seconds_of(older) if isinstance(older, str) else None
    if older is not None and not age:
        problems.append(f'{path}: {SECTION}.older_than must be a time above 0, as in "30d"')
    if keep is not None and (not isinstance(keep, int) or isinstance(keep, bool) or keep < 1):
        problems.append(f"{path}: {SECTION}.keep must be a number of runs, from 1 on")
    return Retention(problems=tuple(problems)) if problems else Retention(age, keep)


def retire(rule: Retention, launched: str, now: float | None = None) -> str:
    """Remove the runs that match, oldest first, and return a sentence about them, "" for none. Never fails.

    `launched`: id of the run that was just started.
    """
    if not rule.acts:
        return "; ".join(rule.problems)
    now, until = clock.now() if now is None else now, clock.monotonic() + SECONDS
    gone, freed = list[str](), 0
    try:
        for entry in due(rule, launched, now):
            if clock.monotonic() > until:
                break
            try:
                removed = run_removal.remove(entry, wait_s=0.0)
            except RunError:
                continue  # it lives or is held: try again another time
            _note(removed, now)
            gone.append(entry.record.name)
            freed += removed.size
    except RunError:
        pass
    if not gone:
        return ""
    what = f"{plural(len(gone), 'run')} ({', '.join(gone)})"
    return f"retention removed {what}, {size_short(freed)} freed: {LOG} has them"


def due(rule: Retention, launched: str, now: float) -> Iterator[Entry]:
    """Yield the runs that match, oldest first, each examined just before. Raises RunError."""
    listed = run_directories.entries()
    latest = now - (rule.older_than_s or 0.0)
    begun: list[Entry] = []
    for entry in reversed(listed[rule.keep or 0 :]):
        if entry.record.run != launched and entry.record.created <= latest:
            begun.append(entry)
    for removal in run_removal.candidates(begun, wait_s=0.0):
        if removal.phase is RunPhase.LOST or removal.doubtful:
            continue
        if rule.keep is not None and _begun_since(removal, listed) < rule.keep:
            continue
        if run_removal.pruned([removal], now, older_than_s=rule.older_than_s):
            yield removal.entry


def _begun_since(removal: run_removal.Removal, listed: Sequence[Entry]) -> int:
    """Return the number of other runs that began after this one's end, and so end later, too."""
    last, others = removal.last, (entry for entry in listed if entry.path != removal.entry.path)
    return 0 if last is None else sum(entry.record.created >= last for entry in others)


def _note(removed: run_removal.Removed, now: float) -> None:
    """Append the removed directories to the log, if it is writable."""
    path = run_directories.runs_dir().parent / LOG
    stamp = time_of_day(now, date=True)
    names = " ".join(folder.name for folder in removed.folders)
    try:
        if path.exists() and path.lstat().st_size > MOST_LOG:
            path.unlink()
        with file_io.appending(path) as file:
            file.write(f"{stamp}  {names}  {removed.size} bytes\n".encode())
    except OSError:
        return
