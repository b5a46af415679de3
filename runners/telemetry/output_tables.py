"""Tables of training values in a rank's output: framed rows of Stable-Baselines3, and columns of fastai. Pure."""

from __future__ import annotations

import re

MOST_ROWS = 60
"""Maximum rows of a table on each side of a line."""
_ROW = re.compile(r"\s*\|\s+(?P<name>[A-Za-z][\w/ .-]*?)\s*\|\s*(?P<value>[-+.\deE]+|nan|inf)\s*\|\s*")
_HEADER = re.compile(rb"\s*[Ee]poch(?:\s+[a-z][\w/@]*){2,}\s*")
_RULE = re.compile(rb"[\s|-]*---[\s|-]*")
_VALUES = re.compile(rb"\s*\d+(?:\s+[-+.:\deE%#a]+){2,}\s*")


def block_around(text: bytes, begin: int, end: int) -> tuple[int, int]:
    """Extend the bounds of a line to those of the table that it belongs to."""
    if text.startswith(b"|", begin):
        return _framed(text, begin, end)
    if _HEADER.fullmatch(text, begin, end):
        return begin, _last_row(text, end)
    return begin, end


def _framed(text: bytes, begin: int, end: int) -> tuple[int, int]:
    """Bounds of the rows around a row, each of which begins with "|"."""
    for _ in range(MOST_ROWS):
        above = text.rfind(b"\n", 0, max(begin - 1, 0)) + 1
        if begin == 0 or not text.startswith(b"|", above):
            break
        begin = above
    for _ in range(MOST_ROWS):
        if not text.startswith(b"\n|", end):
            break
        end = _line_end(text, end + 1)
    return begin, end


def _last_row(text: bytes, end: int) -> int:
    """End of the numeric rows below a header."""
    for _ in range(10 * MOST_ROWS):
        below = _line_end(text, end + 1)
        if (
            _VALUES.fullmatch(text, end + 1, below) is None
            and _RULE.fullmatch(text, end + 1, below) is None
        ):
            break
        end = below
    return end


def _line_end(text: bytes, begin: int) -> int:
    end = text.find(b"\n", begin)
    return len(text) if end < 0 else end


def as_line(table: str) -> str:
    """Convert a table to one line of pairs: "epoch: 1 | train_loss: 0.64"."""
    lines = table.splitlines()
    rows = [row for row in map(_ROW.fullmatch, lines) if row is not None]
    if rows:
        return " | ".join(f"{row['name']}: {row['value']}" for row in rows)
    pairs = zip(lines[0].split(), lines[-1].split(), strict=False)
    return " | ".join(f"{name}: {value}" for name, value in pairs)
