"""What a launch takes where neither its command line nor its form says it: `[launch]` of settings.toml."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from ..settings_file import loaded, no_section, strangers

LOCAL, SKY, HOSTS = "local", "sky", "hosts"
SECTION = "launch"
KEYS = ("preset", "place")
WANTS = {
    "preset": 'the name of a preset, as in "fsdp2"',
    "place": '"local", "sky", one of SkyPilot\'s places as in "slurm/lab", or hosts as in "hosts gpu1,gpu2"',
}
"""What the value of each has to be."""
_FITS = {
    "preset": re.compile(r"[A-Za-z0-9][\w.-]{0,99}"),
    "place": re.compile(
        r"(?:(?!hosts\b)[A-Za-z][\w./:@-]{0,199}|hosts:? [^\s,-][^\s,]*(?:,[^\s,-][^\s,]*)*)"
    ),
}


class LaunchDefaults(Struct, frozen=True):
    """What the settings say; "" where they say nothing."""

    preset: str = ""
    place: str = ""
    """As the launch form takes it."""
    problems: tuple[str, ...] = ()
    """A sentence for each thing that cannot be used; the rest counts."""


def load(environ: Mapping[str, str] = os.environ) -> LaunchDefaults:
    """The settings of this user. Never fails."""
    return loaded(SECTION, of_table, lambda why: LaunchDefaults(problems=(why,)), environ)


def of_table(table: Any, path: Path) -> LaunchDefaults:
    """The same of `[launch]`."""
    if not isinstance(table, Mapping):
        return LaunchDefaults(problems=(no_section(path, SECTION),))
    problems = strangers(path, SECTION, table, KEYS, f"there are {' and '.join(KEYS)}")
    values = {}
    for key in KEYS:
        value = table.get(key, "")
        if value == "" or (isinstance(value, str) and _FITS[key].fullmatch(value)):
            values[key] = value
        else:
            problems.append(f"{path}: {SECTION}.{key} has to be {WANTS[key]}")
    return LaunchDefaults(**values, problems=tuple(problems))


def kind_of(place: str) -> str:
    """ "local", "sky" or "hosts": what a place of the form is."""
    word = place.split()[0].rstrip(":") if place.split() else LOCAL
    return word if word in (LOCAL, HOSTS) else SKY
