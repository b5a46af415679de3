"""`python -m tests.pictures.recording`: the hang of the demo in 20 s, as docs/pictures/hang.cast and hang.gif.

The cast is asciicast v2 (https://docs.asciinema.org/manual/asciicast/v2/): the output of the command in the README,
with its times. The GIF shows the same for the same time. Pillow draws it with DejaVu Sans Mono, which has braille.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyte
from PIL import Image, ImageDraw, ImageFont
from pyte.screens import Char

from .stage import DISTUI, Stage
from .svg import LEFT, LOWER, PAPER, dots_of, is_braille, look
from .terminal import NotShown, Terminal, cut, new_screen

TARGET = Path(__file__).resolve().parents[2] / "docs" / "pictures"
COLUMNS, LINES = 120, 36
COMMAND = ("demo", "--hang-after", "4")
ENDS_S = 20.4
"""Length of the recording."""
FONTS = Path("/usr/share/fonts/truetype/dejavu")
CELL = (8, 17)
"""Width and height of a cell in pixels."""
COLOURS = 128
"""Maximum number of colours of the GIF."""
EVERY_S = 0.2
"""Minimum seconds between two frames of the GIF."""


class Written(NamedTuple):
    """A piece of output, and seconds from the start of the program to it."""

    at: float
    text: str


class Recorder(Terminal):
    """A terminal that keeps the program's output with its times."""

    def __init__(
        self, command: Sequence[str], cwd: Path, env: Mapping[str, str], columns: int, lines: int
    ) -> None:
        super().__init__(command, cwd, env, columns, lines)
        self.written: list[Written] = []
        self._began = time.monotonic()

    def _show(self, text: str) -> None:
        self.written.append(Written(time.monotonic() - self._began, text))
        super()._show(text)

    def find(self, shown: str, seconds: float = 60.0) -> None:
        """Read until the screen holds a regular expression. Raises NotShown."""
        ends = time.monotonic() + seconds
        while not re.search(shown, self.text):
            if time.monotonic() > ends:
                raise NotShown(f"{shown} not on this screen:\n{self.text}")
            self._read(0.5)

    def wait(self, seconds: float) -> None:
        """Read for this long: the viewer of the recording reads the screen."""
        self.wait_until(time.monotonic() - self._began + seconds)

    def wait_until(self, at: float) -> None:
        """Read until this many seconds after the start of the program."""
        while (left := self._began + at - time.monotonic()) > 0:
            self._read(left)


def play(stage: Stage) -> list[Written]:
    """Return the output of the demo: a hang, its verdict, the stacks, the restart, and the curves. Raises NotShown."""
    with Recorder([DISTUI, *COMMAND], stage.root, stage.env, COLUMNS, LINES) as terminal:
        terminal.find(r"rank 5 on sim-1 waits for an event or a condition at checkpoint\.py:47")
        terminal.wait(0.6)
        terminal.press("w")
        terminal.find("Stacks of 16 ranks")
        terminal.wait(1.0)
        terminal.press("\x1b")
        terminal.find(r"^(?![\s\S]*Stacks of 16 ranks)")
        terminal.press("r")
        terminal.find("Restart 16 ranks")
        terminal.wait(0.5)
        terminal.press("y")
        terminal.find("attempt 2")
        terminal.press("4")
        terminal.wait_until(ENDS_S)
        written = [piece for piece in terminal.written if piece.at < ENDS_S] + [Written(ENDS_S, "")]
        if not re.search(r"step \d+ .*ms/step", terminal.text):
            raise NotShown(f"the curves do not go on: record again on a quiet machine\n{terminal.text}")
        terminal.press("q")
    return written


def cast(written: Sequence[Written]) -> str:
    """asciicast v2."""
    command = " ".join(("distui", *COMMAND))
    head = {
        "version": 2,
        "width": COLUMNS,
        "height": LINES,
        "title": "distui finds a hang",
        "command": command,
    }
    lines = [json.dumps(head), *(json.dumps([round(at, 3), "o", text]) for at, text in written)]
    return "\n".join(lines) + "\n"


def frames(written: Sequence[Written]) -> Iterator[tuple[float, list[list[Char]]]]:
    """Yield the screens, each with the seconds that it is shown; together they take as long as the recording."""
    screen = new_screen(COLUMNS, LINES)
    stream, held, began = pyte.Stream(screen), "", 0.0
    for piece in written:
        if piece.at - began >= EVERY_S:
            yield piece.at - began, cells(screen)
            began = piece.at
        text, held = cut(held + piece.text)
        stream.feed(text)
    yield ENDS_S - began, cells(screen)


def cells(screen: Any) -> list[list[Char]]:
    """Copy the screen as rows of cells."""
    return [[screen.buffer[y][x] for x in range(COLUMNS)] for y in range(LINES)]


def draw(rows: list[list[Char]], fonts: Mapping[bool, Any]) -> Image.Image:
    """One frame; blocks are drawn, so that they join."""
    width, height = CELL
    image = Image.new("RGB", (COLUMNS * width + 16, LINES * height + 16), PAPER)
    pen = ImageDraw.Draw(image)
    for y, line in enumerate(rows):
        for x, cell in enumerate(line):
            shown = look(cell)
            left, top = 8 + x * width, 8 + y * height
            if shown.paper != PAPER:
                pen.rectangle((left, top, left + width - 1, top + height - 1), fill=shown.paper)
            if cell.data in LOWER and cell.data:
                high = height * (LOWER.index(cell.data) + 1) // 8
                pen.rectangle(
                    (left, top + height - high, left + width - 1, top + height - 1), fill=shown.ink
                )
            elif cell.data in LEFT and cell.data:
                share = max(1, width * (LEFT.index(cell.data) + 1) // 8)
                pen.rectangle((left, top, left + share - 1, top + height - 1), fill=shown.ink)
            elif is_braille(cell.data):
                for across, down in dots_of(cell.data):
                    x0, y0 = left + 1 + across * width // 2, top + 1 + down * height // 4
                    pen.rectangle((x0, y0, x0 + 1, y0 + 1), fill=shown.ink)
            elif cell.data.strip():
                pen.text((left, top + 1), cell.data, font=fonts[shown.bold], fill=shown.ink)
    return image


def stacked(drawn: Sequence[Image.Image]) -> Image.Image:
    """Return one image of all frames, whose palette has the colours of each."""
    width, height = drawn[0].size
    image = Image.new("RGB", (width, height * len(drawn)))
    for number, frame in enumerate(drawn):
        image.paste(frame, (0, number * height))
    return image


def gif(written: Sequence[Written], path: Path) -> None:
    """Draw every frame, and write one GIF of them that repeats."""
    size = 13
    fonts = {
        bold: ImageFont.truetype(str(FONTS / f"DejaVuSansMono{'-Bold' * bold}.ttf"), size)
        for bold in (False, True)
    }
    shown = list(frames(written))
    drawn = [draw(rows, fonts) for _, rows in shown]
    palette = stacked(drawn).quantize(COLOURS)
    images = [frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in drawn]
    times = [round(seconds * 1000) for seconds, _ in shown]
    images[0].save(path, save_all=True, append_images=images[1:], duration=times, loop=0, optimize=True)


def main(names: list[str]) -> int:
    """Record, or with the path of a cast draw that one again."""
    if names:
        lines = Path(names[0]).read_text(encoding="utf-8").splitlines()[1:]
        written = [Written(at, text) for at, _, text in map(json.loads, lines)]
    else:
        stage = Stage(gpus=0)
        try:
            written = play(stage)
        except NotShown as error:
            print(f"recording: {error}", file=sys.stderr)
            return 1
        finally:
            stage.close()
        (TARGET / "hang.cast").write_text(cast(written), encoding="utf-8")
    gif(written, TARGET / "hang.gif")
    print(f"hang.gif: {(TARGET / 'hang.gif').stat().st_size // 1024} KiB")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
