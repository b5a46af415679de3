"""The log line that a finding, a statement of NCCL or a failed attempt is based on, whatever its attempt."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from msgspec import Struct

from ..presets.finding import Finding
from ..presets.sanitize import clean_text
from ..runners.logs.levels import ALARMS, Level, level_of
from ..runners.run.log_files import LogFile
from ..runners.run.model import FirstCause
from ..runners.run.state import Attempt, RunState
from .loaded_logs import Reader
from .log_tail import LogTail
from .rows.log import Jump, Selection, files_for, named
from .rows.log_lines import LogLine

_AT = re.compile(r"(?P<file>\S+):(?P<line>\d+): (?P<text>.*)", re.DOTALL)
"""Evidence that is a line of a log."""
_SPECIAL = re.compile(r"[\\.^$*+?{}\[\]|()]")
_LONGEST = 160
"""Maximum characters of a line in the pattern that searches for it."""
_SAME_S = 1.0
"""Maximum seconds between a failure and the beginning of its finding."""


class Source(Struct, frozen=True):
    """The files of a line, the pattern that finds it, and the part of the log to show around it."""

    selection: Selection
    files: tuple[LogFile, ...] = ()
    pattern: str = ""
    is_failure: bool = False
    """Whether the last matching line is wanted, or else the last error. Otherwise the first matching line."""
    at: float = 0.0
    """Unix time to show if no line matches; 0.0 for the end of the log."""


def pattern_of(text: str) -> str:
    """Return a regular expression that finds this line; for a line of NCCL only its message."""
    message = text.partition(" NCCL ")[2] or text
    return _SPECIAL.sub(r"\\\g<0>", message.strip()[:_LONGEST])


def source_of_line(state: RunState, name: str, text: str) -> Source | None:
    """Return the source of a line whose file is known; None if the log pane has no such file."""
    file = named(name)
    if file is None or file.id not in {each.id for each in files_for(state, None, "all")}:
        return None
    stream = "all" if file.rank is None else file.stream
    return Source(Selection(rank=file.rank, stream=stream), (file,), pattern_of(clean_text(text)))


def source_of_findings(
    state: RunState, findings: Sequence[Finding], ranks: tuple[int, ...]
) -> Source | None:
    """Return the source of findings about these ranks: a line of their evidence, a failure, or a rank's log."""
    for finding in findings:
        source = _source_of_evidence(state, finding)
        if source is not None:
            return source
    for finding in findings:
        attempt = attempt_at(state, finding.since)
        if attempt is not None and _is_of_failure(finding, attempt, ranks):
            return source_of_failure(state, attempt)
    return _source_of_rank(state, ranks[0], findings[0].since) if ranks else None


def _source_of_evidence(state: RunState, finding: Finding) -> Source | None:
    """Return the source of the first line of a log in the evidence."""
    for line in finding.evidence:
        place = _AT.fullmatch(clean_text(line))
        source = source_of_line(state, place["file"], place["text"]) if place is not None else None
        if source is not None:
            return source
    return None


def _source_of_rank(state: RunState, rank: int, since: float | None) -> Source:
    """Return the log of a rank: at a time in an earlier attempt, else at its end."""
    is_newest = attempt_at(state, since) is state.newest
    return Source(Selection(rank=rank), at=0.0 if is_newest or since is None else since)


def attempt_at(state: RunState, at: float | None) -> Attempt | None:
    """Return the attempt at a Unix time; the newest if the time is unknown."""
    if at is None:
        return state.newest
    return next((attempt for attempt in reversed(state.attempts) if attempt.began <= at), state.newest)


def _is_of_failure(finding: Finding, attempt: Attempt, ranks: tuple[int, ...]) -> bool:
    cause = attempt.first_cause
    if cause is None or finding.since is None or cause.rank not in ranks:
        return False
    failed = cause.at if cause.at is not None else attempt.ended
    return failed is not None and abs(failed - finding.since) <= _SAME_S


def source_of_failure(state: RunState, attempt: Attempt) -> Source | None:
    """Return the source of the line that raised in an attempt; None if no rank failed."""
    cause = attempt.first_cause
    if cause is None:
        return None
    files = _files_of(state, attempt, cause.rank)
    selection = Selection() if any(file.rank is None for file in files) else Selection(rank=cause.rank)
    at = cause.at or attempt.ended or attempt.began
    return Source(selection, files, _raised(cause), is_failure=True, at=at)


def _files_of(state: RunState, attempt: Attempt, rank: int) -> tuple[LogFile, ...]:
    """Return stdout and stderr of a rank in an attempt; without ranks, those of the command."""
    files = [file for file in files_for(state, None, "all") if file.attempt == attempt.number]
    of_rank = tuple(file for file in files if file.rank == rank and file.stream != "nccl")
    return of_rank or tuple(file for file in files if file.source == "command")


def _raised(cause: FirstCause) -> str:
    """Return the pattern of the last error in the last lines of a rank; "" if there is none."""
    lines = map(clean_text, reversed(cause.last_lines))
    return next((pattern_of(line) for line in lines if level_of(line) is Level.ERROR), "")


async def find_line(read: Reader, state: RunState, source: Source) -> LogLine | None:
    """Return the line; None if it is not in the logs any more. Raises LinkError."""
    if source.pattern:
        matches = re.compile(source.pattern).search
        found = await _find(read, state, source, source.pattern, lambda line: bool(matches(line.text)))
        if found is not None or not source.is_failure:
            return found
    return await _find(read, state, source, ALARMS, lambda line: line.level is Level.ERROR)


async def _find(
    read: Reader, state: RunState, source: Source, pattern: str, wanted: Callable[[LogLine], bool]
) -> LogLine | None:
    """Return the last wanted line of the files for a failure, else the first one."""
    if not source.files:
        return None
    logs, from_end = LogTail(read, source.files), source.is_failure
    logs.take_attempts(state.attempts, state.log_sizes)
    await (logs.begin() if from_end else logs.begin_at(Jump()))
    hits = list(filter(wanted, (*logs.lines, *logs.unfinished.values())))
    if hits:
        return hits[-1] if from_end else hits[0]
    return await logs.find(pattern, wanted, from_end, lambda share: None, from_end)
