"""Log lines as rows: time column, hits, wrapping, folding of equal lines. Pure."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from msgspec import Struct
from rich.cells import cell_len

from ...runners.logs.dating import Key
from ...runners.logs.levels import Level
from ...runners.run.formatting import spans_text, time_of_day
from . import glyphs
from .glyphs import Cell, Row, fit, row_width

_SELECTORS = {0xFE0E: None, 0xFE0F: None}
"""Variation selectors of glyphs: terminals disagree about their width."""

_LEVEL = {Level.WARN: (glyphs.WARN, "warn"), Level.ERROR: (glyphs.BAD, "bad")}


class LogLine(NamedTuple):
    """One line without control characters."""

    text: str
    label: str
    """Short name of the writer: `r3 err`; "" for the screen's own lines."""
    level: Level
    at: float | None = None
    """Unix time when it was written."""
    own: bool = False
    """Whether the line itself has that time; otherwise it is the time when the agent read the line."""
    key: Key = (0.0, 0, 0, "", 0)
    """Sorts lines by time."""
    rank: int | None = None


NARROW = 48
"""Columns below which a pane shows no times."""

TIMES = ("clock", "start", "step", "off")
"""Modes of the time key: time of day, since the attempt began, since the line above, none."""


class TimeColumn(Struct, frozen=True):
    """How the log shows the time of a line."""

    mode: str = "off"
    began: tuple[float, ...] = ()
    """Unix times when the attempts began, in order."""

    @property
    def width(self) -> int:
        """Width without the blank after it."""
        return 0 if self.mode == "off" else 9

    def text(self, line: LogLine, above: LogLine | None) -> str:
        """Return the cell: `~` marks a time that the line itself does not have; blank if no time is known."""
        if line.at is None:
            return " " * self.width
        sign = " " if line.own else "~"
        if self.mode == "clock":
            return fit(sign + time_of_day(line.at), self.width)
        since = self._begin_of(line) if self.mode == "start" else above and above.at
        shown = "" if since is None else _span_text(line.at - since)
        return fit(sign + shown, self.width, right=True)

    def _begin_of(self, line: LogLine) -> float | None:
        """Return when the attempt that wrote the line began."""
        count = bisect_right(self.began, line.key[0])
        return self.began[max(0, count - 1)] if self.began else None


def _span_text(seconds: float) -> str:
    sign, seconds = ("-" if seconds < -0.05 else "+"), abs(seconds)
    if seconds < 100:
        return f"{sign}{seconds:.1f}s"
    minutes, rest = divmod(int(seconds), 60)
    return f"{sign}{minutes // 60}:{minutes % 60:02d}:{rest:02d}"


def time_column(mode: str, width: int, began: tuple[float, ...]) -> TimeColumn:
    """Return the time column, or an empty one if the pane is too narrow. Times are never shortened to minutes."""
    return TimeColumn("off" if width < NARROW else mode, began)


def log_row(
    line: LogLine, marked: bool, pattern: re.Pattern[str] | None, label_width: int, when: str = ""
) -> Row:
    """Return one line: mark, level, label, time, text with hits."""
    glyph, style = _LEVEL.get(line.level, (" ", "text"))
    if marked:
        glyph, style = glyphs.MARK, "accent"
    cells: list[Cell] = [(glyph, style)]
    if label_width:
        cells.append((fit(line.label, label_width) + " ", "dim"))
    if when:
        cells.append((when + " ", "dim"))
    text = line.text
    if not text.isascii():
        text = text.translate(_SELECTORS)
    _, style = _LEVEL.get(line.level, ("", "text" if line.label else "dim"))
    return (*cells, *_with_hits(text, style, pattern))


def _with_hits(text: str, style: str, pattern: re.Pattern[str] | None) -> Sequence[Cell]:
    if pattern is None:
        return ((text, style),)
    cells: list[Cell] = []
    at = 0
    for match in pattern.finditer(text):
        if match.end() == match.start():
            continue
        cells += [(text[at : match.start()], style), (match.group(), "hit")]
        at = match.end()
    return [cell for cell in (*cells, (text[at:], style)) if cell[0]] or [("", style)]


def fixed_cells(label_width: int, when_width: int) -> int:
    """Return the number of leading cells that stay in place when the log scrolls sideways."""
    return 1 + bool(label_width) + bool(when_width)


def wrapped(row: Row, fixed: int, width: int) -> list[Row]:
    """Wrap a row to `width` columns. Cells before the text appear only in the first row."""
    head, body = row[:fixed], row[fixed:]
    edge = row_width(head)
    room = max(8, width - edge)
    if row_width(body) <= room:
        return [row]
    rows, cells, left = list[Row](), list[Cell](), room
    for text, style in body:
        while text:
            piece, text = _split(text, left)
            if piece:
                cells.append((piece, style))
                left -= cell_len(piece)
            if text:
                rows.append(tuple(cells))
                cells, left = [], room
    rows.append(tuple(cells))
    blank: Row = tuple((" " * row_width((cell,)), "text") for cell in head)
    return [(*(head if not at else blank), *cells) for at, cells in enumerate(rows)]


def _split(text: str, columns: int) -> tuple[str, str]:
    """Return as much of a text as fits in so many columns, and the rest."""
    if text.isascii():
        return text[:columns], text[columns:]
    used = 0
    for at, char in enumerate(text):
        used += cell_len(char)
        if used > columns:
            return text[:at], text[at:]
    return text, ""


MANY = 3
"""Minimum number of ranks whose equal lines are folded."""


def folded(lines: Sequence[LogLine], held: dict[tuple[int, int], LogLine]) -> list[LogLine]:
    """Fold consecutive equal lines of many ranks into one line; `held` caches the folded lines."""
    shown: list[LogLine] = []
    at = 0
    while at < len(lines):
        first, end = lines[at], _end_of_equal(lines, at)
        ranks = [line.rank for line in lines[at:end] if line.rank is not None]
        if end - at < MANY or not first.text or len(ranks) < end - at:
            shown.append(first)
            at += 1
            continue
        mark = (id(first), end - at)
        if mark not in held:
            held[mark] = _joined(first, sorted(ranks))
        shown.append(held[mark])
        at = end
    return shown


def _end_of_equal(lines: Sequence[LogLine], at: int) -> int:
    """Return the index after the equal lines of different ranks that begin at `at`."""
    ranks, end = {lines[at].rank}, at + 1
    while end < len(lines) and lines[end].text == lines[at].text and lines[end].rank not in ranks:
        ranks.add(lines[end].rank)
        end += 1
    return end


def _joined(first: LogLine, ranks: Sequence[int]) -> LogLine:
    text = f"{first.text}   ({spans_text('rank', ranks)} ×{len(ranks)})"
    return first._replace(label=f"×{len(ranks)}", text=text)


def common(old: list[LogLine], new: list[LogLine]) -> int:
    """Return the number of leading lines that are identical objects."""
    count = min(len(old), len(new))
    if count and old[count - 1] is new[count - 1] and old[0] is new[0]:
        return count
    return next((at for at in range(count) if old[at] is not new[at]), count)
