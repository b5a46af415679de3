"""Several log files as one stream of lines, for the command line: which files, which lines, who wrote each.

Pure: windows in, lines out; the caller reads.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from ..wire.link import Window
from .clean import clean_line
from .files import LogError, LogFile

CARRY = 1 << 20
"""Bytes of an unfinished line that are kept; more are given as a line of their own."""


def choose(
    files: Iterable[LogFile],
    ranks: Collection[int] = (),
    streams: Collection[str] = ("out", "err"),
    attempt: int | None = None,
    node: int | None = None,
) -> list[LogFile]:
    """The files to show: of the newest attempt, every rank and every node, where none is given.

    `streams` with "log" means runner and agent, which belong to no attempt.
    """
    found = [
        file
        for file in files
        if file.stream in streams
        and (node is None or file.node == node)
        and (not ranks or file.rank in ranks)
        and (attempt is None or file.attempt in (attempt, None))
    ]
    newest = max((file.attempt for file in found if file.attempt is not None), default=None)
    return [file for file in found if file.attempt in (newest, None)]


def compile_grep(text: str) -> re.Pattern[str] | None:
    """The pattern of `--grep`; None for "". Raises LogError."""
    try:
        return re.compile(text) if text else None
    except (re.error, RecursionError, OverflowError) as error:
        raise LogError(f"--grep {text!r} is not a regular expression: {error}") from error


@dataclass(slots=True)
class _Source:
    prefix: str
    next: int
    carry: bytes = b""


class Merge:
    """New lines of several files, in the order in which their windows come in.

    With one file lines stand as they are; with more, `[rank 0] ` goes before each, and `[rank 0 err] `
    where more than one stream is shown.
    """

    def __init__(self, files: Sequence[LogFile], grep: str = "") -> None:
        """Raises LogError for a bad pattern."""
        self._grep = compile_grep(grep)
        self._sources: dict[str, _Source] = {}
        self._prefixes = len(files) > 1
        self._streams = len({file.stream for file in files}) > 1
        for file in files:
            self.add(file)

    def add(self, file: LogFile, start: int = 0) -> None:
        """Follow one more file from byte `start` on (a negative one counts from the end)."""
        inside = f"{file.label} {file.stream}" if self._streams else file.label
        self._sources[file.id] = _Source(f"[{inside}] " if self._prefixes else "", start)

    def wants(self, file: str) -> int:
        """Offset of the next window to ask for."""
        return self._sources[file].next

    def feed(self, window: Window) -> list[str]:
        """The lines that this window completes. Raises LogError where the window says why it has none."""
        if window.error:
            raise LogError(window.error)
        source = self._sources[window.file]
        lines: list[str] = []
        if 0 <= window.size < source.next:
            lines.append(f"{source.prefix}(the file was truncated and begins anew)")
            source.next, source.carry = 0, b""
            return lines
        if window.offset > source.next >= 0:  # of a node that is gone, only pieces may be there
            pieces, source.carry = [source.carry] if source.carry else [], b""
            lines += self._show(source, pieces)
            lines.append(f"{source.prefix}({window.offset - source.next:,} bytes were not kept)")
        known = max(source.next - window.offset, 0) if source.next >= 0 else 0
        pieces = (source.carry + window.data[known:]).split(b"\n")
        source.carry, source.next = pieces.pop(), window.next
        if len(source.carry) > CARRY:
            pieces.append(source.carry)
            source.carry = b""
        return lines + self._show(source, pieces)

    def flush(self) -> list[str]:
        """What stands at the ends of the files without a newline; when nothing more will come."""
        lines: list[str] = []
        for source in self._sources.values():
            if source.carry:
                lines += self._show(source, [source.carry])
            source.carry = b""
        return lines

    def _show(self, source: _Source, pieces: list[bytes]) -> list[str]:
        texts = (clean_line(piece) for piece in pieces)
        return [source.prefix + text for text in texts if not self._grep or self._grep.search(text)]
