"""Options that a model writes for `plan`, `lint` and `launch`, as unambiguous words for the verb. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from ...presets.launch_option import LaunchOption
from ...presets.request import REQUEST_OPTIONS
from ...presets.request import options as launch_options
from ...presets.spelling import did_you_mean
from ..command_words import dashed
from .answers import Refused

FOR_PEOPLE = ("--try",)
"""Options that the tools do not have: `plan` starts nothing."""
READING = tuple(option for option in REQUEST_OPTIONS.values() if not option.opens)
"""Options of `plan` and `lint` on a read-only server: they neither execute a program nor open a named file."""


def _check_reads_only(flag: str, option: LaunchOption) -> None:
    if option not in READING:
        raise Refused(
            f"{flag} can execute a program or open a file, and this server only reads: "
            "start it with `distui mcp --allow-control`"
        )


def option_words(verb: str, words: Sequence[str], *, control: bool) -> list[str]:
    """Return each option in full, with its value in the same word. Raises Refused.

    `control` allows all options of the verb, otherwise only those of READING.
    """
    table = {flag: option for option in launch_options(verb) for flag in option.flags}
    table = {flag: option for flag, option in table.items() if flag not in FOR_PEOPLE}
    left, written = list(words), list[str]()
    while left:
        flag, equals, value = dashed(left.pop(0)).partition("=")
        if flag not in table:
            hint = f"{did_you_mean(flag, table)} ".lstrip()
            raise Refused(f"{verb} has no option {flag!r}: {hint}write options in full, as --nnodes 2")
        if not control:
            _check_reads_only(flag, table[flag])
        if not table[flag].takes:
            if equals:
                raise Refused(f"{flag} takes no value: leave out ={value}")
            written.append(flag)
            continue
        if not equals:
            if not left:
                raise Refused(f"{flag} needs a value: {flag} {table[flag].takes}")
            value = left.pop(0)
        written.append(f"{flag}={value}")
    return written
