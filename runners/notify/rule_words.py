"""The rules by name, and the words that choose among them: `team:hang,gave-up`, `phone:-straggler`. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ...presets.finding import nearest_or_all
from ...presets.sanitize import quoted
from ..errors import RunError

RULES: Mapping[str, str] = {
    "first-step": "an attempt has made its first step",
    "hang": "ranks hang, or do not come together",
    "straggler": "the ranks wait for a slow one, step after step",
    "restarted": "an attempt failed, and the next one starts",
    "gave-up": "the run failed, and nothing restarts it",
    "succeeded": "the run has succeeded",
    "gpus-idle": "GPUs of the run are idle for MINUTES",
    "checkpoint-overdue": "no checkpoint for MINUTES; without them, for twice as long as usual",
    "loss-nan": "the loss is NaN or infinite",
    "disk": "the disk of the run directory, or of the checkpoints, is nearly full, or full",
    "spot-notice": "the provider takes nodes back, or SkyPilot recovers the job on others",
}
"""In the order in which they are listed, each with when it holds."""
TIMED: Mapping[str, float | None] = {"gpus-idle": 30.0, "checkpoint-overdue": None}
"""Rules that take minutes, and how many they are where none are given; None: by what is usual in the run."""
LAST = ("gave-up", "succeeded")
"""Rules about the end of a run: no rate limit holds their notices back."""
ALL, OFF = "all", "off"
MOST_MINUTES = 10080.0
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}")
"""Of a way."""

Minutes = Mapping[str, float | None]
"""Rules that are on, each with its minutes; None where it takes none, or goes by what is usual."""


class ChosenWay(NamedTuple):
    """One way and the rules that are on for it."""

    way: str
    rules: Minutes

    @property
    def word(self) -> str:
        """As a plan keeps it; `chosen` reads it."""
        return f"{self.way}:{rules_word(self.rules)}"


def every_rule() -> Minutes:
    """All rules, as they are where nobody chose."""
    return {name: TIMED.get(name) for name in RULES}


def rules_word(rules: Minutes) -> str:
    """ "all", or the rules that are on: "hang,gpus-idle=20"."""
    if rules == every_rule():
        return ALL
    words = [_word(name, rules[name]) for name in RULES if name in rules]
    return ",".join(words)


def _word(name: str, minutes: float | None) -> str:
    return name if minutes is None or minutes == TIMED[name] else f"{name}={minutes:g}"


def rules_of(words: Sequence[str], where: str, basis: Minutes | None = None) -> Minutes:
    """The rules that the words mean: those that they name, or `basis` without those behind a minus. Raises RunError."""
    words = [word.strip() for word in words if word.strip()]
    if not words:
        raise RunError(f"{where} names no rule: write all, or some of {', '.join(RULES)}")
    less = [word for word in words if word.startswith("-")]
    if less and len(less) < len(words):
        raise RunError(
            f"{where}: rules to have and rules to leave out (-) exclude each other: write one kind"
        )
    if less:
        left_out = {_named(word[1:], where)[0] for word in less}
        start = every_rule() if basis is None else basis
        rules = {name: minutes for name, minutes in start.items() if name not in left_out}
        if not rules:
            raise RunError(f"{where} leaves no rule: leave the way out instead")
        return rules
    rules = {}
    for word in words:
        rules.update(every_rule() if word == ALL else dict([_named(word, where)]))
    return {name: rules[name] for name in RULES if name in rules}


def _named(word: str, where: str) -> tuple[str, float | None]:
    name, equals, text = word.partition("=")
    if name not in RULES:
        raise RunError(f"{where}: there is no rule {quoted(name)}{nearest_or_all(name, RULES)}")
    if not equals:
        return name, TIMED.get(name)
    if name not in TIMED:
        raise RunError(f"{where}: {name} takes no minutes: leave {quoted(f'={text}')} out")
    try:
        minutes = float(text)
    except ValueError:
        minutes = 0.0
    if not 0 < minutes <= MOST_MINUTES:
        raise RunError(f"{where}: {quoted(text)} is no number of minutes: write one as in {name}=30")
    return name, minutes


def split_word(word: str, where: str = "--notify") -> tuple[str, list[str] | None]:
    """`team:hang,gave-up` → the way and its rules; None where none are named. Raises RunError."""
    way, colon, rules = word.partition(":")
    if not NAME.fullmatch(way) or "://" in word:
        # What was typed is not quoted: it may be an address that is a secret.
        raise RunError(
            f"{where} takes the name of a way, as in team or team:hang,gave-up: an address belongs into "
            "[notify.ways.NAME] of settings.toml, as `ps` shows the arguments of a command"
        )
    return way, rules.split(",") if colon else None


def chosen(plan_words: Iterable[str]) -> list[ChosenWay]:
    """What a plan keeps, read again; words of another version that mean nothing here are passed over."""
    ways = []
    for word in plan_words:
        if word == OFF:
            continue
        try:
            way, rules = split_word(word)
            ways.append(ChosenWay(way, rules_of(rules or [ALL], "")))
        except RunError:
            continue
    return ways


def called(plan_words: Iterable[str]) -> list[ChosenWay]:
    """Those on which notices are sent. The cockpit rings the terminal: it knows whether somebody sits there."""
    return [each for each in chosen(plan_words) if each.way != "terminal"]
