"""`python -m tests.pictures.recording`: a hang found in the demo, as docs/pictures/hang.cast and hang.gif.

The cast is asciicast v2 (https://docs.asciinema.org/manual/asciicast/v2/), what the terminal really got. The GIF is
drawn from it with Pillow and DejaVu Sans Mono, which has braille and blocks.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyte
from PIL import Image, ImageDraw, ImageFont
from pyte.screens import Char

from .stage import DISTUI, Stage, unnamed
from .svg import LEFT, LOWER, PAPER, dots_of, is_braille, look
from .terminal import Terminal, cut

TARGET = Path(__file__).resolve().parents[2] / "docs" / "pictures"
COLUMNS, LINES = 110, 30
FONTS = Path("/usr/share/fonts/truetype/dejavu")
CELL = (8, 17)
"""Width and height of a cell in pixels."""
EVERY_S = 0.25
"""Between two frames of the GIF."""
LONGEST_S = 1.6
"""A frame that nothing changes is shown no longer."""
LAST_S = 4.0


class Written(NamedTuple):
    """A piece of output, and seconds since the beginning."""

    at: float
    text: str


class Recorder(Terminal):
    """A terminal that keeps what the program writes, and when."""

    def __init__(
        self, command: Sequence[str], cwd: Path, env: Mapping[str, str], columns: int, lines: int
    ) -> None:
        super().__init__(command, cwd, env, columns, lines)
        self.written: list[Written] = []
        self._began = time.monotonic()

    def _feed(self, data: bytes) -> None:
        text = unnamed(data.decode("utf-8", "replace"))
        self.written.append(Written(time.monotonic() - self._began, text))
        super()._feed(data)

    def wait(self, seconds: float) -> None:
        """Read for so long: the viewer of the recording looks at this."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self._read(left)


def play(stage: Stage) -> list[Written]:
    """The demo with a hang: its screen, the verdict, the stacks, the restart."""
    command = [DISTUI, "demo", "--hang", "--steps", "100000", "--nproc-per-node", "4"]
    with Recorder(command, stage.root, stage.env, COLUMNS, LINES) as terminal:
        terminal.until(r"RUNNING", seconds=60)
        terminal.until(r"step \d+", seconds=60)
        terminal.wait(6)
        terminal.until(r"rank 3 \w+ .*chargpt", seconds=150)
        terminal.wait(4)
        terminal.press("6")  # findings
        terminal.wait(1)
        terminal.press("e")  # with the evidence
        terminal.wait(4)
        terminal.press("w")  # stacks of all ranks
        terminal.until(r"hang", seconds=20)
        terminal.wait(4)
        terminal.press("\x1b")
        terminal.wait(0.5)
        terminal.press("r")
        terminal.until(r"Restart 4 ranks", seconds=20)
        terminal.wait(4)
        terminal.press("y")
        terminal.wait(1)
        terminal.press("1")
        terminal.until(r"attempt 2", r"RUNNING", r"ms/step", seconds=120)  # it trains again
        terminal.wait(6)
        written = terminal.written
        terminal.press("q")
    return written


def cast(written: Sequence[Written]) -> str:
    """asciicast v2."""
    head = {"version": 2, "width": COLUMNS, "height": LINES, "title": "distui finds a hang"}
    lines = [json.dumps(head), *(json.dumps([round(at, 3), "o", text]) for at, text in written)]
    return "\n".join(lines) + "\n"


def frames(written: Sequence[Written]) -> Iterator[tuple[float, list[list[Char]]]]:
    """Screens that differ, each with the seconds that it is shown."""
    screen: Any = pyte.Screen(COLUMNS, LINES)
    stream, held, at = pyte.Stream(screen), "", 0.0
    shown: list[list[Char]] | None = None
    for piece in written:
        if piece.at - at >= EVERY_S and shown is not None:
            yield min(piece.at - at, LONGEST_S), shown
            shown = None
        if shown is None:
            at = piece.at
        text, held = cut(held + piece.text)
        stream.feed(text)
        shown = [[screen.buffer[y][x] for x in range(COLUMNS)] for y in range(LINES)]
    if shown is not None:
        yield LAST_S, shown


def draw(cells: list[list[Char]], fonts: Mapping[bool, Any]) -> Image.Image:
    """One frame; blocks are drawn, so that they join."""
    width, height = CELL
    image = Image.new("RGB", (COLUMNS * width + 16, LINES * height + 16), PAPER)
    pen = ImageDraw.Draw(image)
    for y, line in enumerate(cells):
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


def gif(written: Sequence[Written], path: Path) -> None:
    """Draw every frame, and write one GIF of them that repeats."""
    size = 13
    fonts = {
        bold: ImageFont.truetype(str(FONTS / f"DejaVuSansMono{'-Bold' * bold}.ttf"), size)
        for bold in (False, True)
    }
    shown = list(frames(written))
    palette = draw(shown[-1][1], fonts).quantize(64)
    images = [
        draw(cells, fonts).quantize(64, palette=palette, dither=Image.Dither.NONE) for _, cells in shown
    ]
    times = [int(seconds * 1000) for seconds, _ in shown]
    images[0].save(path, save_all=True, append_images=images[1:], duration=times, loop=0, optimize=True)


def main(names: list[str]) -> int:
    """Record, or with the path of a cast draw that one again."""
    if names:
        lines = Path(names[0]).read_text(encoding="utf-8").splitlines()[1:]
        written = [Written(at, text) for at, _, text in map(json.loads, lines)]
    else:
        stage = Stage(gpus=8)
        try:
            written = play(stage)
        finally:
            stage.close()
        (TARGET / "hang.cast").write_text(cast(written), encoding="utf-8")
    gif(written, TARGET / "hang.gif")
    print(f"hang.gif: {(TARGET / 'hang.gif').stat().st_size // 1024} KiB")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
