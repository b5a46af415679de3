"""How much of a log goes into a bundle: its beginning, its end, and a line that says what lies between. Pure."""

from __future__ import annotations

from dataclasses import dataclass

HEAD = 256 << 10
"""Bytes of a log's beginning."""
ALL_LOGS = 1 << 30
"""Bytes that the ends of all logs may have together; where they are many each is given less."""
LEAST_TAIL = 64 << 10


def tail_of(wanted: int, files: int) -> int:
    """Bytes of the end of each of so many logs."""
    return min(wanted, max(LEAST_TAIL, ALL_LOGS // max(files, 1)))


@dataclass(frozen=True, slots=True)
class Span:
    """A piece of a file, in bytes."""

    begin: int
    end: int


def spans(size: int, tail: int) -> list[Span]:
    """The pieces that are taken of a file: all of it, or its beginning and its end."""
    return [Span(0, size)] if size <= HEAD + tail else [Span(0, HEAD), Span(size - tail, size)]


def marker(begin: int, end: int, size: int) -> bytes:
    """The line that stands for what is left out."""
    return (
        f"[distui export left out {end - begin:,} bytes here: {begin:,} to {end:,} of {size:,}]\n".encode()
    )


def joined(pieces: list[tuple[int, bytes]], size: int) -> tuple[bytes, bool]:
    """Pieces that were read (where each begins, its bytes) as one text with markers, and whether it was cut."""
    text, at, cut = b"", 0, False
    for begin, data in pieces:
        if begin > at:
            text += (b"\n" if text and not text.endswith(b"\n") else b"") + marker(at, begin, size)
            cut = True
        elif begin < at:  # a window that begins with its line repeats bytes
            begin, data = at, data[at - begin :]
        text += data
        at = begin + len(data)
    return text, cut
