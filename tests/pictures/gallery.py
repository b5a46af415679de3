"""The screens of one run in every size and every look: SCREEN-SIZE[-LOOK].svg.

Those of KEPT go to docs/pictures, the others to .pictures, for looking at.
"""

from __future__ import annotations

import contextlib
import tarfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from .stage import DISTUI, Stage, unnamed
from .svg import draw
from .terminal import Terminal

TARGET = Path(__file__).resolve().parents[2] / "docs" / "pictures"
LOOKED_AT = TARGET.parents[1] / ".pictures"
SIZES = ((80, 24), (120, 40), (200, 60))
KEPT = (120, 40)
"""Size of the pictures in the documentation, in the first look."""
LIGHT_PAPER = "#fafbfc"
RANKS = 8
NCCL_LOGS = Path(__file__).with_name("nccl-dgx8.tar.gz")
"""What NCCL's own host code wrote on eight ranks of a DGX H100: there is no GPU here that it would write on."""
REPLAY = """#!/bin/sh
# Prints NCCL's log of its rank, and stays.
cat "$(dirname "$0")/nccl/rank$RANK.log"
exec sleep 100000
"""


@dataclass(frozen=True)
class Screen:
    """One screen: the keys that lead to it from the overview, what it has to show then, and the keys back."""

    name: str
    title: str
    keys: tuple[str, ...]
    shown: str
    back: str = "1"


SCREENS = (
    Screen("overview", "The overview of eight ranks on eight GPUs", ("1",), r"GPU"),
    Screen("ranks", "The rank table", ("2",), r"rank"),
    Screen("logs", "The log of all ranks, merged by time", ("3",), r"loss"),
    Screen("curves", "The curves of the run", ("4",), r"step time"),
    Screen("findings", "The findings, with their evidence", ("6", " "), r"finding|wrong|problem"),
    Screen("events", "Attempts, checkpoints and commands", ("7",), r"attempt"),
    Screen("runs", "The list of runs", ("R",), r"preset", "\x1b"),
    Screen("form", "A new run, copied from the selected run", ("\x0e",), r"launcher torchrun", "\x1b"),
)
NCCL = Screen("nccl-map", "What NCCL reports of its communicators and rings", ("5",), r"communicator|ring")


@dataclass(frozen=True)
class Look:
    """A theme, or none."""

    suffix: str
    theme: str = "dark"
    env: tuple[tuple[str, str], ...] = ()
    paper: str | None = None


LOOKS = (Look(""), Look("-light", "light", paper=LIGHT_PAPER), Look("-plain", env=(("NO_COLOR", "1"),)))


@contextlib.contextmanager
def cockpit(stage: Stage, run: str, size: tuple[int, int], look: Look) -> Iterator[Terminal]:
    command = [DISTUI, "attach", run]
    settings = Path(stage.env["XDG_CONFIG_HOME"], "distui", "settings.toml")
    settings.parent.mkdir(parents=True, exist_ok=True)
    settings.write_text(f'theme = "{look.theme}"\n')
    with Terminal(command, stage.root, {**stage.env, **dict(look.env)}, *size) as terminal:
        terminal.until(r"Overview")
        yield terminal


def rest(terminal: Terminal, shown: str) -> None:
    """Wait for the screen, and for the samples that come with it."""
    terminal.until(shown)
    time.sleep(2.0)
    terminal.until(shown)


def take(terminal: Terminal, screen: Screen, size: tuple[int, int], look: Look) -> None:
    """Go there, draw it, go back."""
    for key in screen.keys:
        terminal.press(key)
    rest(terminal, screen.shown)
    name = f"{screen.name}-{size[0]}x{size[1]}{look.suffix}"
    picture = unnamed(draw(terminal.cells, screen.title, look.paper))
    folder = TARGET if size == KEPT and not look.suffix else LOOKED_AT
    (folder / f"{name}.svg").write_text(picture, encoding="utf-8")
    if not look.suffix and size == SIZES[0]:
        lines = "\n".join(line.rstrip() for line in terminal.text.splitlines())
        folder = (
            TARGET if screen.name == "overview" else LOOKED_AT
        )  # a package index shows it in place of the picture
        (folder / f"{name}.txt").write_text(unnamed(lines.rstrip()) + "\n", encoding="utf-8")
    print(f"{name}.svg")
    terminal.press(screen.back)
    terminal.until(r"Overview")


def start_nccl(stage: Stage) -> None:
    """A run whose ranks print NCCL's log."""
    (stage.root / "nccl").mkdir()
    with tarfile.open(NCCL_LOGS) as logs:
        logs.extraction_filter = getattr(tarfile, "data_filter", None)  # from Python 3.11.4 on
        logs.extractall(stage.root / "nccl")
    script = stage.root / "replay.sh"
    script.write_text(REPLAY)
    script.chmod(0o755)
    words = (
        "--name",
        "nccl-small",
        "--nproc-per-node",
        str(RANKS),
        "--no-python",
        "--detach",
        "--",
        str(script),
    )
    stage.distui("launch", "ddp", *words)


def all_pictures(wanted: Callable[[str], bool]) -> None:
    """Every screen that is wanted, in every size and look."""
    screens = [screen for screen in SCREENS if wanted(screen.name)]
    if not screens and not wanted(NCCL.name):
        return
    TARGET.mkdir(exist_ok=True)
    LOOKED_AT.mkdir(exist_ok=True)
    with contextlib.closing(Stage(gpus=RANKS)) as stage:
        stage.train("gpt-small", RANKS)
        time.sleep(60)  # curves need a past
        for size in SIZES:
            for look in LOOKS:
                with cockpit(stage, "gpt-small", size, look) as terminal:
                    for screen in screens:
                        take(terminal, screen, size, look)
        stage.distui("stop", "gpt-small", "--yes")
        stage.play()  # its processes have left the GPUs
        if wanted(NCCL.name):
            start_nccl(stage)
            for size in SIZES:
                for look in LOOKS:
                    with cockpit(stage, "nccl-small", size, look) as terminal:
                        take(terminal, NCCL, size, look)
