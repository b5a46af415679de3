"""Lines of one file that match a regular expression: run as a process of its own, because `re` holds the
interpreter while it backtracks and cannot be interrupted in a thread.

    python -I -S grep.py OFFSET LIMIT SCAN_BYTES SCAN_SECONDS HIT_SECONDS PATTERN [BEGIN END]… < FILE

Bytes from each BEGIN to its END are passed over. Writes one line `next`, one with the offset of each matching line, and
then these lines as they are; a bad pattern is one line on stderr and status 2. Standard library only; imports nothing of
distui, so that it starts in milliseconds.

A line matches where the pattern is found in its text: decoded, without colours and other escape sequences, without
carriage returns at its end. To look at each line alone costs a microsecond a line, so whole slices are searched where
the pattern is a literal, or simple enough to be made to stay within a line.
"""

from __future__ import annotations

import os
import re
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:  # `typing` alone would take a fifth of the start
    from collections.abc import Iterator, Sequence
    from typing import Any

SLICE = 1 << 20
"""Bytes read and matched at a time; a line longer than this is matched in pieces."""

WAITS = 5
"""A search that waits for the processor or the disk may take so many times its CPU seconds."""

EVERY, RARE = 509, 2
"""A byte that is so rare among every 509th of a slice is searched for instead of the literal: that is `memchr`."""

_FOLDED = tuple(letter.encode() for letter in "\u0130\u0131\u017f\u212a")
"""The letters beyond ASCII that match one of ASCII (i, s, k) where case is ignored."""

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
"""Patterns that match a newline by `\\s` and `[^…]` alone, and mean the same wherever a line stands."""
_NEWLINE_IN = re.compile(r"\\.|\[\^", re.DOTALL)


def main(argv: list[str]) -> int:
    status, out, err = answer(0, argv)
    sys.stderr.write(err)
    sys.stdout.buffer.write(out)
    return status


def answer(descriptor: int, argv: list[str]) -> tuple[int, bytes, str]:
    """The exit status of a search in this file, its output and its error message."""
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
    """A pattern, made ready to search whole slices."""

    def __init__(self, pattern: str) -> None:
        """Raises re.error, RecursionError and OverflowError."""
        self.text: re.Pattern[str] = re.compile(pattern)
        self._within: re.Pattern[str] | None = None
        """The pattern that never matches a newline; None where it cannot be made one."""
        if _SIMPLE.fullmatch(pattern):
            self._within = re.compile(_NEWLINE_IN.sub(_within, pattern), re.MULTILINE)
        self._folded = pattern.startswith(IGNORE_CASE)
        """Whether the literal is in small letters, and matches capitals."""
        word = pattern.removeprefix(IGNORE_CASE).lower() if self._folded else pattern
        plain = word.isprintable() and not _SPECIAL.search(word) and (word.isascii() or not self._folded)
        self._literal = word.encode() if plain else b""
        """All that is searched for, where the pattern is no more."""

    def lines(self, data: bytes) -> list[tuple[int, int]]:
        """Begin and end, newline left out, of each matching line of whole lines."""
        shown = _ESCAPE.sub(b"", data) if b"\x1b" in data else data
        shown = _LINE_END.sub(b"", shown) if b"\r" in shown else shown
        if shown is not data and not data.endswith(b"\n"):
            shown += b"\n"  # a last line that shows nothing is a line
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
                break  # nothing follows the last newline
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


def _within(match: re.Match[str]) -> str:
    """A piece of a simple pattern that matches newlines, made to match none."""
    return {r"\s": r"[^\S\n]", "[^": r"[^\n"}.get(match[0], match[0])


def _places(literal: bytes, data: bytes, folded: bool) -> Iterator[int]:
    """Where a literal stands, in order; where it is `folded` it is in small letters, and capitals count as such."""
    sample = data[::EVERY].lower() if folded else data[::EVERY]
    rarest = min(set(literal), key=sample.count)
    if sample.count(rarest) > RARE:
        return _all(literal, data.lower() if folded else data)
    byte, back = bytes((rarest,)), literal.index(rarest)
    starts = [at - back for each in {byte, byte.upper() if folded else byte} for at in _all(each, data)]
    there = (start for start in sorted(starts) if start >= 0)
    if folded:
        return (start for start in there if data[start : start + len(literal)].lower() == literal)
    return (start for start in there if data.startswith(literal, start))


def _all(part: bytes, data: bytes) -> Iterator[int]:
    at = data.find(part)
    while at >= 0:
        yield at
        at = data.find(part, at + 1)


def _beyond_ascii(data: bytes) -> bool:
    """Whether a literal of ASCII may match other letters, too."""
    return not data.isascii() and any(letter in data for letter in _FOLDED)


def _end(data: Any, at: int, newline: Any) -> int:
    end: int = data.find(newline, at)
    return len(data) if end < 0 else end


def _placed(hits: list[tuple[int, int]], shown: Any, data: bytes) -> list[tuple[int, int]]:
    """Lines of what was searched → the same lines of the file, by their numbers."""
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
    """Matching lines, at most `limit` bytes (a longer line is cut), where each begins, and where to go on.

    `seconds`: CPU seconds to search without a hit, and with one; `passed`: what is passed over, in order.
    """
    matches, starts, position, stop = bytearray(), list[int](), offset, offset + scan_bytes
    cpu, wall = time.process_time(), time.monotonic()
    while position < stop:
        most = seconds[bool(starts)]
        if time.process_time() - cpu >= most or time.monotonic() - wall >= WAITS * most:
            break
        before = next((pair for pair in passed if pair[1] > position), None)
        if before is not None and before[0] <= position:
            position = before[1]
            continue
        room = SLICE if before is None else min(SLICE, before[0] - position)
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


def whole_lines(piece: bytes) -> bytes:
    """Without the last line where that is cut off by the slice, unless it is all there is."""
    cut = piece.rfind(b"\n") + 1
    return piece[:cut] if len(piece) == SLICE and cut else piece


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
