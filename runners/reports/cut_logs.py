"""The part of a long log that goes into a bundle: its beginning and its end, and a line in place of the rest. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from ..logs import line_times

HEAD = 256 << 10
"""Bytes from a log's beginning."""
ALL_LOGS = 1 << 30
"""Maximum bytes of all logs' ends together; many logs get less each."""
LEAST_TAIL = 64 << 10


def tail_of(wanted: int, files: int) -> int:
    """Bytes from the end of each log, for this number of logs."""
    return min(wanted, max(LEAST_TAIL, ALL_LOGS // max(files, 1)))


@dataclass(frozen=True, slots=True)
class Span:
    """A range of a file, in bytes."""

    begin: int
    end: int


def spans(size: int, tail: int) -> list[Span]:
    """Ranges of a file to include: the whole file, or its beginning and its end."""
    return [Span(0, size)] if size <= HEAD + tail else [Span(0, HEAD), Span(size - tail, size)]


def marker(begin: int, end: int, size: int) -> bytes:
    """Line in place of omitted bytes."""
    return (
        f"[distui export left out {end - begin:,} bytes here: {begin:,} to {end:,} of {size:,}]\n".encode()
    )


def joined(pieces: list[tuple[int, bytes]], size: int) -> tuple[bytes, bool]:
    """Join pieces (offset, bytes) into one text with markers, and return it with whether it was cut."""
    text, at, cut = b"", 0, False
    for begin, data in pieces:
        if begin > at:
            text += (b"\n" if text and not text.endswith(b"\n") else b"") + marker(at, begin, size)
            cut = True
        elif begin < at:  # a window that begins at a line start repeats bytes
            begin, data = at, data[at - begin :]
        text += data
        at = begin + len(data)
    return text, cut


def placed(pieces: list[tuple[int, bytes]], size: int) -> list[line_times.CutPiece]:
    """Position of each piece in the text of `joined`. Pure."""
    return [
        line_times.CutPiece(begin, begin + len(data), len(joined(pieces[:count], size)[0]))
        for count, (begin, data) in enumerate(pieces, 1)
    ]
