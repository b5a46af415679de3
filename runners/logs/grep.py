"""Lines of one file that match a regular expression: run as a process of its own, because `re` holds the
interpreter while it backtracks and cannot be interrupted in a thread.

    python -I -S grep.py OFFSET LIMIT SCAN_BYTES SCAN_SECONDS PATTERN < FILE

Writes one line `next` and then the matching lines as they are; a bad pattern is one line on stderr and
status 2. Standard library only; imports nothing of distui, so that it starts in milliseconds.
"""

from __future__ import annotations

import os
import re
import sys
import time

SLICE = 1 << 20
"""Bytes read and matched at a time; a line longer than this is matched in pieces."""


def main(argv: list[str]) -> int:
    offset, limit, scan_bytes = int(argv[0]), int(argv[1]), int(argv[2])
    try:
        pattern = re.compile(argv[4])
    except (re.error, RecursionError, OverflowError) as error:
        sys.stderr.write(str(error))
        return 2
    matches, position = scan(0, offset, limit, scan_bytes, time.monotonic() + float(argv[3]), pattern)
    sys.stdout.buffer.write(b"%d\n" % position + matches)
    return 0


def scan(
    descriptor: int, offset: int, limit: int, scan_bytes: int, deadline: float, pattern: re.Pattern[str]
) -> tuple[bytes, int]:
    """Matching lines, at most `limit` bytes (a longer line is cut), and where the first line not seen begins."""
    matches = bytearray()
    position, stop = offset, offset + scan_bytes
    while position < stop and time.monotonic() < deadline:
        piece = whole_lines(os.pread(descriptor, SLICE, position))
        if not piece:
            break
        # "\n" is never part of a broken UTF-8 sequence, so both splits see the same lines.
        texts = piece.decode("utf-8", "replace").split("\n")
        for raw, text in zip(_with_newline(piece), texts, strict=False):
            if pattern.search(text.rstrip("\r")):
                if matches and len(matches) + len(raw) > limit:
                    return bytes(matches), position
                matches += raw if len(raw) <= limit else raw[: limit - 1] + b"\n"
            position += len(raw)
            if len(matches) >= limit:
                return bytes(matches), position
    return bytes(matches), position


def _with_newline(piece: bytes) -> list[bytes]:
    lines = piece.split(b"\n")
    return [line + b"\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])


def whole_lines(piece: bytes) -> bytes:
    """Without the last line where that is cut off by the slice, unless it is all there is."""
    cut = piece.rfind(b"\n") + 1
    return piece[:cut] if len(piece) == SLICE and cut else piece


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
