"""How large the logs of ranks may become: `[logs]` of settings.toml, kept whole unless the user writes it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from ..formatting import bytes_of_cap
from ..settings_file import loaded, no_section, strangers

SECTION, CAP = "logs", "cap"


class LogSettings(Struct, frozen=True):
    cap: int = 0
    """Bytes of a log on disk, as `Plan.log_cap`; 0: none."""
    typed: str = ""
    """As it is written."""
    problems: tuple[str, ...] = ()
    """A sentence for each thing that cannot be used; logs are then kept whole."""


def load(environ: Mapping[str, str] = os.environ) -> LogSettings:
    """The settings of this user. Never fails."""
    return loaded(SECTION, of_table, lambda why: LogSettings(problems=(why,)), environ)


def of_table(table: Any, path: Path) -> LogSettings:
    """The same of `[logs]`."""
    if not isinstance(table, Mapping):
        return LogSettings(problems=(no_section(path, SECTION),))
    problems = strangers(path, SECTION, table, (CAP,), f"there is {SECTION}.{CAP}")
    text = table.get(CAP, "off")
    cap = bytes_of_cap(text) if isinstance(text, str) else None
    if cap is None:
        problems.append(
            f'{path}: {SECTION}.{CAP} has to be a size of 16MiB or more, as in "200MB", or "off"'
        )
    if problems:
        return LogSettings(problems=tuple(problems))
    return LogSettings(cap or 0, text if CAP in table else "")
