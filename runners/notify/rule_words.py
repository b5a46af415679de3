"""The notification rules, and the words that select them: `team:hang,gave-up`, `phone:-straggler`. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ...presets.sanitize import quoted
from ...presets.spelling import nearest_or_all
from ..run.errors import RunError

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
"""Rule → the condition, in the order of the list."""
TIMED: Mapping[str, float | None] = {"gpus-idle": 30.0, "checkpoint-overdue": None}
"""Rules with minutes → the default, or None for a limit from the run's usual behaviour."""
LAST = ("gave-up", "succeeded")
"""Rules for the end of a run, which have no rate limit."""
ALL, OFF = "all", "off"
MOST_MINUTES = 10080.0
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}")
"""Valid names of channels."""

Minutes = Mapping[str, float | None]
"""Enabled rules → minutes, or None for rules without minutes and for the usual behaviour."""


class ChosenChannel(NamedTuple):
    """One channel and its enabled rules."""

    channel: str
    rules: Minutes

    @property
    def word(self) -> str:
        """Return the form that a plan keeps and that `chosen` reads."""
        return f"{self.channel}:{rules_word(self.rules)}"


def every_rule() -> Minutes:
    """Return all rules, the default."""
    return {name: TIMED.get(name) for name in RULES}


def rules_word(rules: Minutes) -> str:
    """Return "all", or the enabled rules: "hang,gpus-idle=20"."""
    if rules == every_rule():
        return ALL
    words = [_word(name, minutes) for name, minutes in rules.items()]
    return ",".join(words)


def _word(name: str, minutes: float | None) -> str:
    if minutes is None or minutes == TIMED[name]:
        return name
    return f"{name}={minutes:g}"


def rules_of(words: Sequence[str], where: str, basis: Minutes | None = None) -> Minutes:
    """Return the rules that the words name, or `basis` without the rules after a minus. Raises RunError."""
    words = [word.strip() for word in words if word.strip()]
    if not words:
        raise RunError(f"{where} names no rule: write all, or some of {', '.join(RULES)}")
    has_minus = {word.startswith("-") for word in words}
    if has_minus == {True}:
        return _without(words, where, every_rule() if basis is None else basis)
    if len(has_minus) > 1:
        raise RunError(
            f"{where}: rules to have and rules to leave out (-) exclude each other: write one kind"
        )
    rules: dict[str, float | None] = {}
    for word in words:
        if word == ALL:
            rules.update(every_rule())
        else:
            name, minutes = _named(word, where)
            rules[name] = minutes
    return {name: rules[name] for name in RULES if name in rules}


def _without(words: Sequence[str], where: str, basis: Minutes) -> Minutes:
    """Return `basis` without the rules that the words with a minus name. Raises RunError."""
    left_out = {_named(word[1:], where)[0] for word in words}
    rules = {name: minutes for name, minutes in basis.items() if name not in left_out}
    if not rules:
        raise RunError(f"{where} leaves no rule: leave the channel out instead")
    return rules


def _named(word: str, where: str) -> tuple[str, float | None]:
    """Return the rule of a word, and its minutes. Raises RunError."""
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
        raise RunError(f"{where}: {quoted(text)} is not a number of minutes: write one as in {name}=30")
    return name, minutes


def split_word(word: str, where: str = "--notify") -> tuple[str, list[str] | None]:
    """Split `team:hang,gave-up` into channel and rules, or None without rules. Raises RunError."""
    channel, colon, rules = word.partition(":")
    if not NAME.fullmatch(channel) or "://" in word:
        # The word is not quoted: it may be an address that is secret.
        raise RunError(
            f"{where} takes the name of a channel, as in team or team:hang,gave-up: write an address into "
            "[notify.channels.NAME] of settings.toml, since `ps` shows the arguments of a command"
        )
    return channel, rules.split(",") if colon else None


def chosen(plan_words: Iterable[str]) -> list[ChosenChannel]:
    """Parse the words of a plan. Unknown words of another version are skipped."""
    channels = []
    for word in plan_words:
        if word == OFF:
            continue
        try:
            channel, rules = split_word(word)
            channels.append(ChosenChannel(channel, rules_of(rules or [ALL], "")))
        except RunError:
            continue
    return channels


def called(plan_words: Iterable[str]) -> list[ChosenChannel]:
    """Return the channels that send notifications.

    The cockpit rings the terminal, because it knows if a user is active.
    """
    return [each for each in chosen(plan_words) if each.channel != "terminal"]
