"""The shown and the wanted content of the terminal; writes the difference in pieces, output caused by a key first.

Lines are stored cell by cell. A cell is a character with its ink; the second half of a wide character has no text.
"""

from __future__ import annotations

import curses
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import compress, count
from operator import ne
from typing import NamedTuple

from rich.cells import cell_len
from rich.color import ColorSystem
from rich.segment import Segment
from rich.style import Style
from textual.strip import SGR_STYLES

GAP = 5
"""Maximum unchanged cells between two changes that are rewritten: a cursor jump takes as many bytes."""

ERASED = 12
"""Minimum blanks in a row that are erased instead of written: ECH and CUF (ECMA-48, 8.3.38 and 8.3.20) take 10 bytes."""

PIECE = 128
"""Maximum cells that are written before the bytes are counted again."""


class Ink(NamedTuple):
    """Drawing attributes of a cell: parameters of SGR (ECMA-48, 8.3.117)."""

    fore: str = "39"
    back: str = "49"
    marks: str = ""
    """Bold, underlined, …; only a reset removes them."""


Cell = tuple[str, Ink]
PLAIN = Ink()
_BLANK: Cell = (" ", PLAIN)
_UNKNOWN: Cell = ("\0", PLAIN)
"""A value that no cell has, for unknown content of the terminal."""
_inks: dict[Ink, Ink] = {PLAIN: PLAIN}
"""Each ink once, so that inks can be compared by identity."""
_SEEN_ON_BLANKS = frozenset(SGR_STYLES[bit] for bit in (3, 6, 8, 9, 12))
"""SGR codes that are visible on blanks: underline, reverse, strike, double underline, overline."""


_MANY_BLANKS = re.compile(f"( {{{ERASED},}})")


def erases_in_colour(terminal: str) -> bool:
    """Whether terminfo says that this terminal erases with the current background ("bce"); False if it is unknown."""
    try:
        curses.setupterm(terminal, 1)
    except (curses.error, OSError, ValueError):
        return False
    return curses.tigetflag("bce") == 1 and curses.tigetstr("ech") is not None


def _interned(ink: Ink) -> Ink:
    return _inks.setdefault(ink, ink)


@lru_cache(4096)
def _blank_of(ink: Ink) -> Ink | None:
    """Return the ink of blanks that look like this ink's blanks; None if its attributes are visible on blanks."""
    if _SEEN_ON_BLANKS.intersection(ink.marks.split(";")):
        return None
    return _interned(Ink(back=ink.back))


class Pen(dict[str, Cell]):
    """Cached cells of the single-column characters of one ink; KeyError for all other characters."""

    def __init__(self, ink: Ink) -> None:
        self.ink = _interned(ink)
        super().__init__({" ": (" ", _blank_of(ink) or self.ink)})

    def __missing__(self, char: str) -> Cell:
        if char < " " or char == "\x7f" or cell_len(char) != 1:
            raise KeyError(char)
        cell = self[char] = (char, self.ink)
        return cell

    def cells(self, text: str) -> list[Cell]:
        """Return a text cell by cell, as many cells as its width."""
        try:
            return list(map(self.__getitem__, text))
        except KeyError:
            return self._odd_cells(text)

    def _odd_cells(self, text: str) -> list[Cell]:
        """Return the cells of a text with characters of another width than one."""
        ink, cells = self.ink, list[Cell]()
        for char in text:
            width = cell_len(char)
            if width and char >= " ":
                cells.append(self[" "] if char == " " else (char, ink))
                cells += [("", ink)] * (width - 1)
            elif cells and char > "\x7f":  # a combining mark
                at = len(cells) - 1
                while not cells[at][0]:
                    at -= 1
                cells[at] = (cells[at][0] + char, cells[at][1])
        width = cell_len(text)
        if len(cells) != width:  # joined characters share one cell
            cells = [(text, ink), *[("", ink)] * (width - 1)] if width else []
        return cells


@lru_cache(4096)
def pen(style: Style | None, colours: ColorSystem) -> Pen:
    """Return the pen of a style."""
    if style is None:
        return Pen(PLAIN)
    attributes = style._attributes & style._set_attributes
    marks = [code for bit, code in enumerate(SGR_STYLES) if attributes & (1 << bit)]
    fore, back = PLAIN.fore, PLAIN.back
    if style.color is not None:
        fore = ";".join(style.color.downgrade(colours).get_ansi_codes())
    if style.bgcolor is not None:
        back = ";".join(style.bgcolor.downgrade(colours).get_ansi_codes(foreground=False))
    return Pen(Ink(fore, back, ";".join(marks)))


class Picture:
    """The wanted and the shown content of a terminal."""

    def __init__(self, *, erases: bool = False) -> None:
        """Create the picture. `erases`: whether the terminal erases with the current background."""
        self._erases = erases
        self.size = (0, 0)
        """Columns and lines."""
        self.hurried = False
        """Whether the current output was caused by a key, and is therefore written first."""
        self._wanted: list[list[Cell]] = []
        self._shown: list[list[Cell]] = []
        self._dirty: dict[int, None] = {}
        """Lines that may differ; the oldest first."""
        self._urgent: set[int] = set()
        """Dirty lines that a key has caused."""

    def resize(self, width: int, height: int) -> None:
        """Resize the picture, and forget the shown content."""
        if (width, height) != self.size:
            self.size = (width, height)
            self._wanted = [[_BLANK] * width for _ in range(height)]
            self.forget()

    def forget(self) -> None:
        """Mark everything as unknown, since another program may have written to the terminal."""
        width, height = self.size
        self._shown = [[_UNKNOWN] * width for _ in range(height)]
        self._dirty = dict.fromkeys(range(height))
        self._urgent = set()

    @property
    def due(self) -> bool:
        """Whether there may be output to write."""
        return bool(self._dirty)

    def put(self, x: int, y: int, segments: Iterable[Segment], colours: ColorSystem) -> None:
        """Draw segments from column `x` of line `y` on; cells outside are dropped."""
        cells: list[Cell] = []
        for segment in segments:
            if not segment.control:
                cells += pen(segment.style, colours).cells(segment.text)
        self.put_cells(x, y, cells)

    def put_cells(self, x: int, y: int, cells: list[Cell]) -> None:
        width, height = self.size
        if not 0 <= y < height or x >= width:
            return
        if x < 0 or len(cells) > width - x:
            cells, x = _cut(cells, max(0, -x), width - x), max(0, x)
        line, end = self._wanted[y], x + len(cells)
        if line[x:end] == cells:
            if self.hurried and y in self._dirty:
                self._urgent.add(y)
            return
        _part(line, x)
        _part(line, end)
        line[x:end] = cells
        self._dirty.setdefault(y)
        if self.hurried:
            self._urgent.add(y)

    def take(self, budget: int) -> str:
        """Return about `budget` characters of output that updates the terminal; "" if it is up to date.

        The terminal's ink is plain before and after.
        """
        output = _Output(erases=self._erases)
        later = [y for y in self._dirty if y not in self._urgent]
        for y in [*self._in_order(), *later]:
            if not self._write_line(y, output, budget):
                break
            self._dirty.pop(y, None)
            self._urgent.discard(y)
        output.use(PLAIN)
        return "".join(output.pieces)

    def _in_order(self) -> list[int]:
        """Return the lines of a key: header and titles of appearing or disappearing panes first, then top to bottom."""
        first = next((y for y, line in enumerate(self._wanted) if _is_title(line)), 0)
        titles = {y for y in self._urgent if _is_title(self._wanted[y]) or _is_title(self._shown[y])}
        return sorted(self._urgent, key=lambda y: (y > first and y not in titles, y))

    def _write_line(self, y: int, output: _Output, budget: int) -> bool:
        """Write the differences of a line; return False if the budget ran out."""
        wanted, shown = self._wanted[y], self._shown[y]
        for begin, end in _changes(wanted, shown):
            at = begin
            while at < end:
                if output.bytes >= budget:
                    return False
                to = _whole(wanted, shown, min(end, at + PIECE))
                output.write(at, y, wanted[at:to])
                shown[at:to] = wanted[at:to]
                at = to
        return True


def _is_title(line: list[Cell]) -> bool:
    """Whether a line is the upper edge of a pane, with its title."""
    text = "".join([text for text, _ in line])
    return "─" in text and any(map(str.isalpha, text))


def _changes(wanted: list[Cell], shown: list[Cell]) -> list[tuple[int, int]]:
    """Return runs of cells to write: first column, and the one after the last."""
    if wanted == shown:
        return []
    whole: list[tuple[int, int]] = []
    for begin, end in _differences(wanted, shown):
        while begin and not (wanted[begin][0] and shown[begin][0]):
            begin -= 1
        end = _whole(wanted, shown, end)
        if whole and begin <= whole[-1][1]:
            whole[-1] = (whole[-1][0], max(end, whole[-1][1]))
        else:
            whole.append((begin, end))
    return whole


def _differences(wanted: list[Cell], shown: list[Cell]) -> list[tuple[int, int]]:
    """Return runs of cells that differ; runs with a small gap between them are one."""
    runs: list[tuple[int, int]] = []
    for x in compress(count(), map(ne, wanted, shown)):
        if runs and x - runs[-1][1] <= GAP:
            runs[-1] = (runs[-1][0], x + 1)
        else:
            runs.append((x, x + 1))
    return runs


def _whole(wanted: list[Cell], shown: list[Cell], end: int) -> int:
    """Return the first column from `end` on that is no second half of a wide character, wanted or shown."""
    while end < len(wanted) and not (wanted[end][0] and shown[end][0]):
        end += 1
    return end


def _part(line: list[Cell], at: int) -> None:
    """Replace a wide character that is cut at this column by blanks."""
    if not 0 < at < len(line) or line[at][0]:
        return
    begin, end = at, at
    while not line[begin][0]:
        begin -= 1
    while end < len(line) and not line[end][0]:
        end += 1
    blank = _interned(Ink(back=line[begin][1].back))
    line[begin:end] = [(" ", blank)] * (end - begin)


def _cut(cells: list[Cell], start: int, end: int) -> list[Cell]:
    """Return the cells from `start` to `end`; halves of cut characters are blank."""
    _part(cells, start)
    _part(cells, end)
    return cells[start:end]


class _Output:
    """Output that draws cells with as few bytes as possible."""

    def __init__(self, *, erases: bool) -> None:
        self._erases = erases
        self.pieces: list[str] = []
        self.bytes = 0
        self._ink = PLAIN
        self._at = (-1, -1)

    def write(self, x: int, y: int, cells: Sequence[Cell]) -> None:
        """Draw cells from column `x` of line `y` on; of blanks only the background counts."""
        self._go(x, y)
        texts: list[str] = []
        blank = _blank_of(self._ink)
        for text, ink in cells:
            if ink is not self._ink and not (ink is blank and text == " "):
                self._draw("".join(texts))
                texts.clear()
                self.use(ink)
                blank = _blank_of(ink)
            texts.append(text)
        self._draw("".join(texts))
        self._at = (x + len(cells), y)

    def _draw(self, text: str) -> None:
        """Write a text in the current ink, and erase long runs of blanks in it if the terminal can."""
        if not self._erases or _blank_of(self._ink) is None:
            self._put(text)
            return
        for part in _MANY_BLANKS.split(text):
            blanks = len(part)
            erased = blanks >= ERASED and part.isspace()
            self._put(f"\x1b[{blanks}X\x1b[{blanks}C" if erased else part)

    def _go(self, x: int, y: int) -> None:
        """Move the cursor."""
        at, line = self._at
        if (at, line) == (x, y):
            return
        if line != y:
            self._put(f"\x1b[{y + 1};{x + 1}H")
        elif x < at:
            self._put(f"\x1b[{x + 1}G")
        elif x == at + 1:
            self._put("\x1b[C")
        else:
            self._put(f"\x1b[{x - at}C")

    def use(self, ink: Ink) -> None:
        """Switch to this ink."""
        old, self._ink = self._ink, ink
        if old == ink:
            return
        if ink == PLAIN:
            self._put("\x1b[m")
            return
        codes: list[str] = []
        if old.marks and old.marks != ink.marks:
            codes.append("0")
            old = PLAIN
        codes += [new for new, was in zip(ink[::-1], old[::-1], strict=True) if new != was]
        self._put(f"\x1b[{';'.join(codes)}m")

    def _put(self, text: str) -> None:
        self.pieces.append(text)
        self.bytes += len(text) if text.isascii() else len(text.encode(errors="replace"))
