"""`python -m tests.pictures [NAME…]`: run the shipped example, look at it, and write docs/pictures/*.svg."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from . import gallery
from .rack import Rack
from .stage import DISTUI, LAB, ROOT, STEPS, Launching, Stage, unnamed
from .svg import draw
from .terminal import NotShown, Terminal

TARGET = ROOT / "docs" / "pictures"


class Shown(Protocol):
    """Where a cockpit can be opened on a run."""

    def cockpit(self, run: str, columns: int, lines: int) -> Terminal: ...


@dataclass(frozen=True)
class Shot:
    """One picture: the size, what is pressed, and what the screen has to show then."""

    name: str
    title: str
    size: tuple[int, int]
    shown: tuple[str, ...]
    keys: tuple[str, ...] = ()
    first: str = r"step"
    """What stands there before a key is pressed."""


DOWN, UP, BEFORE, CLEAR = "\x1b[B", "\x1b[A", "\x1b[Z", "\x15"
"""Keys: the third goes to the pane before, the last one empties a field, as the form begins with the run at hand."""
LAUNCH = Shot(
    "launch", "A new run: the form, and the plan it makes", (120, 40), (r"torch\.distributed", "lr 3e-4"),
    ("\x0e", CLEAR, "train.py", DOWN, CLEAR, "--steps 5000 --lr 3e-4", DOWN, CLEAR, "2", UP, UP, BEFORE, "/",
     "start here", "\r"),
)  # fmt: skip
LAUNCH_MEMORY = Shot(
    "launch-memory", "What fits on which GPUs, beside the form", (120, 40), (r"is the simplest that fits", "fsdp2"),
    ("\x0e", CLEAR, "train.py", *[DOWN] * 12, "7B", DOWN, "8xA100-80GB", "\x1b[15~", *[BEFORE] * 14, "/", "a rank falls",
     "\r", "\t"),
)  # fmt: skip
FAILED = Shot("failed", "Why a run failed", (120, 40), (r"rank 1", r"loss \d"), ("\x1b",), r"failed")

VERDICT = Shot(
    "verdict", "The rank that the others wait for, with the evidence", (120, 40), ("hang-stopped", r"SIGCONT"),
    ("6", " "), r"is stopped",
)  # fmt: skip


NODES = Shot(
    "nodes",
    "A run on three nodes, one of which does not answer",
    (120, 40),
    ("no answer", "FOLLOW"),
    (),
    "no answer",
)
LAUNCHING = Shot("launching", "A launch through SkyPilot", (120, 40), ("numpy-2",), (), "provision")


def take(stage: Shown, run: str, shot: Shot) -> None:
    """Open the cockpit, press the keys, draw what it shows."""
    with stage.cockpit(run, *shot.size) as terminal:
        terminal.until(shot.first)
        for keys in shot.keys:
            terminal.press(keys)
            terminal.until(r"\S")
        terminal.until(*shot.shown)
        for _ in range(2):  # curves need a few samples
            time.sleep(1.5)
            terminal.until(*shot.shown)
        TARGET.mkdir(exist_ok=True)
        (TARGET / f"{shot.name}.svg").write_text(
            unnamed(draw(terminal.cells, shot.title)), encoding="utf-8"
        )
        print(f"{shot.name}.svg")
        if "-v" in sys.argv:
            print(terminal.text)


def without_gpus(wanted: Callable[[str], bool]) -> None:
    """Two ranks on the CPU; in the end one of them is killed."""
    if not any(wanted(shot.name) for shot in (LAUNCH, LAUNCH_MEMORY, VERDICT, FAILED)):
        return
    with contextlib.closing(Stage(gpus=0)) as stage:
        stage.train("gpt-small", 2, "--restarts", "0")
        for shot in (LAUNCH, LAUNCH_MEMORY):
            if wanted(shot.name):
                take(stage, "gpt-small", shot)
        if wanted(VERDICT.name):
            stage.kill("gpt-small", 1, signal.SIGSTOP)
            take(stage, "gpt-small", VERDICT)
            stage.kill("gpt-small", 1, signal.SIGCONT)
        if wanted(FAILED.name):
            stage.kill("gpt-small", 1)
            subprocess.run([DISTUI, "wait", "gpt-small", "--timeout", "60"], env=stage.env, check=False)
            take(stage, "gpt-small", FAILED)


def on_nodes(wanted: Callable[[str], bool]) -> None:
    """Six ranks on three hosts; the link to one of them is lost."""
    if wanted(NODES.name):
        with contextlib.closing(Rack(LAB)) as rack:
            rack.train("gpt-small", STEPS)
            with rack.cockpit("gpt-small", *NODES.size) as terminal:  # what is read of logs is kept
                terminal.until("gpu-3 r4", "gpu-3 r5")
            rack.unplug("gpu-3")
            take(rack, "gpt-small", NODES)
            rack.write_config()
            rack.distui("stop", "gpt-small", "--yes")


def while_launching(wanted: Callable[[str], bool]) -> None:
    """Two nodes of a cloud that nobody pays for: a script says what SkyPilot would."""
    if wanted(LAUNCHING.name):
        with contextlib.closing(Launching()) as stage:
            stage.launch("gpt-small")
            take(stage, "gpt-small", LAUNCHING)


def main(names: list[str]) -> int:
    """Make the pictures of these names, or all; 1 with a sentence when one cannot be made."""

    def wanted(name: str) -> bool:
        return not names or name in names

    try:
        gallery.all_pictures(wanted)
        without_gpus(wanted)
        on_nodes(wanted)
        while_launching(wanted)
    except (NotShown, FileExistsError, RuntimeError, subprocess.SubprocessError) as error:
        print(f"pictures: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main([word for word in sys.argv[1:] if word != "-v"]))
