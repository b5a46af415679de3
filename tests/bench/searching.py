"""A log of ten million lines: the first and all hits of a search, `logs --grep` beside grep, the way to line 1."""

from __future__ import annotations

import statistics
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from .cockpits import SIZE
from .figures import Row, Sample, ratio_row
from .options import Effort
from .place import BIN, Place, a_place, wait_for
from .terminal import Terminal

FIRST_GOAL, ALL_GOAL, GREP_GOAL, LINE_GOAL = 3.0, 4.0, 1.5, 1.0
"""All beside `grep` over the whole log."""
MIDDLE, EVERYWHERE = "needle-in-the-middle", "needle-of-six"
FIRST_LINE = "line 00000001 "


def written(path: Path, lines: int) -> int:
    """A log with one needle in the middle and six from the beginning to the end; its size in bytes."""
    middle, places = lines // 2, {1 + (lines - 1) * part // 5 for part in range(6)}
    with path.open("wb") as file:
        for number in range(1, lines + 1):
            text = b"step loss 2.3113 lr 3.0e-4 tok/s 12k"
            if number == middle:
                text = MIDDLE.encode()
            elif number in places:
                text = EVERYWHERE.encode()
            file.write(b"line %08d %s\n" % (number, text))
    return path.stat().st_size


def a_log(place: Place, lines: int) -> int:
    """A run "logs" whose command has written such a log and goes on; the log's size in bytes."""
    size = written(place.root / "big.log", lines)
    place.distui("exec", "--name", "logs", "--detach", "--", "sh", "-c", "cat big.log; exec sleep 3600")

    def look() -> bool | None:
        return (
            any(path.stat().st_size == size for path in place.run_dir("logs").glob("node-0/*/rank-0.out"))
            or None
        )

    wait_for("the log", look, 120)
    return size


class Opened:
    """The log screen of a cockpit, opened anew for each measurement."""

    def __init__(self, place: Place) -> None:
        self._place = place

    def seconds(self, keys: str, look: Callable[[str], bool], prompt: str = "") -> float:
        """From the keys to the screen that they ask for; `prompt` opens the field in which they are typed."""
        with Terminal([str(BIN / "distui"), "attach", "logs"], self._place.env, SIZE) as terminal:
            terminal.until("the run", lambda text: "RUNNING" in text, 30)
            terminal.press("3")
            terminal.until("the log", lambda text: "[3 Logs]" in text and "line " in text, 30)
            terminal.rest(1.5)
            if prompt:
                terminal.press(prompt)
                terminal.rest(0.5)
            pressed = terminal.press(keys)
            return terminal.until(keys, look, 60) - pressed


def hits(needle: str, count: int) -> Callable[[str], bool]:
    """Whether so many lines of the log with a needle are shown."""
    return lambda text: sum(needle in line and "line " in line for line in text.splitlines()) >= count


def timed(argv: list[str], place: Place) -> float:
    """Wall seconds of a command."""
    began = time.monotonic()
    subprocess.run(argv, env=place.env, cwd=place.root, capture_output=True, check=True, timeout=120)
    return time.monotonic() - began


def rows(effort: Effort) -> list[Row]:
    """One log."""
    times = max(3, effort.paints)
    with a_place() as place:
        size = a_log(place, effort.lines)
        screen = Opened(place)
        first = [screen.seconds(f"{MIDDLE}\r", hits(MIDDLE, 1), "/") for _ in range(times)]
        every = [screen.seconds(f"{EVERYWHERE}\r", hits(EVERYWHERE, 6), "/") for _ in range(times)]
        top = [screen.seconds("g", lambda text: FIRST_LINE in text) for _ in range(times)]
        ours, theirs = [], []
        for _ in range(times):
            ours.append(timed([str(BIN / "distui"), "logs", "logs", "--grep", MIDDLE], place))
            theirs.append(timed(["grep", MIDDLE, "big.log"], place))
        nothing = [timed([str(BIN / "distui"), "logs", "logs", "--tail", "1"], place) for _ in range(times)]
    where = f"a log of {effort.lines:,} lines, {size / 1e6:.0f} MB"
    start = statistics.median(nothing)
    note = f"Without the start of {start:.2f} s (`logs --tail 1`), in which nothing is searched."
    searched = [each - start for each in ours]
    measured = (
        (f"{where}: first hit in the middle, from the keys, beside `grep`", first, FIRST_GOAL, ()),
        ("the same: all of six hits", every, ALL_GOAL, ()),
        ("the same: to line 1", top, LINE_GOAL, ()),
        ("the same: `distui logs --grep`", searched, GREP_GOAL, (note,)),
    )
    peer = Sample(tuple(theirs), "s")
    return [
        ratio_row(what, Sample(tuple(times), "s"), peer, goal, notes)
        for what, times, goal, notes in measured
    ]
