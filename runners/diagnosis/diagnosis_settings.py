"""When a rank that works while others wait for it is a warning: `[diagnosis]` of settings.toml."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from ..run.formatting import seconds_of
from ..run.settings_file import loaded, no_section, unknown_keys

SECTION, WORKS_FOR = "diagnosis", "works_for"
LEAST_S, DEFAULT_S = 30.0, 300.0
"""The default is half of the timeout of torch's NCCL groups."""


class DiagnosisSettings(Struct, frozen=True):
    works_for_s: float = DEFAULT_S
    """Seconds before a wait for a working rank is a warning."""
    typed: str = ""
    """The value as the user wrote it."""
    problems: tuple[str, ...] = ()
    """A sentence per invalid setting. The default then counts."""


def load(environ: Mapping[str, str] = os.environ) -> DiagnosisSettings:
    """Return this user's settings. Never raises."""
    return loaded(SECTION, of_table, lambda why: DiagnosisSettings(problems=(why,)), environ)


def of_table(table: Any, path: Path) -> DiagnosisSettings:
    """Return the settings of a `[diagnosis]` table."""
    if not isinstance(table, Mapping):
        return DiagnosisSettings(problems=(no_section(path, SECTION),))
    problems = unknown_keys(path, SECTION, table, (WORKS_FOR,), f"there is {SECTION}.{WORKS_FOR}")
    text = table.get(WORKS_FOR, "5m")
    seconds = seconds_of(text) if isinstance(text, str) else None
    if seconds is None or seconds < LEAST_S:
        problems.append(f'{path}: {SECTION}.{WORKS_FOR} must be a time of 30s or more, as in "20m"')
    if seconds is None or problems:
        return DiagnosisSettings(problems=tuple(problems))
    return DiagnosisSettings(seconds, text if WORKS_FOR in table else "")
