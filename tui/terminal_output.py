"""Draws cells with few bytes: sets each ink once for many lines, and jumps over cells of other inks."""

from __future__ import annotations

import curses
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from .ink import PLAIN, Cell, Ink, blank_of

ERASED = 9
"""Minimum blanks in a row that are erased instead of written: ECH and CUF (ECMA-48, 8.3.38 and 8.3.20) take 8 bytes."""

_LONG_RUN = re.compile(f" {{{ERASED},}}|([\u2500-\u28ff])\\1{{3,}}|([!-~])\\2{{7,}}")
"""Blanks, and equal lines, blocks, Braille or letters, of which an erasure or REP takes fewer bytes."""

SHORTENED = 4
"""Minimum cells of a run that may be shortened."""

REPEAT_PROBE = "\x1b[2;1H\u2800\x1b[3b"
"""Moves the cursor to REPEAT_ANSWER if the terminal knows REP (ECMA-48, 8.3.103).

mosh 1.4 and GNU screen ignore REP, tmux ignores it after characters that are not ASCII. U+2800 is invisible.
"""

REPEAT_ANSWER = (4, 1)
"""Column and line, counted from 0."""


class Stretch(NamedTuple):
    """Cells of one line, and the column of the first."""

    x: int
    y: int
    cells: Sequence[Cell]


class Abilities(NamedTuple):
    """Control functions that not every terminal knows."""

    erases: bool = False
    """ECH and ED with the current background."""
    repeats: bool = False
    """REP, which repeats the last character."""


def erases_in_colour(terminal: str) -> bool:
    """Whether terminfo says that this terminal erases with the current background ("bce"); False if it is unknown."""
    try:
        curses.setupterm(terminal, 1)
    except (curses.error, OSError, ValueError):
        return False
    return curses.tigetflag("bce") == 1 and curses.tigetstr("ech") is not None


_Run = tuple[int, int, list[str]]
"""Column and line of cells that one ink can draw, and their texts."""


class Output:
    """Collects the bytes that draw cells. The terminal's ink is plain at first."""

    def __init__(self, width: int, abilities: Abilities) -> None:
        """Create the output for a terminal with so many columns."""
        self._width = width
        self._erases, self._repeats = abilities
        self._pieces: list[str] = []
        self._ink = PLAIN
        self._at = (-1, -1)

    @property
    def text(self) -> str:
        """The output until now."""
        return "".join(self._pieces)

    @property
    def bytes(self) -> int:
        return len(self.text.encode(errors="replace"))

    def clear(self, ink: Ink) -> None:
        """Fill the terminal with the background of this ink."""
        self.use(ink)
        self._pieces.append("\x1b[2J")

    def write(self, stretches: Iterable[Stretch]) -> None:
        """Draw these cells, one ink after the other; of blanks only the background counts."""
        inks: dict[Ink, list[_Run]] = {self._ink: []}
        for stretch in stretches:
            _sort(stretch, inks)
        for ink, runs in inks.items():
            if runs:
                self.use(ink)
                shortens = self._repeats or (self._erases and blank_of(ink) is not None)
                for x, y, texts in runs:
                    if shortens and len(texts) >= SHORTENED:
                        self._draw_shortened(x, y, texts)
                    else:
                        self._draw(x, y, "".join(texts), len(texts))

    def _draw(self, x: int, y: int, text: str, columns: int) -> None:
        if self._at != (x, y):
            self._go(x, y)
        self._pieces.append(text)
        self._at = (x + columns, y)

    def _draw_shortened(self, x: int, y: int, texts: list[str]) -> None:
        """Draw a run in which one character is repeated many times with fewer bytes."""
        text, done = "".join(texts), 0
        if len(text) == len(texts) and "" not in texts:  # one column per character
            for same in _LONG_RUN.finditer(text):
                begin, end = same.span()
                short = self._shortened(text[begin], end - begin)
                if not short:
                    continue
                if begin > done:
                    self._draw(x + done, y, text[done:begin], begin - done)
                erased = text[begin] == " "  # which does not move the cursor
                self._draw(x + begin, y, short, 0 if erased else end - begin)
                done = end
        if done < len(texts):
            self._draw(x + done, y, text[done:], len(texts) - done)

    def _shortened(self, char: str, count: int) -> str:
        """Return the control function that draws `count` of this character; "" if the terminal has none."""
        if char == " ":
            return f"\x1b[{count}X" if self._erases and blank_of(self._ink) is not None else ""
        return f"{char}\x1b[{count - 1}b" if self._repeats else ""

    def _go(self, x: int, y: int) -> None:
        """Move the cursor. Relative moves are not used from the last column, where terminals differ."""
        at, line = self._at
        move = f"\x1b[{y + 1};{x + 1}H" if x else f"\x1b[{y + 1}H"
        if 0 <= at < self._width:
            move = min(move, _vertically(y - line) + _sideways(at, x), key=len)
        elif line == y:
            move = f"\x1b[{x + 1}G"
        self._pieces.append(move)

    def use(self, ink: Ink) -> None:
        """Switch to this ink."""
        old, self._ink = self._ink, ink
        if old == ink:
            return
        if ink == PLAIN:
            self._pieces.append("\x1b[m")
            return
        codes: list[str] = []
        if old.marks and old.marks != ink.marks:
            codes.append("0")
            old = PLAIN
        codes += [new for new, was in zip(ink[::-1], old[::-1], strict=True) if new != was]
        self._pieces.append(f"\x1b[{';'.join(codes)}m")


def _sort(stretch: Stretch, inks: dict[Ink, list[_Run]]) -> None:
    """Add the runs of a stretch to those of their inks. Blanks belong to an adjacent run of the same background."""
    x, y, cells = stretch
    ink: Ink | None = None
    blank: Ink | None = None
    texts: list[str] = []
    for at, (text, wanted) in enumerate(cells):
        if wanted is not ink and not (wanted is blank and text == " "):
            ink = wanted if text != " " else _ink_after_blanks(cells, at)
            blank = blank_of(ink)
            texts = []
            run = (x + at, y, texts)
            if ink in inks:
                inks[ink].append(run)
            else:
                inks[ink] = [run]
        texts.append(text)


def _ink_after_blanks(cells: Sequence[Cell], at: int) -> Ink:
    """Return the ink of the first other cell, if its blanks look like those before it; else the ink of the blanks."""
    blank = cells[at][1]
    for text, ink in cells[at:]:
        if text != " ":
            return ink if blank_of(ink) is blank else blank
        if ink is not blank:
            break
    return blank


def _sideways(at: int, to: int) -> str:
    """Return the shortest move from one column to another."""
    if at == to:
        return ""
    if to == 0:
        return "\r"
    if at - 3 <= to < at:
        return "\b" * (at - to)
    if to < at:
        return f"\x1b[{to + 1}G"
    return "\x1b[C" if to == at + 1 else f"\x1b[{to - at}C"


def _vertically(lines: int) -> str:
    """Return the move by so many lines down, or up if negative."""
    if not lines:
        return ""
    number = "" if abs(lines) == 1 else abs(lines)
    return f"\x1b[{number}{'B' if lines > 0 else 'A'}"
