"""The declaration of one option of a launch. `presets/request.py` has the options. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

PLANS = ("launch", "plan", "lint")
"""Verbs that take a preset and a script."""
ALL = (*PLANS, "exec")
STARTS = ("launch", "exec")
DOCTOR = (*PLANS, "doctor")
CANDIDATES = (*PLANS, "candidates")

RUN, HOSTS, NODES = "", "hosts of your own", "nodes through SkyPilot"
"""Headings in `--help`."""
ABOUT = {
    HOSTS: "reached via ssh; they need nothing but Python",
    NODES: "with --on sky (the cheapest), or --on PLACE",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchOption:
    """One option of a launch, for all front ends."""

    flags: tuple[str, ...]
    takes: str
    """Placeholder of its value, or "" for a switch."""
    help: str
    """Lower case, without a final period. `--help` prints it. The form and the documentation print it with `more`."""
    verbs: tuple[str, ...] = ALL
    heading: str = RUN
    repeat: bool = False
    parse: str = ""
    """argparse's parser of its value: "cap", "count", "seconds", "minutes" or "port", or "" for plain text."""
    read: str = ""
    """Conversion to the field's value: a name of `READERS` in runners/launch/words.py."""
    opens: bool = False
    """True if it executes a program or opens a file. A read-only MCP server refuses it."""
    more: str = ""
    """A sentence for the documentation, and for the form if there is a `label`."""
    alone: bool = False
    """True if it replaces preset and script."""
    form: str = ""
    """The equivalent field of LaunchForm, or "" for one of `LaunchForm.options`."""
    label: str = ""
    """Label of its row in the form, or "" for its flag, further down under "options"."""
    example: str = ""
    """Text of the form for an empty field."""

    @property
    def name(self) -> str:
        """Return the name in `argparse`: "nproc_per_node"."""
        return next(flag for flag in self.flags if flag.startswith("--"))[2:].replace("-", "_")

    @property
    def summary(self) -> str:
        """Return the line of `--help`."""
        return f"{self.help}; repeatable" if self.repeat else self.help

    @property
    def sentences(self) -> str:
        """Return the line of the documentation."""
        first = f"{self.help[0].upper()}{self.help[1:]}."
        return f"{first} {self.more}" if self.more else first

    @property
    def plain_sentences(self) -> str:
        """Return the line of the form, with the file for each link to a page."""
        return re.sub(r"\[[^]]*\]\(([\w.]+)[^)]*\)", r"docs/\1", self.sentences)


SSH_CONFIG = LaunchOption(
    flags=("--ssh-config",),
    takes="FILE",
    help="ssh configuration to use instead of ~/.ssh/config",
    verbs=(*DOCTOR, "ls", "attach"),
    heading=HOSTS,
    opens=True,
)
"""Also an option of verbs that launch nothing. They do not load the other options, which takes as long as `--help`."""
