"""The shown part of a run's logs: the choice of rank, stream and pattern, and a place to load. Pure."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping

from msgspec import Struct

from ...runners.run.log_files import STREAMS, LogFile, command_id, file_id, parse_file_id
from ...runners.run.state import RunState
from .frame import fit_name

SERVICES = ("launch", "service")
"""Streams of a run on several nodes: SkyPilot's log, and the logs of runners, agents and the hub."""

LAUNCH_LOG = "launch.log"

_FOREIGN = re.compile(r".*rank-(?P<rank>\d+)[^/]*\.(?P<stream>out|err|nccl)")


class Selection(Struct, frozen=True):
    """The filter of the pane."""

    rank: int | None = None
    stream: str = "all"
    pattern: str = ""
    only_hits: bool = True
    """Whether lines without a hit are left out."""

    @property
    def filters(self) -> bool:
        """Whether there is a pattern, and lines without a hit are left out."""
        return bool(self.pattern) and self.only_hits


def choices(state: RunState) -> list[str]:
    """Return the streams that the stream key cycles through."""
    streams = ["all", *STREAMS]
    if LAUNCH_LOG in state.log_sizes:
        streams.append("launch")
    if state.merged:
        streams.append("service")
    return streams


def chosen_title(chosen: Selection, launching: bool = False) -> str:
    """Return rank, stream and pattern of the selection."""
    parts = []
    if chosen.stream == "service":
        parts.append("agents and runners")
    elif chosen.stream == "launch" or (launching and chosen.rank is None and chosen.stream == "all"):
        parts.append(LAUNCH_LOG)
    else:
        parts.append("all ranks" if chosen.rank is None else f"rank {chosen.rank}")
        if chosen.stream != "all":
            parts.append(chosen.stream)
    if chosen.pattern:
        parts.append(f"/{chosen.pattern}/" if chosen.only_hits else f"/{chosen.pattern}/ in context")
    return " · ".join(parts)


def label_of(file: LogFile, nodes: Mapping[int, str] | None = None) -> str:
    """Return `r3 err`, `r3` for stdout, `command`, `runner`; with the node in front if `nodes` has several."""
    who = f"r{file.rank}" if file.rank is not None else file.source
    text = who if file.stream in ("out", "log") else f"{who} {file.stream}"
    if "/" not in file.id or nodes is None or len(nodes) < 2 or file.node not in nodes:
        return text
    return f"{fit_name(nodes[file.node], node_width(nodes))} {text}"


LARGE = 100 << 20
"""Minimum bytes for the size of logs to be shown."""


def large_size(state: RunState, files: Container[str] | None = None) -> int:
    """Return the bytes of these logs (ids), or of all known logs, if they are large; else 0."""
    size = sum(size for name, size in state.log_sizes.items() if files is None or name in files)
    return size if size >= LARGE else 0


def node_width(nodes: Mapping[int, str]) -> int:
    """Return the width of a node's name in front of a line."""
    return min(8, max(map(len, nodes.values()), default=0))


def smart_case(pattern: str) -> str:
    r"""Make a pattern without capitals ignore case, as ripgrep does. Escapes such as `\S` do not count."""
    letters = re.sub(r"\\.", "", pattern)
    return f"(?i){pattern}" if pattern and letters.islower() and not pattern.startswith("(?") else pattern


def named(name: str) -> LogFile | None:
    """Return the file of an id; ids of jobs that distui did not start contain only rank and stream."""
    file = parse_file_id(name)
    if file is not None:
        return file
    match = _FOREIGN.fullmatch(name)
    return LogFile(name, "rank", match["stream"], rank=int(match["rank"])) if match else None


def files_for(state: RunState, rank: int | None, stream: str) -> list[LogFile]:
    """Return the files of all attempts for this rank (None: all) and stream ("all": every stream).

    Files of the current attempt that no agent has reported yet follow from the layout.
    """
    seen = list(filter(None, map(named, state.log_sizes)))
    if stream in SERVICES:
        return _services(seen, stream)
    if state.merged and rank is None and not state.attempt:  # before the first rank
        return _services(seen, "launch" if stream == "all" else "service")
    files = _foreign_files(seen) or _own_files(state, seen)
    return _sorted(file for file in files if rank in (None, file.rank) and stream in ("all", file.stream))


def _services(seen: Iterable[LogFile], stream: str) -> list[LogFile]:
    """Return the launch log, or the logs of runners, agents and hub of a run on several nodes."""
    if stream == "launch":
        return [LogFile(LAUNCH_LOG, "launch", "log")]
    return _sorted(file for file in seen if file.source in ("runner", "agent"))


def _foreign_files(seen: Iterable[LogFile]) -> list[LogFile]:
    """Return the files of a job that distui did not start."""
    return [file for file in seen if file.attempt is None and file.source == "rank"]


def _own_files(state: RunState, seen: Iterable[LogFile]) -> list[LogFile]:
    """Return the files of a run that distui started. Empty files of earlier attempts stay empty and are left out."""
    begun = {attempt.number for attempt in state.attempts}
    files = _expected(state)
    for file in seen:
        if file.attempt == state.attempt or (file.attempt in begun and state.log_sizes[file.id]):
            files.append(file)
    if state.merged:
        files += [file for file in seen if file.source == "runner"]
    elif state.agent_pid is not None:
        files.append(LogFile("runner.log", "runner", "log"))
    return files


def _sorted(files: Iterable[LogFile]) -> list[LogFile]:
    return sorted({file.id: file for file in files}.values(), key=lambda file: file.order)


def _expected(state: RunState) -> list[LogFile]:
    """Return the files of ranks and command that the layout of a run names."""
    if not state.attempt:
        return []
    names = [
        file_id(rank.place.node, state.attempt, number, stream)
        for number, rank in state.ranks.items()
        for stream in STREAMS
    ]
    if state.plan is not None and state.plan.launcher == "command":
        names += [command_id(state.attempt, stream) for stream in ("out", "err")]
    return list(filter(None, map(parse_file_id, names)))


class Jump(Struct, frozen=True):
    """A place in the log: a time, or a line if its file is known; Jump() is the first line."""

    at: float = 0.0
    """Unix seconds; 0.0 if unknown."""
    ends: bool = False
    """Whether the lines before `at` are wanted, those of a moment in the past."""
    file: str = ""
    offset: int = 0
