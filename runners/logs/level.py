"""What a line of a log is: nothing, information, a warning, an error: for its colour and "next error"."""

from __future__ import annotations

import enum
import re
from collections.abc import Sequence


class Level(enum.IntEnum):
    """How much a line matters."""

    NONE = 0
    INFO = 1
    WARN = 2
    ERROR = 3


# `[rank0]:` is what torch writes before each line of a rank's traceback; E1120 12:00:00 is the prefix of
# glog and of torch's own loggers: letter of the level, month and day.
_PREFIX = r"^(?:\[rank\d+\]:?\s*)?"

RULES: tuple[tuple[Level, str], ...] = (
    (Level.INFO, r"NCCL INFO|NCCL TRACE"),
    (Level.WARN, r"NCCL WARN"),
    (Level.ERROR, _PREFIX + r"\[?[EF]\d{4} \d\d:\d\d:"),
    (Level.WARN, _PREFIX + r"\[?W\d{4} \d\d:\d\d:"),
    (Level.INFO, _PREFIX + r"\[?I\d{4} \d\d:\d\d:"),
    (Level.ERROR, r"Traceback \(most recent call last\)"),
    (Level.ERROR, _PREFIX + r"[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|SystemExit)(?::|\s*$)"),
    (Level.ERROR, r"\b(?:ERROR|FATAL|CRITICAL)\b"),
    (Level.ERROR, r"\b(?:CUDA|NCCL|cuDNN|CUBLAS) error\b|CUDA out of memory|\bncclUnhandledCudaError\b"),
    (Level.ERROR, r"\bnccl(?:System|Internal|Remote)Error\b|Watchdog caught collective operation timeout"),
    (Level.ERROR, r"ChildFailedError|\bfailed \(exitcode: -?\d+\)|Signal \d+ \(SIG[A-Z]+\) received"),
    (Level.ERROR, r"Segmentation fault|\bBus error\b|\bcore dumped\b|terminate called|^Killed$|oom-kill"),
    (Level.ERROR, r"Fatal Python error|\bAborted\b|device-side assert"),
    (Level.WARN, r"\b[A-Za-z]*Warning:|\bWARN(?:ING)?\b|\b[Dd]eprecated\b"),
    (Level.INFO, r"\bINFO\b"),
)
"""Level and pattern. The leftmost match of a line decides: a writer names the level before the message, so
what NCCL or a logger calls INFO stays that, whatever it quotes. At one place the earlier rule wins."""

_GROUPS = [f"(?P<L{number}>{pattern})" for number, (_, pattern) in enumerate(RULES)]
_ANY = re.compile("|".join(_GROUPS))
_LEVELS = {f"L{number}": level for number, (level, _) in enumerate(RULES)}

ERROR_GREP = "|".join(pattern for level, pattern in RULES if level is Level.ERROR)
"""Finds every line that may be an error, as the `grep` of a log window; `level_of` has the last word."""


def level_of(line: str) -> Level:
    """Level of one line of clean text."""
    found = _ANY.search(line)
    return _LEVELS[found.lastgroup] if found and found.lastgroup else Level.NONE


def next_of(lines: Sequence[str], start: int, least: Level = Level.ERROR, step: int = 1) -> int | None:
    """Index of the nearest line of at least this level from `start` on, backwards where `step` is -1."""
    stop = len(lines) if step > 0 else -1
    return next((at for at in range(start, stop, step) if level_of(lines[at]) >= least), None)
