"""The last informative lines of waiting or still ranks: warnings, errors, skipped data."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from ...presets.sanitize import clean_line, clean_text
from ...presets.secrets import mask_text
from ..diagnosis.error_lines import is_alive
from ..diagnosis.own_lines import unlike
from ..logs.line_times import TimeRecords
from ..logs.windows import read_window
from ..run.commands import ReadLog
from ..run.log_files import file_id
from ..run.opened_logs import LogError
from ..run.pulse import OwnLine
from ..run.wire.client import Window

READ = 64 << 10
"""Bytes to search at the end of a file."""
MOST, CHARACTERS = 2, 200
"""Most lines per rank, and characters per line."""
WHOLE = 4096
"""Characters of a line to search for secrets before it is cut."""
SHARP_S = 2.0
"""Largest uncertainty, in seconds, of a time that is shown with its line."""
_WARNS = re.compile(
    r"\b(?:WARN(?:ING)?|ERROR|CRITICAL|FATAL)\b|\b\w*(?:Error|Exception|Warning)\b"
    r"|(?i:\b(?:skip|ignor|drop|discard|corrupt|fail|invalid|missing|empty|retry|bad\b|cannot\b|could not\b))"
)


class _Candidate(NamedTuple):
    order: float
    line: OwnLine
    warns: bool


class RankLines:
    """Reads these lines of one node's ranks. A file is read again only after it has grown."""

    def __init__(self, run_dir: Path, node: int, flush: Callable[[str], None]) -> None:
        """`flush` writes the recorded times of a file's lines."""
        self._run_dir, self._node, self._flush = run_dir, node, flush
        self._kept: dict[str, tuple[int, list[_Candidate]]] = {}
        """File → its size, and the lines read."""

    async def of(self, attempt: int, ranks: Mapping[int, float | None]) -> dict[int, tuple[OwnLine, ...]]:
        """Return the lines of each rank with any, oldest first. `ranks`: rank → Unix time of its newest step.

        Lines that other ranks of this node also wrote are left out. Without a warning, stderr since the step is used.
        """
        files = [file_id(self._node, attempt, rank, stream) for rank in ranks for stream in ("err", "out")]
        for file in files:
            self._flush(file)
        read = await asyncio.to_thread(lambda: {file: self._lines(file) for file in files})
        self._kept = {file: each for file, each in read.items() if each is not None}
        return unlike({rank: self._newest(attempt, rank, step) for rank, step in ranks.items()})

    def _newest(self, attempt: int, rank: int, step: float | None) -> tuple[OwnLine, ...]:
        streams = [self._kept.get(file_id(self._node, attempt, rank, name)) for name in ("err", "out")]
        lines = sorted(
            (each for kept in streams if kept is not None for each in kept[1]), key=lambda each: each.order
        )
        warnings = [each.line for each in lines if each.warns]
        since = [each.line for each in lines if step is not None and (each.line.at or 0.0) > step]
        return tuple((warnings or since)[-MOST:])

    def _is_current(self, file: str, size: int, lines: list[_Candidate]) -> bool:
        """Return True if the file has not grown, and its lines have times. Raises OSError."""
        grown = (self._run_dir / file).stat().st_size != size
        return not grown and all(each.line.at is not None for each in lines)

    def _lines(self, file: str) -> tuple[int, list[_Candidate]] | None:
        before = self._kept.get(file)
        try:
            if before is not None and self._is_current(file, *before):
                return before
            window = read_window(self._run_dir, ReadLog(file, -READ))
        except (LogError, OSError):
            return None
        return window.size, _informative(window, file.endswith(".err"))


def _informative(window: Window, errors: bool) -> list[_Candidate]:
    """Return the last warnings, with `errors` also the last other lines, oldest first."""
    times, lines = TimeRecords(window.times), list[_Candidate]()
    counts = {True: 0, False: 0}
    for offset, raw in _backwards(window.data):
        text = clean_line(raw, WHOLE).strip()
        warns = _WARNS.search(text) is not None
        if not text or not (warns or errors) or counts[warns] == MOST or is_alive(text):
            continue
        counts[warns] += 1
        moment = times.of(window.offset + offset)
        shown = clean_text(mask_text(text))[:CHARACTERS]
        at = moment.by if moment.slack <= SHARP_S else None
        lines.append(_Candidate(moment.by or 0.0, OwnLine(shown, at), warns))
        if counts[True] == MOST:
            break
    return lines[::-1]


def _backwards(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield lines with their offsets, the last one first."""
    end = len(data)
    while end > 0:
        begin = data.rfind(b"\n", 0, end) + 1
        yield begin, data[begin:end]
        end = begin - 1
