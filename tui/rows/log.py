"""Log lines as rows, and which files a choice of rank and stream means. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ...runners.logs.follow import Level
from ...runners.logs.log_files import STREAMS, LogFile, command_id, file_id, parse_file_id
from ...runners.state import RunState
from . import glyphs
from .frame import fit_name
from .glyphs import Cell, Row, fit

SERVICES = ("launch", "service")
"""Of a run on several nodes: the log of SkyPilot, and the logs of runners, agents and the hub."""

LAUNCH_LOG = "launch.log"

_SELECTORS = {0xFE0E: None, 0xFE0F: None}
"""Variation selectors of glyphs: terminals do not agree how wide they are."""

_LEVEL = {Level.WARN: (glyphs.WARN, "warn"), Level.ERROR: (glyphs.BAD, "bad")}
_FOREIGN = re.compile(r".*rank-(?P<rank>\d+)[^/]*\.(?P<stream>out|err|nccl)")


class LogLine(NamedTuple):
    """One line, cleaned."""

    text: str
    label: str
    """Who wrote it, short: `r3 err`; "" for the screen's own lines."""
    level: Level


@dataclass(frozen=True, slots=True)
class Selection:
    """What the pane shows."""

    rank: int | None = None
    stream: str = "all"
    pattern: str = ""
    only_hits: bool = True
    """Whether lines without a hit are left out."""


def choices(state: RunState) -> tuple[str, ...]:
    """What the stream key goes through."""
    launch = ("launch",) if LAUNCH_LOG in state.log_sizes else ()
    return ("all", *STREAMS, *launch, *(("service",) if state.merged else ()))


def chosen_title(chosen: Selection, launching: bool = False) -> str:
    """Whose lines, of which stream, with which pattern."""
    who = "all ranks" if chosen.rank is None else f"rank {chosen.rank}"
    stream = "" if chosen.stream == "all" else f" · {chosen.stream}"
    if chosen.stream in SERVICES or (launching and chosen.rank is None and not stream):
        who, stream = {"service": "agents and runners"}.get(chosen.stream, LAUNCH_LOG), ""
    pattern = f" · /{chosen.pattern}/" if chosen.pattern else ""
    if pattern and not chosen.only_hits:
        pattern += " in context"
    return who + stream + pattern


def label_of(file: LogFile, nodes: Mapping[int, str] | None = None) -> str:
    """`r3 err`, `r3` for stdout, `command`, `runner`; with the node in front where there are `nodes`."""
    who = f"r{file.rank}" if file.rank is not None else file.source
    text = who if file.stream in ("out", "log") else f"{who} {file.stream}"
    if "/" not in file.id or nodes is None or len(nodes) < 2 or file.node not in nodes:
        return text
    return f"{fit_name(nodes[file.node], node_width(nodes))} {text}"


def node_width(nodes: Mapping[int, str]) -> int:
    """Columns of a node's name in front of a line."""
    return min(8, max(map(len, nodes.values()), default=0))


def named(name: str) -> LogFile | None:
    """The file of an id; ids of jobs that distui did not start only name rank and stream."""
    file = parse_file_id(name)
    if file is not None:
        return file
    match = _FOREIGN.fullmatch(name)
    return LogFile(name, "rank", match["stream"], rank=int(match["rank"])) if match else None


def files_for(state: RunState, rank: int | None, stream: str) -> list[LogFile]:
    """The files of the current attempt that hold this rank (None: all) and stream ("all": every one).

    Files that nobody reported yet are named by the layout, so that a finished run can be read too.
    """
    seen = [file for name in state.log_sizes if (file := named(name)) is not None]
    foreign = [file for file in seen if file.attempt is None and file.source == "rank"]
    files = foreign or [*_expected(state), *(file for file in seen if file.attempt == state.attempt)]
    if stream in SERVICES or (state.merged and rank is None and not state.attempt):
        return _services(state, "launch" if stream == "all" else stream)
    if rank is None and stream == "all" and not foreign:
        own = LogFile("runner.log", "runner", "log")
        if state.merged or state.agent_pid is not None:  # else it is watched: distui started no runner
            files += _services(state, "runner") if state.merged else [own]
    chosen = {
        file.id: file
        for file in files
        if (rank is None or file.rank == rank) and (stream == "all" or file.stream == stream)
    }
    return sorted(chosen.values(), key=lambda file: file.order)


def _services(state: RunState, which: str) -> list[LogFile]:
    """Of a run on several nodes: launch.log, or the logs of runners, or those of the agents and the hub as well."""
    if which == "launch":
        return [file for file in (parse_file_id(LAUNCH_LOG),) if file is not None]
    seen = [file for name in state.log_sizes if (file := parse_file_id(name)) is not None]
    wanted = ("runner",) if which == "runner" else ("runner", "agent")
    return sorted((file for file in seen if file.source in wanted), key=lambda file: file.order)


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
    text = line.text if line.text.isascii() else line.text.translate(_SELECTORS)
    body = "text" if line.label else "dim"
    text_style = {Level.WARN: "warn", Level.ERROR: "bad"}.get(line.level, body)
    return (*cells, *_with_hits(text, text_style, pattern))


def _with_hits(text: str, style: str, pattern: re.Pattern[str] | None) -> Sequence[Cell]:
    if pattern is None:
        return ((text, style),)
    cells: list[Cell] = []
    at = 0
    for match in pattern.finditer(text):
        if match.end() == match.start():
            continue
        cells += [(text[at : match.start()], style), (match.group(), "hit")]
        at = match.end()
    return [cell for cell in (*cells, (text[at:], style)) if cell[0]] or [("", style)]


def common(old: list[LogLine], new: list[LogLine]) -> int:
    """How many lines at the front are the very same."""
    count = min(len(old), len(new))
    if count and old[count - 1] is new[count - 1] and old[0] is new[0]:
        return count
    return next((at for at in range(count) if old[at] is not new[at]), count)
