"""The declaration of a verb, and the argparse parser made from it. `tui/verb_table.py` has the declarations."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any, NamedTuple

from ..presets.launch_option import ABOUT, LaunchOption
from ..runners.launch.option_values import PARSERS

Option = Callable[[argparse._ActionsContainer], object]
"""Adds an option or a positional argument, or several of them, to a parser."""


class Exits(NamedTuple):
    """The exit codes of a verb."""

    codes: tuple[int, ...]
    """Exit codes other than 0, 2, 130 and 141, which every verb may return."""
    failure: str = ""
    """Meaning of exit code 1; "" for the usual one."""


class Verb(NamedTuple):
    """A verb, as used by the command line, `--help`, the man pages and completion."""

    function: str
    """ "module:function" of `tui/verbs/`."""
    about: str
    """Description in lower case, without a final period."""
    options: tuple[Option, ...]
    examples: Mapping[str, str]
    """Three command lines without `distui`, each with a description."""
    exits: Exits = Exits((3,))
    usage: str = ""
    """The usage line of `--help`; "" for argparse's own."""
    list_argument: str = ""
    """The positional argument that takes any number of words, even after options; "" if there is none."""
    has_command: bool = False
    """Whether a script or command may follow after `--`."""
    changes_runs: bool = False
    """Whether it changes an existing run, which --readonly forbids."""
    wants: str = ""
    """Runs that completion offers: "live" or "ended"; "" for all."""


def add_verb(verbs: Any, name: str, verb: Verb) -> None:
    """Add the parser of a verb to `verbs`, the return value of argparse's `add_subparsers`."""
    description = verb.about[0].upper() + verb.about[1:]
    parser: argparse.ArgumentParser = verbs.add_parser(
        name, help=verb.about, description=description, usage=verb.usage or None
    )
    parser.set_defaults(declaration=verb)
    for add_option in verb.options:
        add_option(parser)


def word(name: str, metavar: str | None = None, help: str | None = None, **keywords: Any) -> Option:
    """Return a positional argument; `keywords` are those of `add_argument`."""
    return value(name, metavar, help, **keywords)


def switch(flags: str, help: str, **keywords: Any) -> Option:
    """Return an option without a value."""
    return lambda parser: parser.add_argument(*flags.split(), action="store_true", help=help, **keywords)


def value(flags: str, metavar: str | None, help: str | None, **keywords: Any) -> Option:
    """Return an option with a value."""
    return lambda parser: parser.add_argument(*flags.split(), metavar=metavar, help=help, **keywords)


def values(flags: str, metavar: str | None, help: str, **keywords: Any) -> Option:
    """Return an option with a value that may be repeated."""
    return value(flags, metavar, f"{help}; repeatable", action="append", default=[], **keywords)


def exclusive(*options: Option, required: bool = False) -> Option:
    """Return options that exclude each other."""

    def add(parser: argparse._ActionsContainer) -> None:
        group = parser.add_mutually_exclusive_group(required=required)
        for add_option in options:
            add_option(group)

    return add


def launch_option(flag: str) -> Option:
    """Return an option of the table of launch options."""

    def add(parser: argparse._ActionsContainer) -> None:
        from ..presets.request import option

        of_launch(option(flag))(parser)

    return add


def launch_headings(verb: str, *headings: str) -> Option:
    """Return a verb's launch options under these headings of the table; each heading is a group of `--help`."""

    def add(parser: argparse._ActionsContainer) -> None:
        from ..presets.request import options

        for heading in headings:
            group = parser.add_argument_group(heading, ABOUT[heading]) if heading else parser
            for each in options(verb, heading):
                of_launch(each)(group)

    return add


def of_launch(option: LaunchOption) -> Option:
    """Return a launch option."""
    flags = " ".join(option.flags)
    if not option.takes:
        return switch(flags, option.help)
    if option.repeat:
        return values(flags, option.takes, option.help, type=PARSERS[option.parse])
    return value(flags, option.takes, option.help, type=PARSERS[option.parse])


def names_hosts(options: argparse.Namespace) -> bool:
    """Whether the user named hosts."""
    return options.hosts is not None or options.hostfile is not None


HANDED_OVER = "DISTUI_HANDED_OVER"
"""Variable with values of --env as JSON.

Arguments are visible to every user of the host. A variable under its own name would change distui itself and all
processes that it starts.
"""


def handed_over(environ: MutableMapping[str, str]) -> list[str]:
    """Remove HANDED_OVER from the environment, and return its values as --env options."""
    values: dict[str, str] = json.loads(environ.pop(HANDED_OVER, "{}"))
    return [f"--env={name}={value}" for name, value in values.items()]
