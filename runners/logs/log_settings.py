"""Maximum size of the ranks' logs: `[logs]` of settings.toml. Logs are unlimited by default."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from ..run.formatting import bytes_of_cap
from ..run.settings_file import loaded, no_section, unknown_keys

SECTION, CAP = "logs", "cap"


class LogSettings(Struct, frozen=True):
    cap: int = 0
    """Maximum bytes of a log on disk, as `Plan.log_cap`; 0 for no limit."""
    typed: str = ""
    """The value as the user wrote it."""
    problems: tuple[str, ...] = ()
    """A sentence per invalid setting. Logs are then unlimited."""


def load(environ: Mapping[str, str] = os.environ) -> LogSettings:
    """Return this user's settings. Never raises."""
    return loaded(SECTION, of_table, lambda why: LogSettings(problems=(why,)), environ)


def of_table(table: Any, path: Path) -> LogSettings:
    """Return the settings of a `[logs]` table."""
    if not isinstance(table, Mapping):
        return LogSettings(problems=(no_section(path, SECTION),))
    problems = unknown_keys(path, SECTION, table, (CAP,), f"there is {SECTION}.{CAP}")
    text = table.get(CAP, "off")
    cap = bytes_of_cap(text) if isinstance(text, str) else None
    if cap is None:
        problems.append(f'{path}: {SECTION}.{CAP} must be a size of 16MiB or more, as in "200MB", or "off"')
    if problems:
        return LogSettings(problems=tuple(problems))
    return LogSettings(cap or 0, text if CAP in table else "")
