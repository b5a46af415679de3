"""Level of a log line (none, information, warning, error), for its colour and for "next error". Pure."""

from __future__ import annotations

import enum
import re
import tomllib
from importlib import resources
from typing import NamedTuple


class Level(enum.IntEnum):
    """Importance of a line."""

    NONE = 0
    INFO = 1
    WARN = 2
    ERROR = 3


class LevelRule(NamedTuple):
    """A row of levels.toml."""

    level: Level
    words: tuple[str, ...]
    pattern: re.Pattern[str]


def _rule(level: str, pattern: str, *words: str) -> LevelRule:
    ranked = pattern.replace("<RANK>", r"^(?:\[rank\d+\]:?\s*)?")
    return LevelRule(Level[level.upper()], words, re.compile(ranked))


_TABLE = tomllib.loads(resources.files(__package__).joinpath("levels.toml").read_text("utf-8"))
RULES = tuple(_rule(*row) for row in _TABLE["rules"])
ALARMS = "|".join(
    f"(?:{rule.pattern.pattern})" if rule.words else f"^(?:{rule.pattern.pattern})"
    for rule in RULES
    if rule.level >= Level.WARN
)
"""Matches every line with the level WARN or ERROR, and some others. `level_of` decides."""

_BY_WORD = tuple((word, place) for place, rule in enumerate(RULES) for word in rule.words)
_ALWAYS = frozenset(place for place, rule in enumerate(RULES) if not rule.words)


def level_of(line: str) -> Level:
    """Return the level of one line of clean text."""
    level, first = Level.NONE, len(line) + 1
    for place in sorted(_ALWAYS.union(place for word, place in _BY_WORD if word in line)):
        rule = RULES[place]
        match = rule.pattern.search(line) if rule.words else rule.pattern.match(line)
        if match and match.start() < first:
            level, first = rule.level, match.start()
    return level
