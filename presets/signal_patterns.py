"""Check the user's patterns of training signals before a launch. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

from .finding import PlanError

FIELDS = (
    "step",
    "total",
    "epoch",
    "epoch_step",
    "epoch_total",
    "loss",
    "lr",
    "grad_norm",
    "tokens_s",
    "samples_s",
    "step_s",
    "mfu",
)
"""Group names with a known meaning. Any other name is a value of the script."""


def checked(patterns: Iterable[str]) -> tuple[str, ...]:
    """Return the patterns. Raises PlanError for an invalid regular expression, or one without a named group."""
    kept = tuple(patterns)
    for text in kept:
        try:
            groups = re.compile(text).groupindex
        except (re.error, RecursionError, OverflowError) as error:
            raise PlanError(f"--signal {text!r} is not a regular expression: {error}") from error
        if not groups:
            raise PlanError(
                f"--signal {text!r} names no group: write what it reads, as in 'loss=(?P<loss>[0-9.]+)'; "
                f"groups are {', '.join(FIELDS)}, or names of your own"
            )
    return kept
