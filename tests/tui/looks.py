"""Screens as text files: their characters, a letter for the colour of each, and their backgrounds.

With DISTUI_WRITE=1 the tests write their files in tests/tui/dumps anew: read the difference before you commit it.
The files name colours as the theme does; dumps/looks/palette.txt has their values. Capital letters are bold. What a
dialog dims has its characters only.
"""

from __future__ import annotations

import asyncio
import difflib
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from rich.cells import cell_len
from rich.color import Color as RichColor
from rich.style import Style
from textual._context import visible_screen_stack
from textual.color import Color
from textual.screen import ModalScreen
from textual.strip import Strip
from textual.theme import Theme

from distui.tui import colours
from distui.tui.app import CockpitApp

if TYPE_CHECKING:
    from conftest import Rig

Size = tuple[int, int]

FOLDER = Path(__file__).with_name("dumps")
HEAD = "━━━ "
"""Before the title of a picture in a file."""
SIZES = SMALL, MIDDLE, LARGE = (80, 24), (120, 40), (200, 60)
SETTLE_S = 3.0
"""Virtual seconds after which every frame, plan and search is done."""

INKS = {
    "text": ".", "head": "h", "dim": "d", "stale": "s", "accent": "a", "ok": "o", "warn": "w", "bad": "b",
    "muted": "m", "hit": "g", "cold": "c", "hot": "i", "thumb": "x", "track": "y",
    "calm": "r", "calm_next": "t",
    **{f"heat{step}": str(step) for step in range(9)},
}  # fmt: skip
"""The letter of each colour of characters."""
BOLD = {".": ":"} | {letter: letter.upper() for letter in INKS.values() if letter.isalpha()}
PAPERS = ("ground", "panel", "surface", "track", "thumb", *(f"heat{step}" for step in range(9)))
"""Colours of backgrounds; `track` and `thumb` are of scrollbars."""
SPARE = "zvuqpnlkjfeZVUQPNLKJFE"
"""Letters for colours that have no name, in the order in which they come."""
MARKS = ("italic", "underline", "strike", "reverse")

Cell = tuple[str, str, str]
"""A character, its colour with what marks it, and its background."""


def palette(theme: Theme) -> dict[str, str]:
    """The value of each colour of a theme by its name."""
    styles = colours.styles(theme.name)
    named = {name: value_of(styles[name].color) for name in INKS if name in styles}
    if theme.ansi:
        return {**named, "ground": "default"}
    heat = {f"heat{step}": value_of(styles[f"heat{step}"].bgcolor) for step in range(9)}
    variables = theme.to_color_system().generate()
    ground = Color.parse(variables["background"])
    named |= heat | {
        "border": variables["border"],
        "muted": (ground + ground.get_contrast_text(0.6)).hex,
        "cold": value_of(styles["heat0"].color),
        "hot": value_of(styles["heat8"].color),
        "ground": variables["background"],
        "panel": variables["panel"],
        "surface": variables["surface"],
        "track": variables["scrollbar-background"],
        "thumb": variables["scrollbar"],
    }
    return {name: value.lower() for name, value in named.items()}


def value_of(colour: RichColor | None) -> str:
    """How a colour is written down."""
    return "default" if colour is None else colour.name.lower()


def composed(app: CockpitApp) -> list[Strip]:
    """The rows of the screen, with those that are behind it."""
    visible_screen_stack.set(app._background_screens)
    return app.screen._compositor.render_strips()


class Dump:
    """The cells of a screen as lines of text."""

    def __init__(self, app: CockpitApp) -> None:
        colours = palette(app.current_theme)
        self._inks = {colours[name]: name for name in reversed((*INKS, "border")) if name in colours}
        self._papers = {colours[name]: name for name in reversed(PAPERS) if name in colours}
        self._letters: dict[str, str] = {}
        self._rows = [list(self._cells(strip)) for strip in composed(app)]
        self._dialog = None
        if isinstance(app.screen, ModalScreen) and app.screen.styles.background.a:
            self._dialog = [child.region for child in app.screen.children]

    def _cells(self, strip: Strip) -> Iterator[Cell]:
        """A cell for each column; the second one of a wide character has no text."""
        for text, style, _ in strip:
            ink, paper = self._colours(style or Style())
            for character in text:
                yield character, ink, paper
                yield from [("", ink, paper)] * (cell_len(character) - 1)

    def _colours(self, style: Style) -> tuple[str, str]:
        ink, paper = value_of(style.color), value_of(style.bgcolor)
        marks = [mark for mark in MARKS if getattr(style, mark)]
        if style.reverse and ink != paper:
            ink, paper = paper, ink
            marks.remove("reverse")
        if style.bold:
            marks.insert(0, "bold")
        return " ".join([*marks, self._inks.get(ink, ink)]), self._papers.get(paper, paper)

    def _is_dimmed(self, x: int, y: int) -> bool:
        """Whether the cell is behind a dialog."""
        return self._dialog is not None and not any(region.contains(x, y) for region in self._dialog)

    def _letter(self, ink: str) -> str:
        """The letter of a colour, which is in the legend from now on."""
        if ink == "border":  # frames that have no focus
            return " "
        if ink not in self._letters:
            plain = INKS.get(ink.removeprefix("bold "), "")
            letter = BOLD.get(plain, "") if ink.startswith("bold ") else plain
            used = self._letters.values()
            self._letters[ink] = letter or next(spare for spare in SPARE if spare not in used)
        return self._letters[ink]

    def text(self) -> list[str]:
        """The characters."""
        return ["".join(character for character, _, _ in row).rstrip() for row in self._rows]

    def inks(self) -> list[str]:
        """A letter for the colour of each character; none behind a dialog."""
        return ["".join(self._inks_of(y, row)).rstrip() for y, row in enumerate(self._rows)]

    def _inks_of(self, y: int, row: list[Cell]) -> Iterator[str]:
        for x, (character, ink, _) in enumerate(row):
            yield " " if character.isspace() or self._is_dimmed(x, y) else self._letter(ink)

    def papers(self) -> list[str]:
        """The columns of each background that is not the usual one, for each group of rows that are alike."""
        rows = [", ".join(self._papers_of(y, row)) for y, row in enumerate(self._rows)]
        lines = []
        for papers, group in groupby(range(len(rows)), rows.__getitem__):
            if papers:
                lines.append(f"{span(list(group)):>5}  {papers}")
        return lines

    def _papers_of(self, y: int, row: list[Cell]) -> Iterator[str]:
        def shown(x: int) -> str:
            return "ground" if self._is_dimmed(x, y) else row[x][2]

        for paper, group in groupby(range(len(row)), shown):
            columns = list(group)
            if paper != "ground":
                yield paper if len(columns) == len(row) else f"{paper} {span(columns)}"

    def lines(self) -> list[str]:
        """All of it, each line with the number of its row."""
        text = [f"{y:2}  {line}".rstrip() for y, line in enumerate(self.text())]
        inks = [f"{y:2}  {line}" for y, line in enumerate(self.inks()) if line]
        legend = ", ".join(f"{letter} {ink}" for ink, letter in sorted(self._letters.items()))
        papers = self.papers()
        return [*text, "", f"colours: {legend}", *inks, *(["", "backgrounds:", *papers] if papers else [])]


def is_colourless(app: CockpitApp) -> bool:
    """Whether the screen has no colours, not even grey ones."""
    styles = [style for strip in composed(app) for _, style, _ in strip if style]
    return all(style.color is None and style.bgcolor is None for style in styles)


def span(numbers: Sequence[int]) -> str:
    """`7`, or `7-9`."""
    return f"{numbers[0]}-{numbers[-1]}" if len(numbers) > 1 else str(numbers[0])


@asynccontextmanager
async def settled(it: Rig, size: Size) -> AsyncIterator[Rig]:
    """The app in a terminal of this size, once it shows all that it has."""
    async with it.app.run_test(size=size) as it.pilot:
        await asyncio.sleep(SETTLE_S)
        yield it


class Look:
    """Compares what one test shows with its file."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._pictures: dict[str, list[str]] = {}

    async def __call__(
        self,
        make: Callable[[], Rig],
        *keys: str,
        sizes: Sequence[Size] = SIZES,
        first: Callable[[Rig], Awaitable[None]] | None = None,
        resized: bool = False,
    ) -> None:
        """Compare the screen after `first` and some keys in each of these sizes.

        `resized`: one terminal takes all sizes, which costs a tenth of a start. Otherwise each size is a new app,
        for screens that show where one came from: places of cursors and scrollbars, charts of the last two seconds.
        """
        starts = [[size] for size in sizes] if not resized else [list(sizes)]
        for first_size, *others in starts:
            async with settled(make(), first_size) as it:
                if first is not None:
                    await first(it)
                await it.press(*keys)
                await self.take(it)
                for size in others:
                    await it.pilot.resize_terminal(*size)
                    await self.take(it)
        self.compare()

    async def take(self, it: Rig, title: str = "") -> None:
        """Add a picture of the screen."""
        await asyncio.sleep(SETTLE_S)
        width, height = it.app.size
        self.add(f"{width}x{height} {title}".rstrip(), Dump(it.app).lines())

    def add(self, title: str, lines: list[str]) -> None:
        """Add lines of text."""
        self._pictures[title] = lines

    def compare(self) -> None:
        """Fail if the pictures are not those of the file."""
        if os.environ.get("DISTUI_WRITE"):
            self._file.parent.mkdir(parents=True, exist_ok=True)
            pictures = ("\n".join([HEAD + title, *lines, ""]) for title, lines in self._pictures.items())
            self._file.write_text("\n".join(pictures))
            return
        known = read(self._file)
        differences = [
            line
            for title in {**known, **self._pictures}
            for line in difference(title, known.get(title, []), self._pictures.get(title, []))
        ]
        if differences:
            name = self._file.relative_to(FOLDER.parent)
            pytest.fail(
                "\n".join([f"{name} differs; DISTUI_WRITE=1 writes it anew", *differences]), pytrace=False
            )


def read(file: Path) -> dict[str, list[str]]:
    """The pictures in a file by their titles."""
    pictures: dict[str, list[str]] = {}
    for text in file.read_text().split(HEAD)[1:] if file.exists() else []:
        title, *lines = text.rstrip("\n").split("\n")
        pictures[title] = lines
    return pictures


def difference(title: str, known: list[str], seen: list[str]) -> list[str]:
    """What differs between two pictures, row by row."""
    lines = difflib.unified_diff(known, seen, f"{title} in the file", f"{title} now", n=0, lineterm="")
    return [line for line in lines if not line.startswith("@@")]
