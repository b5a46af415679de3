"""The shown and the wanted content of the terminal; writes the difference in pieces, output caused by a key first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import compress, count
from operator import ne

from rich.color import ColorSystem
from rich.segment import Segment

from .ink import BLANK, PLAIN, Cell, Ink, blank_of, pen, pen_of
from .terminal_output import Abilities, Output, Stretch

GAP = 3
"""Maximum unchanged cells of the same ink between two changes that are rewritten: a jump takes as many bytes."""

PIECE = 128
"""Maximum cells of a stretch."""

BYTES_PER_CELL = 2
"""Estimate of the output until it is counted."""

_UNKNOWN: Cell = ("\0", PLAIN)
"""A value that no cell has, for unknown content of the terminal."""


class Picture:
    """The wanted and the shown content of a terminal."""

    def __init__(self, *, erases: bool = False) -> None:
        """Create the picture. `erases`: whether the terminal erases with the current background."""
        self._abilities = Abilities(erases=erases)
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
        self._is_unknown = True
        """Whether nothing is known of the terminal's content."""

    def allow(self, *, repeats: bool) -> None:
        """Note whether the terminal knows REP, once it has answered."""
        self._abilities = self._abilities._replace(repeats=repeats)

    def resize(self, width: int, height: int) -> None:
        """Resize the picture, and forget the shown content."""
        if (width, height) != self.size:
            self.size = (width, height)
            self._wanted = [[BLANK] * width for _ in range(height)]
            self.forget()

    def forget(self) -> None:
        """Mark everything as unknown, since another program may have written to the terminal."""
        width, height = self.size
        self._shown = [[_UNKNOWN] * width for _ in range(height)]
        self._dirty = dict.fromkeys(range(height))
        self._urgent = set()
        self._is_unknown = True

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
        output = Output(self.size[0], self._abilities)
        if self._dirty and self._is_unknown and self._abilities.erases:
            self._clear(output)
        batch: list[Stretch] = []
        left = budget
        for stretch in self._stretches():
            batch.append(stretch)
            left -= BYTES_PER_CELL * len(stretch.cells)
            if left <= 0:
                output.write(batch)
                batch.clear()
                left = budget - output.bytes
                if left <= 0:
                    break
        output.write(batch)
        output.use(PLAIN)
        return output.text

    def _clear(self, output: Output) -> None:
        """Fill the terminal with its most frequent background."""
        self._is_unknown = False
        (ground, _), *_ = Counter(ink.back for line in self._wanted for _, ink in line).most_common(1)
        blank = pen_of(Ink(back=ground))[" "]
        output.clear(blank[1])
        self._shown = [[blank] * self.size[0] for _ in self._wanted]

    def _stretches(self) -> Iterator[Stretch]:
        """Yield the changed cells, the most urgent first, which are then taken as shown."""
        later = [y for y in self._dirty if y not in self._urgent]
        for y in [*self._in_order(), *later]:
            wanted, shown = self._wanted[y], self._shown[y]
            for begin, end in _changes(wanted, shown):
                at = begin
                while at < end:
                    to = _whole(wanted, shown, min(end, at + PIECE))
                    shown[at:to] = wanted[at:to]
                    yield Stretch(at, y, wanted[at:to])
                    at = to
            self._dirty.pop(y, None)
            self._urgent.discard(y)

    def _in_order(self) -> list[int]:
        """Return the lines of a key: header and titles of appearing or disappearing panes first, then top to bottom."""
        first = next((y for y, line in enumerate(self._wanted) if _is_title(line)), 0)
        titles = {y for y in self._urgent if _is_title(self._wanted[y]) or _is_title(self._shown[y])}
        return sorted(self._urgent, key=lambda y: (y > first and y not in titles, y))


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
    begin, end = -1, -1 - GAP
    for x in compress(count(), map(ne, wanted, shown)):
        if x != end and (x - end > GAP or not _has_one_ink(wanted[end - 1 : x + 1])):
            if begin >= 0:
                runs.append((begin, end))
            begin = x
        end = x + 1
    if begin >= 0:
        runs.append((begin, end))
    return runs


def _has_one_ink(cells: list[Cell]) -> bool:
    """Whether the ink of the first cell can draw the other ones."""
    ink = cells[0][1]
    blank = blank_of(ink)
    return all(other is ink or (other is blank and text == " ") for text, other in cells)


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
    line[begin:end] = [pen_of(Ink(back=line[begin][1].back))[" "]] * (end - begin)


def _cut(cells: list[Cell], start: int, end: int) -> list[Cell]:
    """Return the cells from `start` to `end`; halves of cut characters are blank."""
    _part(cells, start)
    _part(cells, end)
    return cells[start:end]
