"""What a line of a log is: nothing, information, a warning, an error: for its colour and "next error"."""

from __future__ import annotations

import enum
import re
from collections.abc import Sequence
from typing import NamedTuple


class Level(enum.IntEnum):
    """How much a line matters."""

    NONE = 0
    INFO = 1
    WARN = 2
    ERROR = 3


class Rule(NamedTuple):
    """A pattern, and the words of which one stands in every line that it matches.

    The words come first because looking for one costs a hundredth of trying a pattern. No words: a pattern
    tried at the beginning of every line.
    """

    level: Level
    words: tuple[str, ...]
    pattern: re.Pattern[str]


def _rule(level: Level, pattern: str, *words: str) -> Rule:
    return Rule(level, words, re.compile(pattern))


# `[rank0]:` is what torch writes before each line of a rank's traceback; E1120 12:00:00 is the prefix of
# glog and of torch's own loggers: letter of the level, month and day.
_RANK = r"^(?:\[rank\d+\]:?\s*)?"
_SIGNALS = r"Signal \d+ \(SIG[A-Z]+\)|Segmentation fault|\bBus error\b|\bcore dumped\b|^Killed$"

RULES = (
    _rule(Level.INFO, r"NCCL (?:INFO|TRACE)", "NCCL INFO", "NCCL TRACE"),
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
"""The leftmost match of a line decides: a writer names the level before the message, so what NCCL or a
logger calls INFO stays that, whatever it quotes. At one place the earlier rule wins."""

_BY_WORD = tuple((word, place) for place, rule in enumerate(RULES) for word in rule.words)
_ALWAYS = frozenset(place for place, rule in enumerate(RULES) if not rule.words)

ERROR_GREP = "|".join(rule.pattern.pattern for rule in RULES if rule.level is Level.ERROR)
"""Finds every line that may be an error, as the `grep` of a log window; `level_of` has the last word."""


def level_of(line: str) -> Level:
    """Level of one line of clean text."""
    level, first = Level.NONE, len(line) + 1
    for place in sorted(_ALWAYS.union(place for word, place in _BY_WORD if word in line)):
        rule = RULES[place]
        found = rule.pattern.search(line) if rule.words else rule.pattern.match(line)
        if found and found.start() < first:
            level, first = rule.level, found.start()
    return level


def next_of(lines: Sequence[str], start: int, least: Level = Level.ERROR, step: int = 1) -> int | None:
    """Index of the nearest line of at least this level from `start` on, backwards where `step` is -1."""
    stop = len(lines) if step > 0 else -1
    return next((at for at in range(start, stop, step) if level_of(lines[at]) >= least), None)
