"""Where a run's metrics go beside its own files: `[export]` of settings.toml, nowhere unless the user writes it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from ..settings_file import SettingsError, no_section, section_of, settings_path, strangers

SECTION = "export"
DIRECTORY = "openmetrics_dir"
KEYS = (DIRECTORY,)


class MetricsExport(Struct, frozen=True):
    """What the settings say."""

    directory: Path | None = None
    """Absolute; where node_exporter's textfile collector reads."""
    problems: tuple[str, ...] = ()
    """A sentence for each thing that cannot be used; the rest counts."""


def load(environ: Mapping[str, str] = os.environ) -> MetricsExport:
    """The settings of this user. Never fails."""
    try:
        return of_table(section_of(SECTION, environ), settings_path(environ))
    except SettingsError:
        return MetricsExport()  # the cockpit and `distui settings` name it; this run was asked for nothing


def of_table(table: Any, path: Path) -> MetricsExport:
    """The same of `[export]`."""
    if not isinstance(table, Mapping):
        return MetricsExport(problems=(no_section(path, SECTION),))
    problems = strangers(path, SECTION, table, KEYS, f"there is {SECTION}.{DIRECTORY}")
    value = table.get(DIRECTORY)
    if value is None:
        return MetricsExport(problems=tuple(problems))
    directory = _absolute(value)
    if directory is None:
        problems.append(
            f"{path}: {SECTION}.{DIRECTORY} has to be a directory from / or ~ on, as in "
            '"/var/lib/node_exporter/textfile"'
        )
    return MetricsExport(directory, tuple(problems))


def _absolute(value: Any) -> Path | None:
    if not isinstance(value, str) or not value or "\0" in value or any(char < " " for char in value):
        return None
    try:
        path = Path(value).expanduser()
    except RuntimeError:  # ~ of a user that there is not
        return None
    return path if path.is_absolute() else None
