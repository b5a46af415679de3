"""Print lines of one file that match a regular expression.

It runs as a separate process, because `re` holds the interpreter while it backtracks and a thread cannot be interrupted.

    python -I -S grep.py OFFSET LIMIT SCAN_BYTES SCAN_SECONDS HIT_SECONDS PATTERN [BEGIN END]… < FILE

Bytes from each BEGIN to its END are skipped. Writes one line with `next`, one with the offset of each matching line, and
then the unchanged lines. A bad pattern results in one line on stderr and status 2. It imports only the standard library,
so that it starts in milliseconds.

A line matches if its text contains the pattern: decoded, without escape sequences such as colours, and without carriage
returns at its end. A search of each line costs a microsecond per line. So a literal, or a pattern that can be changed to
stay within a line, is searched in whole slices.
"""

from __future__ import annotations

import os
import re
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing `typing` would take a fifth of the start
    from collections.abc import Iterator, Sequence
    from typing import Any

SLICE = 1 << 20
"""Bytes read and matched at a time. A longer line is matched in pieces."""

WAITS = 5
"""Maximum wall time as a multiple of the CPU seconds, for a search that waits for the processor or the disk."""

EVERY, RARE = 509, 2
"""A byte with at most RARE occurrences in every 509th byte of a slice is searched instead of the literal (`memchr`)."""

_FOLDED = tuple(letter.encode() for letter in "\u0130\u0131\u017f\u212a")
"""The letters beyond ASCII that match an ASCII letter (i, s, k) if case is ignored."""

_ESCAPE = re.compile(
    rb"\x1b(?:\[[0-?]*+[ -/]*+[@-~]?|[\]PX^_][^\x07\x1b\n]*+(?:\x07|\x1b\\)|[ -/]*+[0-~]?)"
)
_LINE_END = re.compile(rb"\r+(?=\n|\Z)")
_NEWLINE = re.compile(rb"\n")
IGNORE_CASE = "(?i)"
_SPECIAL = re.compile(r"[\\.^$*+?{}\[\]|()\ufffd]")
_SIMPLE = re.compile(
    r"(?:\(\?i\))?(?:[^\\(\[\]\n]|\((?!\?)|\(\?:|\\[dwsSb]|\\[^\w\n]|\[(?:\^(?!-))?[^\\\[\]^\x00-\x1f]+\])*"
)
"""Patterns that match a newline only by `\\s` and `[^…]`, and do not depend on a line's position."""
_NEWLINE_IN = re.compile(r"\\.|\[\^", re.DOTALL)


def main(argv: list[str]) -> int:
    status, out, err = answer(0, argv)
    sys.stderr.write(err)
    sys.stdout.buffer.write(out)
    return status


def answer(descriptor: int, argv: list[str]) -> tuple[int, bytes, str]:
    """Search the file. Return the exit status, the output and the error message."""
    offset, limit, scan_bytes = int(argv[0]), int(argv[1]), int(argv[2])
    try:
        search = Search(argv[5])
    except (re.error, RecursionError, OverflowError) as error:
        return 2, b"", str(error)
    seconds, numbers = (float(argv[3]), float(argv[4])), [int(word) for word in argv[6:]]
    passed = list(zip(numbers[::2], numbers[1::2], strict=True))
    matches, starts, position = scan(descriptor, offset, limit, scan_bytes, seconds, search, passed)
    head = b"%d\n%s\n" % (position, b" ".join(b"%d" % start for start in starts))
    return 0, head + matches, ""


class Search:
    """A pattern prepared for a search in whole slices."""

    def __init__(self, pattern: str) -> None:
        """Compile the pattern; raise re.error, RecursionError or OverflowError."""
        self.text: re.Pattern[str] = re.compile(pattern)
        self._within: re.Pattern[str] | None = None
        """The pattern changed to never match a newline; None if that is impossible."""
        if _SIMPLE.fullmatch(pattern):
            self._within = re.compile(_NEWLINE_IN.sub(_within, pattern), re.MULTILINE)
        self._folded = pattern.startswith(IGNORE_CASE)
        """Whether the literal is in lower case and also matches capitals."""
        word = pattern.removeprefix(IGNORE_CASE).lower() if self._folded else pattern
        plain = word.isprintable() and not _SPECIAL.search(word) and (word.isascii() or not self._folded)
        self._literal = word.encode() if plain else b""
        """The literal to search if the pattern is one; else empty."""

    def lines(self, data: bytes) -> list[tuple[int, int]]:
        """Return begin and end of each matching line, without its newline. `data`: complete lines."""
        shown = visible(data)
        if self._literal and not (self._folded and _beyond_ascii(shown)):
            return _placed(self._by_literal(shown), shown, data)
        text = shown.decode("utf-8", "replace")  # "\n" is never part of a broken sequence
        hits = self._line_by_line(text) if self._within is None else self._by_pattern(text, self._within)
        return hits if shown is data and text.isascii() else _placed(hits, text, data)

    def _by_literal(self, data: bytes) -> list[tuple[int, int]]:
        hits, at = [], 0
        for place in _places(self._literal, data, self._folded):
            if place >= at:
                begin, end = max(data.rfind(b"\n", at, place) + 1, at), _end(data, place, b"\n")
                hits.append((begin, end))
                at = end + 1
        return hits

    def _by_pattern(self, text: str, within: re.Pattern[str]) -> list[tuple[int, int]]:
        hits, at = [], 0
        while at < len(text) and (match := within.search(text, at)):
            place = match.start()
            if place == len(text) and text.endswith("\n"):
                break  # no line follows the last newline
            begin, end = max(text.rfind("\n", at, place) + 1, at), _end(text, place, "\n")
            hits.append((begin, end))
            at = end + 1
        return hits

    def _line_by_line(self, text: str) -> list[tuple[int, int]]:
        hits, at = [], 0
        while at < len(text):
            end = _end(text, at, "\n")
            if self.text.search(text[at:end]):
                hits.append((at, end))
            at = end + 1
        return hits


def visible(data: bytes) -> bytes:
    """Return complete lines without escape sequences, and without carriage returns at their ends."""
    shown = _ESCAPE.sub(b"", data) if b"\x1b" in data else data
    shown = _LINE_END.sub(b"", shown) if b"\r" in shown else shown
    if shown is not data and not data.endswith(b"\n"):
        shown += b"\n"  # a last line without visible text is a line
    return shown


def _within(match: re.Match[str]) -> str:
    """Return a piece of a simple pattern, changed to match no newline."""
    return {r"\s": r"[^\S\n]", "[^": r"[^\n"}.get(match[0], match[0])


def _places(literal: bytes, data: bytes, folded: bool) -> Iterator[int]:
    """Yield the positions of a literal in order. `folded`: the literal is in lower case and also matches capitals."""
    lower = bytes.lower if folded else bytes
    sample = lower(data[::EVERY])
    rarest = min(set(literal), key=sample.count)
    if sample.count(rarest) > RARE:
        yield from _all(literal, lower(data))
        return
    byte, back = bytes((rarest,)), literal.index(rarest)
    starts = {at - back for at in _all(byte, data)}
    if folded:
        starts.update(at - back for at in _all(byte.upper(), data))
    for start in sorted(starts):
        if start >= 0 and lower(data[start : start + len(literal)]) == literal:
            yield start


def _all(part: bytes, data: bytes) -> Iterator[int]:
    at = data.find(part)
    while at >= 0:
        yield at
        at = data.find(part, at + 1)


def _beyond_ascii(data: bytes) -> bool:
    """Whether an ASCII literal may also match other letters."""
    return not data.isascii() and any(letter in data for letter in _FOLDED)


def _end(data: Any, at: int, newline: Any) -> int:
    end: int = data.find(newline, at)
    return len(data) if end < 0 else end


def _placed(hits: list[tuple[int, int]], shown: Any, data: bytes) -> list[tuple[int, int]]:
    """Convert lines of the searched text to the lines of the file with the same numbers."""
    if shown is data or not hits:
        return hits
    newline = "\n" if isinstance(shown, str) else b"\n"
    ends = [match.start() for match in _NEWLINE.finditer(data)]
    ends += [len(data)] if not data.endswith(b"\n") else []
    placed, number, at = [], 0, 0
    for begin, _ in hits:
        number += shown.count(newline, at, begin)
        at = begin
        placed.append((ends[number - 1] + 1 if number else 0, ends[number]))
    return placed


def scan(
    descriptor: int,
    offset: int,
    limit: int,
    scan_bytes: int,
    seconds: tuple[float, float],
    search: Search,
    passed: Sequence[tuple[int, int]] = (),
) -> tuple[bytes, list[int], int]:
    """Return matching lines (at most `limit` bytes, a longer line is truncated), their offsets, and where to continue.

    `seconds`: CPU seconds to search without a match, and with one. `passed`: skipped ranges, in order.
    """
    matches, starts, position = bytearray(), list[int](), offset
    cpu, wall = time.process_time(), time.monotonic()
    while position < offset + scan_bytes:
        most = seconds[bool(starts)]
        if time.process_time() - cpu >= most or time.monotonic() - wall >= WAITS * most:
            break
        position, room = _next_slice(position, passed)
        piece = whole_lines(os.pread(descriptor, room, position))
        if not piece:
            break
        for begin, end in search.lines(piece):
            raw = piece[begin : end + 1]
            if matches and len(matches) + len(raw) > limit:
                return bytes(matches), starts, position + begin
            matches += raw if len(raw) <= limit else raw[: limit - 1] + b"\n"
            starts.append(position + begin)
            if len(matches) >= limit:
                return bytes(matches), starts, position + begin + len(raw)
        position += len(piece)
    return bytes(matches), starts, position


def _next_slice(position: int, passed: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """Return the position after the skipped ranges there, and the bytes to read from it."""
    for begin, end in passed:
        if position < begin:
            return position, min(SLICE, begin - position)
        position = max(position, end)
    return position, SLICE


def whole_lines(piece: bytes) -> bytes:
    """Remove a last line that the slice cuts off, unless it is the only line."""
    cut = piece.rfind(b"\n") + 1
    return piece[:cut] if len(piece) == SLICE and cut else piece


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
