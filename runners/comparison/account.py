"""One side of a comparison as plain data. The machine that has the run creates it and sends it as JSON."""

from __future__ import annotations

from typing import NamedTuple

from msgspec import Struct

from ...presets.plurals import plural

FORMAT = 1
NONE = "none"
CAUSE = "first cause"

SECTIONS: dict[str, str] = {
    "outcome": "outcome",
    "cause": CAUSE,
    "plan": "plan",
    "arguments": "arguments of the script",
    "code": "code",
    "versions": "versions",
    "nodes": "nodes",
    "transports": "transports",
}
"""Titles of the text sections, in order. The environment and the numbers are separate."""

Facts = dict[str, str]
"""Texts by name. A missing name is unknown."""


class RunName(NamedTuple):
    """A user's name for one side: [HOST:]RUN[@ATTEMPT]."""

    host: str
    run: str
    """Name of the run, or path of a bundle."""
    attempt: int | None


class Quantity(Struct, frozen=True, omit_defaults=True):
    """A number of a run, with its number of samples and spread."""

    name: str
    """Metric: "rank.step_s" for a median, "peak:rank.rss" for the largest sample, "last:train.loss" for the last."""
    title: str
    unit: str
    """Unit of the metric."""
    value: float | None
    """None if it is not finite. `text` then has the word."""
    samples: int
    """Number of time buckets with a value."""
    middle: tuple[float, float] | None = None
    """Lower and upper quartile; None if the number is not a median."""
    better: str = ""
    """Direction that is better: "less", "more" or ""."""
    text: str = ""
    """ "NaN", "inf" or "-inf" instead of a value that JSON cannot represent."""


class MetricCurve(Struct, frozen=True, omit_defaults=True):
    """A metric over the time since the beginning of the run or attempt."""

    metric: str
    begin: float
    """Seconds from the beginning to the first bucket."""
    seconds: float
    """Length of a bucket in seconds."""
    mean: tuple[float | None, ...]


class Account(Struct, frozen=True, omit_defaults=True):
    """One side of a comparison."""

    title: str
    """Name for the user: "night", "night@2"."""
    run: str
    state: str
    format: int = FORMAT
    attempt: int | None = None
    """None for the whole run."""
    attempts: int | None = None
    """Number of the run's attempts; None if unknown."""
    live: bool = False
    facts: dict[str, Facts] = {}
    env: dict[str, str] = {}
    """Variables of every rank. The value of a secret one is MASK."""
    env_whole: bool = False
    """Whether `env` is complete, or only has variables that the plan or a restart set."""
    fingerprints: dict[str, str] = {}
    """Fingerprints of its secrets, if they can be compared; see launch_record.py."""
    quantities: tuple[Quantity, ...] = ()
    curves: tuple[MetricCurve, ...] = ()
    gaps: tuple[str, ...] = ()
    """A sentence per missing part, with the reason."""


def gaps_of(account: Account) -> tuple[str, ...]:
    """Return a sentence per missing part of this side."""
    gaps = list(account.gaps)
    if all(quantity.name.startswith("last:") for quantity in account.quantities):
        gaps.append("no metrics are kept of it: its numbers are n/a")
    if not account.env_whole:
        gaps.append("its environment is not recorded beyond what the plan and restarts set")
    if account.attempts and account.attempt is None and account.attempts > 1:
        count = plural(account.attempts, "attempt")
        gaps.append(
            f"its numbers are of all {count}, its environment is that of the newest: NAME@N means one of them"
        )
    return tuple(gaps)
