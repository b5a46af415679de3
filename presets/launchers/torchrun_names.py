"""The options of torch's elastic launcher by name (known_names.toml), and those that distui sets itself."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

from ..known_names import known_names

SHORT = {"-r": "redirects", "-t": "tee"}
OWN_LETTERS = frozenset("mrt")
"""Single letters of options that distui sets itself: -m, -r, -t. Values or other letters may follow them."""


@dataclass(frozen=True, slots=True)
class KnownOptions:
    """torchrun's long options. `_` may replace `-`."""

    values: frozenset[str]
    """Options with a value."""
    switches: frozenset[str]
    newer: frozenset[str]
    """Options that torch 2.13 does not have."""
    idle: frozenset[str]
    """Accepted options without effect: they select some of the ranks' output, and distui keeps all output."""
    passed: frozenset[str]
    """Options that are passed on, with the idle ones."""

    @property
    def all(self) -> frozenset[str]:
        return self.values | self.switches

    @property
    def own(self) -> frozenset[str]:
        """Options that distui sets itself, or that break them: after `--run-path`, ranks lack their environment."""
        return self.all - self.passed - self.newer - {"help"}


@functools.cache
def known_options() -> KnownOptions:
    """Return the options of torch 2.7 to 2.15."""
    names = {kind: frozenset(listed) for kind, listed in known_names("torchrun").items()}
    return KnownOptions(**{**names, "passed": names["passed"] | names["idle"]})


def own_option(arguments: Sequence[str]) -> str | None:
    """Return the first of `arguments` that distui sets itself, or None.

    Both `--a-b` and `--a_b` count, and so do argparse's short forms: prefixes, and single letters with their value.
    """
    for argument in arguments:
        name = argument.split("=", 1)[0]
        if name.startswith("--"):
            option = name[2:].replace("_", "-")
            is_own = any(own.startswith(option) for own in known_options().own)
            if option and is_own and option not in known_options().passed:
                return name
        elif name[:1] == "-" and name[1:2] in OWN_LETTERS:
            return name
    return None
