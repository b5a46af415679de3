"""Defaults of a launch without the option or form field: `[launch]` of settings.toml."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from ..run.settings_file import loaded, no_section, unknown_keys

LOCAL, SKY, HOSTS = "local", "sky", "hosts"
SECTION = "launch"
KEYS = ("preset", "place")
WANTS = {
    "preset": 'the name of a preset, as in "fsdp2"',
    "place": '"local", "sky", one of SkyPilot\'s places as in "slurm/lab", or hosts as in "hosts gpu1,gpu2"',
}
"""Required values of each key."""
_FITS = {
    "preset": re.compile(r"[A-Za-z0-9][\w.-]{0,99}"),
    "place": re.compile(
        r"(?:(?!hosts\b)[A-Za-z][\w./:@-]{0,199}|hosts:? [^\s,-][^\s,]*(?:,[^\s,-][^\s,]*)*)"
    ),
}


class LaunchDefaults(Struct, frozen=True):
    """The settings' values, or "" if there are none."""

    preset: str = ""
    place: str = ""
    """In the form of the launch form."""
    problems: tuple[str, ...] = ()
    """One sentence per setting that cannot be used. The others apply."""


def load(environ: Mapping[str, str] = os.environ) -> LaunchDefaults:
    """Load this user's settings. Never fails."""
    return loaded(SECTION, of_table, lambda why: LaunchDefaults(problems=(why,)), environ)


def of_table(table: Any, path: Path) -> LaunchDefaults:
    """Parse `[launch]`."""
    if not isinstance(table, Mapping):
        return LaunchDefaults(problems=(no_section(path, SECTION),))
    problems = unknown_keys(path, SECTION, table, KEYS, f"there are {' and '.join(KEYS)}")
    values = {}
    for key in KEYS:
        value = table.get(key, "")
        if value == "" or (isinstance(value, str) and _FITS[key].fullmatch(value)):
            values[key] = value
        else:
            problems.append(f"{path}: {SECTION}.{key} must be {WANTS[key]}")
    return LaunchDefaults(**values, problems=tuple(problems))


def kind_of(place: str) -> str:
    """Return the kind of a form's place: "local", "sky" or "hosts"."""
    word = place.split()[0].rstrip(":") if place.split() else LOCAL
    return word if word in (LOCAL, HOSTS) else SKY
