"""Level of a log line (none, information, warning, error), for its colour and for "next error". Pure."""

from __future__ import annotations

import enum
import re
from typing import NamedTuple


class Level(enum.IntEnum):
    """Importance of a line."""

    NONE = 0
    INFO = 1
    WARN = 2
    ERROR = 3


class LevelRule(NamedTuple):
    """A pattern, and words: every matching line contains at least one of them.

    The words come first because a word search takes a hundredth of a pattern search. Without words, the pattern
    is tried at the beginning of every line.
    """

    level: Level
    words: tuple[str, ...]
    pattern: re.Pattern[str]


def _rule(level: Level, pattern: str, *words: str) -> LevelRule:
    return LevelRule(level, words, re.compile(pattern))


# `[rank0]:` is torch's prefix of each line of a rank's traceback. `E1120 12:00:00` is the prefix of glog and
# of torch's own loggers: letter of the level, month and day.
_RANK = r"^(?:\[rank\d+\]:?\s*)?"
_SIGNALS = r"Signal \d+ \(SIG[A-Z]+\)|Segmentation fault|\bBus error\b|\bcore dumped\b|^Killed$"

RULES = (
    _rule(Level.INFO, r"NCCL (?:INFO|ATTN|TRACE)", "NCCL INFO", "NCCL ATTN", "NCCL TRACE"),
    _rule(Level.WARN, r"NCCL WARN", "NCCL WARN"),
    _rule(Level.ERROR, _RANK + r"\[?[EF]\d{4} \d\d:\d\d:"),
    _rule(Level.WARN, _RANK + r"\[?W\d{4} \d\d:\d\d:"),
    _rule(Level.INFO, _RANK + r"\[?I\d{4} \d\d:\d\d:"),
    _rule(Level.ERROR, r"Traceback \(most recent call last\)", "Traceback"),
    _rule(
        Level.ERROR,
        _RANK + r"[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|SystemExit)(?::|\s*$)",
        *("Error", "Exception", "Interrupt", "SystemExit"),
    ),
    _rule(Level.ERROR, r"\b(?:ERROR|FATAL|CRITICAL)\b", "ERROR", "FATAL", "CRITICAL"),
    _rule(Level.ERROR, r"\b(?:CUDA|NCCL|cuDNN|CUBLAS) error\b|CUDA out of memory", " error", "CUDA out"),
    _rule(Level.ERROR, r"\bnccl(?:System|Internal|Remote|UnhandledCuda)Error\b", "nccl"),
    _rule(
        Level.ERROR, r"Watchdog caught collective operation timeout|ChildFailedError", "Watchdog", "ChildF"
    ),
    _rule(Level.ERROR, r"\bfailed \(exitcode: -?\d+\)", "exitcode"),
    _rule(Level.ERROR, _SIGNALS, "Signal", "fault", "Bus error", "core dumped", "Killed"),
    _rule(
        Level.ERROR, r"terminate called|oom-kill|Fatal Python|\bAborted\b", "term", "oom-", "Fatal", "Abort"
    ),
    _rule(Level.ERROR, r"device-side assert", "device-side"),
    _rule(Level.WARN, r"Warning:|\bWARN(?:ING)?\b|\b[Dd]eprecated\b", "Warning:", "WARN", "eprecated"),
    _rule(Level.INFO, r"\bINFO\b", "INFO"),
)
"""The leftmost match in a line decides: writers put the level before the message, so a line that NCCL or a
logger marks as INFO stays INFO, whatever it quotes. At one position the earlier rule wins."""

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
