"""Cells of a terminal → one SVG file, without a font or anything else from elsewhere. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from html import escape
from itertools import groupby
from typing import NamedTuple

from pyte.screens import Char

WIDTH, HEIGHT, SIZE = 8.4, 18, 14
"""Of a cell and of the letters, in SVG units."""
PAPER, INK = "#0d1117", "#c9d1d9"
FONTS = "ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace"
NAMED = {
    "black": "#484f58", "red": "#ff7b72", "green": "#3fb950", "brown": "#d29922", "blue": "#58a6ff",
    "magenta": "#bc8cff", "cyan": "#39c5cf", "white": "#c9d1d9",
}  # fmt: skip
NO_BREAK = "\u00a0"
_SPACES = re.compile(" {2,}")
"""Browsers no longer follow `xml:space`, and show these as one space."""
LOWER = "▁▂▃▄▅▆▇█"
"""Filled from below, by eighths: drawn, because few fonts join them."""
LEFT = "▏▎▍▌▋▊▉"
"""Filled from the left, by eighths."""


BRAILLE = range(0x2800, 0x2900)
"""Drawn too: many fonts lack it."""
DOTS = ((0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (0, 3), (1, 3))
"""Column and row of each of a glyph's bits (Unicode, Braille Patterns)."""


class Look(NamedTuple):
    """How a run of cells looks."""

    ink: str
    paper: str
    bold: bool
    italic: bool
    underlined: bool


def colour(name: str, default: str) -> str:
    """pyte's name of a colour, or its six hex digits, as SVG wants it."""
    if name == "default":
        return default
    if len(name) == 6 and all(digit in "0123456789abcdefABCDEF" for digit in name):
        return f"#{name.lower()}"
    return NAMED.get(name.removeprefix("bright"), default)


def look(cell: Char) -> Look:
    ink, paper = colour(cell.fg, INK), colour(cell.bg, PAPER)
    if cell.reverse:
        ink, paper = paper, ink
    return Look(ink, paper, cell.bold, cell.italics, cell.underscore)


def draw(cells: Sequence[Sequence[Char]], title: str, paper: str | None = None) -> str:
    """The whole picture; `title` is what a reader without eyes gets, `paper` the colour around the screen."""
    columns, lines = len(cells[0]), len(cells)
    width, height = columns * WIDTH + 16, lines * HEIGHT + 16
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height}" role="img">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{width:g}" height="{height}" rx="6" fill="{paper or PAPER}"/>',
        f'<g transform="translate(8 8)" font-family="{FONTS}" font-size="{SIZE}">',
    ]
    for row, line in enumerate(cells):
        parts += _line(line, row * HEIGHT)
    return "\n".join([*parts, "</g>", "</svg>", ""])


def _line(line: Sequence[Char], top: int) -> Iterator[str]:
    runs = [
        (key, [column for column, _ in group])
        for key, group in groupby(enumerate(line), lambda i: look(i[1]))
    ]
    for shown, columns in runs:
        if shown.paper != PAPER:
            yield _box(columns[0] * WIDTH, top, len(columns) * WIDTH, HEIGHT, shown.paper)
    for shown, columns in runs:
        yield from _run([(column, line[column].data) for column in columns], shown, top)


def is_braille(letter: str) -> bool:
    return len(letter) == 1 and ord(letter) in BRAILLE


def dots_of(letter: str) -> list[tuple[int, int]]:
    """Column (0, 1) and row (0 to 3) of each dot of a braille glyph."""
    return [place for bit, place in enumerate(DOTS) if ord(letter) - BRAILLE.start >> bit & 1]


def _kind(cell: tuple[int, str]) -> str:
    if is_braille(cell[1]):
        return "braille"
    return "block" if cell[1] and cell[1] in LOWER + LEFT else "text"


def _run(cells: list[tuple[int, str]], shown: Look, top: int) -> Iterator[str]:
    """One look: blocks as boxes, braille as dots, the rest as text of a fixed length."""
    for kind, group in groupby(cells, _kind):
        part = list(group)
        if kind == "braille":
            yield _braille(part, shown.ink, top)
        elif kind == "block":
            for same, twins in groupby(part, lambda cell: cell[1]):
                columns = [column for column, _ in twins]
                yield _block(same, columns[0], len(columns), shown.ink, top)
        else:
            yield from _text(part, shown, top)


def _text(cells: list[tuple[int, str]], shown: Look, top: int) -> Iterator[str]:
    text = "".join(letters for _, letters in cells)
    lead = len(text) - len(text.lstrip(" "))
    said = text.strip(" ")
    if not said:
        return
    style = (
        f' fill="{shown.ink}"' + ' font-weight="bold"' * shown.bold + ' font-style="italic"' * shown.italic
    )
    style += ' text-decoration="underline"' * shown.underlined
    x, length = (cells[0][0] + lead) * WIDTH, len(said) * WIDTH
    spaced = _SPACES.sub(lambda found: NO_BREAK * len(found[0]), escape(said, quote=False))
    yield f'<text x="{x:g}" y="{top + 13}" textLength="{length:g}"{style}>{spaced}</text>'


def _braille(cells: list[tuple[int, str]], ink: str, top: int) -> str:
    """One path of small squares."""
    size = 2
    squares = [
        f"M{column * WIDTH + 1.2 + across * WIDTH / 2:.1f} {top + 1.5 + down * HEIGHT / 4:.1f}h{size}v{size}h-{size}z"
        for column, letter in cells
        for across, down in dots_of(letter)
    ]
    return f'<path fill="{ink}" d="{"".join(squares)}"/>' if squares else ""


def _block(letter: str, column: int, count: int, ink: str, top: int) -> str:
    """Full and lower blocks join their neighbours; left ones stand alone."""
    if letter in LOWER:
        height = HEIGHT * (LOWER.index(letter) + 1) / 8
        return _box(column * WIDTH, top + HEIGHT - height, count * WIDTH, height, ink)
    share = WIDTH * (LEFT.index(letter) + 1) / 8
    boxes = (_box((column + number) * WIDTH, top, share, HEIGHT, ink) for number in range(count))
    return "".join(boxes)


def _box(x: float, y: float, width: float, height: float, fill: str) -> str:
    return f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" fill="{fill}"/>'
