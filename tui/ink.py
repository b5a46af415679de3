"""Cells of the terminal: a character with the attributes it is drawn with.

The second half of a wide character is a cell without text.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from rich.cells import cell_len
from rich.color import ColorSystem
from rich.style import Style
from textual.strip import SGR_STYLES


class Ink(NamedTuple):
    """Drawing attributes of a cell: parameters of SGR (ECMA-48, 8.3.117)."""

    fore: str = "39"
    back: str = "49"
    marks: str = ""
    """Bold, underlined, …; only a reset removes them."""


Cell = tuple[str, Ink]
PLAIN = Ink()
BLANK: Cell = (" ", PLAIN)
_inks: dict[Ink, Ink] = {PLAIN: PLAIN}
"""Each ink once, so that inks can be compared by identity."""
_SEEN_ON_BLANKS = frozenset(SGR_STYLES[bit] for bit in (3, 6, 8, 9, 12))
"""SGR codes that are visible on blanks: underline, reverse, strike, double underline, overline."""


def _interned(ink: Ink) -> Ink:
    return _inks.setdefault(ink, ink)


@lru_cache(4096)
def blank_of(ink: Ink) -> Ink | None:
    """Return the ink of blanks that look like this ink's blanks; None if its attributes are visible on blanks."""
    if _SEEN_ON_BLANKS.intersection(ink.marks.split(";")):
        return None
    return _interned(Ink(back=ink.back))


class Pen(dict[str, Cell]):
    """Cached cells of the single-column characters of one ink; KeyError for all other characters."""

    def __init__(self, ink: Ink) -> None:
        self.ink = _interned(ink)
        super().__init__({" ": (" ", blank_of(ink) or self.ink)})

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
def pen_of(ink: Ink) -> Pen:
    """Return the pen of an ink."""
    return Pen(ink)


@lru_cache(4096)
def pen(style: Style | None, colours: ColorSystem) -> Pen:
    """Return the pen of a style."""
    if style is None:
        return pen_of(PLAIN)
    attributes = style._attributes & style._set_attributes
    marks = [code for bit, code in enumerate(SGR_STYLES) if attributes & (1 << bit)]
    fore, back = PLAIN.fore, PLAIN.back
    if style.color is not None:
        fore = ";".join(style.color.downgrade(colours).get_ansi_codes())
    if style.bgcolor is not None:
        back = ";".join(style.bgcolor.downgrade(colours).get_ansi_codes(foreground=False))
    return pen_of(Ink(fore, back, ";".join(marks)))
