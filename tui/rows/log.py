"""Log lines as rows, and which files a choice of rank and stream means."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from ...runners.logs.files import STREAMS, LogFile, command_id, file_id, parse_file_id
from ...runners.logs.level import Level
from ...runners.state import RunState
from . import glyphs
from .cells import Cell, Row, fit

CHOICES = ("all", *STREAMS)
"""What the stream key goes through."""

_LEVEL = {Level.WARN: (glyphs.WARN, "warn"), Level.ERROR: (glyphs.BAD, "bad")}
_FOREIGN = re.compile(r".*rank-(?P<rank>\d+)[^/]*\.(?P<stream>out|err|nccl)")


class LogLine(NamedTuple):
    """One line, cleaned."""

    text: str
    label: str
    """Who wrote it, short: `r3 err`; "" for the screen's own lines."""
    level: Level


def label_of(file: LogFile) -> str:
    """`r3 err`, `r3` for stdout, `command`, `runner`."""
    who = f"r{file.rank}" if file.rank is not None else file.source
    return who if file.stream in ("out", "log") else f"{who} {file.stream}"


def named(name: str) -> LogFile | None:
    """What a file id says; ids of jobs that distui did not start only name rank and stream."""
    known = parse_file_id(name)
    if known is not None:
        return known
    found = _FOREIGN.fullmatch(name)
    return LogFile(name, "rank", found["stream"], rank=int(found["rank"])) if found else None


def files_for(state: RunState, rank: int | None, stream: str) -> list[LogFile]:
    """The files of the current attempt that hold this rank (None: all) and stream ("all": every one).

    Files that nobody reported yet are named by the layout, so that a finished run can be read too.
    """
    seen = [file for name in state.log_sizes if (file := named(name)) is not None]
    foreign = [file for file in seen if file.attempt is None and file.source == "rank"]
    found = foreign or [*_expected(state), *(file for file in seen if file.attempt == state.attempt)]
    if rank is None and stream == "all" and not foreign:
        found.append(LogFile("runner.log", "runner", "log"))
    chosen = {
        file.id: file
        for file in found
        if (rank is None or file.rank == rank) and (stream == "all" or file.stream == stream)
    }
    return sorted(chosen.values(), key=lambda file: file.order)


def _expected(state: RunState) -> list[LogFile]:
    if not state.attempt:
        return []
    names = [
        file_id(rank.place.node, state.attempt, number, stream)
        for number, rank in state.ranks.items()
        for stream in STREAMS
    ]
    if state.plan is not None and state.plan.launcher == "command":
        names += [command_id(state.attempt, stream) for stream in ("out", "err")]
    return [file for name in names if (file := parse_file_id(name)) is not None]


def log_row(line: LogLine, marked: bool, pattern: re.Pattern[str] | None, label_width: int) -> Row:
    """One line: mark, level, who, text with hits."""
    glyph, style = _LEVEL.get(line.level, (" ", "text"))
    cells: list[Cell] = [(glyphs.MARK if marked else glyph, "accent" if marked else style)]
    if label_width:
        cells.append((fit(line.label, label_width) + " ", "dim"))
    body = "text" if line.label else "dim"
    text_style = {Level.WARN: "warn", Level.ERROR: "bad"}.get(line.level, body)
    return (*cells, *_with_hits(line.text, text_style, pattern))


def _with_hits(text: str, style: str, pattern: re.Pattern[str] | None) -> Sequence[Cell]:
    if pattern is None:
        return ((text, style),)
    cells: list[Cell] = []
    at = 0
    for found in pattern.finditer(text):
        if found.end() == found.start():
            continue
        cells += [(text[at : found.start()], style), (found.group(), "hit")]
        at = found.end()
    return [cell for cell in (*cells, (text[at:], style)) if cell[0]] or [("", style)]
