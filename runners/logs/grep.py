"""Lines of one file that match a regular expression: run as a process of its own, because `re` holds the
interpreter while it backtracks and cannot be interrupted in a thread.

    python -I -S grep.py OFFSET LIMIT SCAN_BYTES SCAN_SECONDS HIT_SECONDS PATTERN [BEGIN END]… < FILE

Bytes from each BEGIN to its END are passed over. Writes one line `next`, one with the offset of each matching line, and
then these lines as they are; a bad pattern is one line on stderr and status 2. Standard library only; imports nothing of
distui, so that it starts in milliseconds.

A line matches where the pattern is found in its text: decoded, without colours and other escape sequences, without
carriage returns at its end. To look at each line alone would cost a microsecond a line, so whole slices are searched:
by a literal that every match contains where there is one, else by the same pattern made to stay within a line.
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

DENSE = 1000
"""So many lines of one slice that hold the literal and do not match: from then on the pattern itself is searched."""

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
        self._within: Any = None
        """The pattern that never matches a newline, for str and bytes; None where this Python cannot make one."""
        self._literal = b""
        """Bytes that every match contains."""
        self._bare = False
        """Whether the pattern is the literal, and no more."""
        self._folded = False
        """Whether the literal is in small letters, and matches capitals."""
        try:
            self._within, self._literal, self._bare = _prepared(pattern)
            self._folded = bool(self.text.flags & re.IGNORECASE)
        except (AttributeError, ImportError, TypeError, ValueError, KeyError):
            pass  # inner parts of `re` changed: each line is searched alone
        self._sparse = bool(self._literal)

    def lines(self, data: bytes) -> list[tuple[int, int]]:
        """Begin and end, newline left out, of each matching line of whole lines."""
        if self._lacks_literal(data):
            return []
        shown = _ESCAPE.sub(b"", data) if b"\x1b" in data else data
        shown = _LINE_END.sub(b"", shown) if b"\r" in shown else shown
        if shown is not data and not data.endswith(b"\n"):
            shown += b"\n"  # a last line that shows nothing is a line
        if self._sparse and not (self._folded and _beyond_ascii(shown)):
            return _placed(self._by_literal(shown), shown, data)
        if self._within is None:
            return _placed(self._line_by_line(shown), shown, data)
        if shown.isascii():
            return _placed(self._by_pattern(shown, b"\n"), shown, data)
        text = shown.decode("utf-8", "replace")  # "\n" is never part of a broken sequence
        return _placed(self._by_pattern(text, "\n"), text, data)

    def _lacks_literal(self, data: bytes) -> bool:
        """Whether a byte of the literal is nowhere, with and without escape sequences."""
        if self._folded and not data.isascii():
            return False
        return any(
            byte not in data and (not self._folded or bytes((byte,)).upper() not in data)
            for byte in self._literal
        )

    def _by_literal(self, data: bytes) -> list[tuple[int, int]]:
        hits, misses, at = [], 0, 0
        for place in _places(self._literal, data, self._folded):
            if place < at:
                continue
            begin = max(data.rfind(b"\n", at, place) + 1, at)
            end = _end(data, place, b"\n")
            if self._bare or self.text.search(data[begin:end].decode("utf-8", "replace")):
                hits.append((begin, end))
            else:
                misses += 1
            at = end + 1
        self._sparse = misses < DENSE or self._within is None
        return hits

    def _by_pattern(self, data: Any, newline: Any) -> list[tuple[int, int]]:
        hits, at, search = [], 0, self._within.search
        while at < len(data) and (match := search(data, at)):
            place = match.start()
            if place == len(data) and data.endswith(newline):
                break  # nothing follows the last newline
            begin = max(data.rfind(newline, at, place) + 1, at)
            end = _end(data, place, newline)
            hits.append((begin, end))
            at = end + 1
        return hits

    def _line_by_line(self, data: bytes) -> list[tuple[int, int]]:
        hits, at = [], 0
        while at < len(data):
            end = _end(data, at, b"\n")
            if self.text.search(data[at:end].decode("utf-8", "replace")):
                hits.append((at, end))
            at = end + 1
        return hits


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


# --- the pattern, within a line -------------------------------------------------------------------------------------


def _prepared(pattern: str) -> tuple[Any, bytes, bool]:
    """The pattern that stays within a line, the longest literal that every match contains, and whether that is all.

    `re` compiles parsed patterns too, and one compiled from a parsed pattern searches str and bytes alike: with the
    meaning of str, which on ASCII bytes is the same.
    """
    parser, compiler = re._parser, re._compiler  # type: ignore[attr-defined]
    tree = parser.parse(pattern)
    flags = tree.state.flags
    literal = max(_literals(tree, parser), key=len, default="").encode("utf-8")
    bare = all(op is parser.LITERAL for op, _ in tree)
    if flags & re.IGNORECASE:
        literal, bare = literal.lower() if literal.isascii() else b"", False
    if b"\n" in literal or b"\xef\xbf\xbd" in literal:
        literal = b""
    _keep_within(tree, parser)
    tree.state.flags = (flags & ~re.DOTALL) | re.MULTILINE
    return compiler.compile(tree, tree.state.flags), literal, bare and bool(literal)


def _literals(tree: Any, parser: Any) -> list[str]:
    """Runs of characters that stand in every match."""
    runs, run = [], ""
    for op, value in tree:
        if op is parser.LITERAL:
            run += chr(value)
            continue
        if op is parser.AT:
            continue  # takes no room
        runs.append(run)
        run = ""
        if op is parser.SUBPATTERN and not value[1] & re.IGNORECASE:
            runs += _literals(value[3], parser)
        elif op in (parser.MAX_REPEAT, parser.MIN_REPEAT) and value[0] > 0:
            runs += _literals(value[2], parser)
    return [text for text in (*runs, run) if not any(0xD800 <= ord(char) < 0xE000 for char in text)]


def _keep_within(tree: Any, parser: Any) -> None:
    """Change a parsed pattern so that it means the same within a line and never matches a newline."""
    for place, (op, value) in enumerate(tree):
        tree[place] = _changed(op, value, parser)


def _changed(op: Any, value: Any, parser: Any) -> tuple[Any, Any]:
    if op is parser.LITERAL and value == 10:
        return parser.FAILURE, None
    if op is parser.NOT_LITERAL:
        return parser.IN, [(parser.NEGATE, None), (parser.LITERAL, value), (parser.LITERAL, 10)]
    if op is parser.IN:
        return op, _set_within(value, parser)
    if op is parser.AT:
        at = {parser.AT_BEGINNING_STRING: parser.AT_BEGINNING, parser.AT_END_STRING: parser.AT_END}
        return op, at.get(value, value)
    if op is parser.BRANCH:
        for branch in value[1]:
            _keep_within(branch, parser)
    elif op is parser.SUBPATTERN:
        group, add, remove, inner = value
        _keep_within(inner, parser)
        return op, (group, add & ~re.DOTALL, remove & ~re.MULTILINE, inner)
    elif op in (parser.MAX_REPEAT, parser.MIN_REPEAT, parser.POSSESSIVE_REPEAT):
        _keep_within(value[2], parser)
    elif op in (parser.ASSERT, parser.ASSERT_NOT):
        _keep_within(value[1], parser)
    elif op is parser.ATOMIC_GROUP:
        _keep_within(value, parser)
    elif op is parser.GROUPREF_EXISTS:
        for branch in value[1:]:
            if branch is not None:
                _keep_within(branch, parser)
    return op, value


_SPACES = (
    9,
    11,
    12,
    13,
    28,
    29,
    30,
    31,
    32,
    0x85,
    0xA0,
    0x1680,
    *range(0x2000, 0x200B),
    0x2028,
    0x2029,
    0x202F,
    0x205F,
    0x3000,
)
"""What `\\s` matches in str, without the newline."""


def _set_within(items: list[Any], parser: Any) -> list[Any]:
    """A set that does not hold the newline. Raises ValueError for one that this cannot express."""
    if items[0][0] is parser.NEGATE:
        return [*items, (parser.LITERAL, 10)]
    if len(items) == 1 and items[0][0] is parser.CATEGORY:
        name = items[0][1]
        opposite = {
            parser.CATEGORY_NOT_SPACE: None,  # has no newline as it is
            parser.CATEGORY_NOT_DIGIT: parser.CATEGORY_DIGIT,
            parser.CATEGORY_NOT_WORD: parser.CATEGORY_WORD,
        }.get(name)
        if opposite is not None:
            return [(parser.NEGATE, None), (parser.CATEGORY, opposite), (parser.LITERAL, 10)]
    within = []
    for op, value in items:
        if op is parser.CATEGORY and value is parser.CATEGORY_SPACE:
            within += [(parser.LITERAL, code) for code in _SPACES]
        elif op is parser.CATEGORY and value in (parser.CATEGORY_NOT_DIGIT, parser.CATEGORY_NOT_WORD):
            raise ValueError("a set of what is no digit and of others")
        elif op is parser.RANGE and value[0] <= 10 <= value[1]:
            within += [(op, piece) for piece in ((value[0], 9), (11, value[1])) if piece[0] <= piece[1]]
        elif not (op is parser.LITERAL and value == 10):
            within.append((op, value))
    return within or [(parser.NEGATE, None), (parser.RANGE, (0, sys.maxunicode))]


# --- the file -------------------------------------------------------------------------------------------------------


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
