"""The cockpit in a real terminal: first paint, keys, CPU; beside it a Textual application without distui."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from . import machine
from .agents import (
    ROUNDS,
    SETTLE_S,
    agent_and_sampler,
    fake_driver,
    nvitop,
    nvitop_program,
    show_ranks,
    split,
    start_light,
)
from .bare_app import PANES as BARE_COUNT
from .bare_app import TITLE
from .counting import Cost, watched
from .figures import Row, Sample, ratio_row, skipped, tail_row
from .options import Effort
from .place import BIN, Place, a_place
from .terminal import Terminal

KEY_GOAL, CPU_GOAL, PAINT_GOAL, BESIDE_GOAL = 1.5, 1.0, 1.3, 1.2
"""All beside a bare Textual application; the last beside nvitop."""
BARE = [sys.executable, str(Path(__file__).parent / "bare_app.py")]
SIZE = (40, 120)
LARGE = (60, 200)
TITLES = ("GPU utilisation", "GPU memory", "GPU power", "GPU temperature", "time per step")
"""Titles of the map, metric after metric: the key `m` goes round."""
Steps = tuple[tuple[str, Callable[[str], bool]], ...]
"""Keys that are pressed in turns, and whether the screen shows what each asks for."""
PANES: Steps = (
    ("2", lambda text: "[2 Ranks]" in text and "FOLLOW" not in text),
    ("1", lambda text: "[1 Overview]" in text and "FOLLOW" in text),
)
"""Another screen and back."""
BARE_PANES: Steps = tuple((key, lambda text, key=key: bare_page(text, key)) for key in "21")  # type: ignore[misc]
"""The same of the bare application."""
METRICS: Steps = tuple(("m", lambda text, title=title: title in text) for title in (*TITLES[1:], TITLES[0]))  # type: ignore[misc]
"""The next metric of the map of GPUs, which runs of many ranks have."""


def painted(text: str) -> bool:
    """Content, not only a frame: the run's name, its GPUs, and a rank that steps."""
    return "light" in text and "─ GPUs" in text and "▶ step" in text


def bare_page(text: str, page: str = "1") -> bool:
    """All panes of a page of the bare application."""
    return text.count(TITLE.format(page)) == BARE_COUNT


def bare_paint(place: Place) -> tuple[float, float]:
    """The bare application's `first_paint`."""
    with Terminal(BARE, place.env, SIZE) as terminal:
        wall = terminal.until("the bare application", bare_page, 60) - terminal.began
        return 1000 * wall, 1000 * machine.cpu_s(terminal.pid)


def first_paint(
    place: Place, run: str = "light", look: Callable[[str], bool] = painted
) -> tuple[float, float]:
    """Milliseconds from exec to the first frame with content, and of CPU until then."""
    with Terminal([str(BIN / "distui"), "attach", run], place.env, SIZE) as terminal:
        wall = terminal.until("the run", look, 60) - terminal.began
        return 1000 * wall, 1000 * machine.cpu_s(terminal.pid)


def key_times(terminal: Terminal, count: int, steps: Steps = PANES) -> list[float]:
    """Milliseconds from a key to the screen that it asked for, while the run goes on; whole rounds of `steps`."""
    found = []
    for number in range(-(-count // len(steps)) * len(steps)):
        terminal.rest(0.61)  # keys fall at every phase of the update
        key, shown = steps[number % len(steps)]
        pressed = terminal.press(key)
        found.append(1000 * (terminal.until(f"{key} pressed", shown) - pressed))
    return found


def beside(place: Place, effort: Effort) -> list[Row]:
    """Agent, sampler and a cockpit with curves, and nvitop on the same simulated GPUs, in turns."""
    program = nvitop_program(place) if effort.nvitop else "nvitop was not asked for"
    what = "agent + sampler + cockpit with curves, 120×40, 8 GPUs, 8 ranks: CPU beside nvitop"
    if not program.startswith("/"):
        return [skipped(what, program, BESIDE_GOAL, f"≤ {BESIDE_GOAL:.2f} ×")]
    pids = agent_and_sampler(place.agent("light"))
    ours, theirs = [], []
    for _ in range(ROUNDS):
        with Terminal([str(BIN / "distui"), "attach", "light"], place.env, SIZE) as terminal:
            terminal.until("the run", painted)
            terminal.rest(5)
            ours.append(watched(terminal, effort.watch_s / ROUNDS, pids))
        theirs.append(nvitop(place, program, effort.watch_s / ROUNDS))
    each = [[value for cost in ours for value in cost.each[number]] for number in range(1 + len(pids))]
    note = (
        f"Of it: {split(each, ('cockpit', 'agent', 'sampler'))}; to the terminal "
        f"{_rate(ours):.1f} kB/s, nvitop {_rate(theirs):.1f}."
    )
    return [ratio_row(what, _all(ours), _all(theirs), BESIDE_GOAL, (note,))]


def _all(costs: list[Cost]) -> Sample:
    return Sample(tuple(value for cost in costs for value in cost.cpu.values), "% of a core")


def _rate(costs: Iterable[Cost]) -> float:
    """Median of the bytes to the terminal, in kB/s."""
    return statistics.median(cost.bytes.median for cost in costs)


def paint_rows(place: Place, effort: Effort) -> Iterator[Row]:
    """First paint in turns, after one of each that is not counted: files are not in the page cache yet."""
    first_paint(place)
    bare_paint(place)
    pairs = [(first_paint(place), bare_paint(place)) for _ in range(effort.paints)]
    for number, what in enumerate(("cockpit: first paint", "cockpit: first paint, CPU")):
        ours, theirs = (Sample(tuple(pair[who][number] for pair in pairs), "ms", 0) for who in (0, 1))
        yield ratio_row(what, ours, theirs, PAINT_GOAL)


def run_rows(place: Place, effort: Effort) -> Iterator[Row]:
    """Keys and CPU of a cockpit that runs."""
    for size in (SIZE, LARGE):
        ours, theirs, keys, bare_keys = list[Cost](), list[Cost](), list[float](), list[float]()
        for _ in range(ROUNDS):
            with Terminal([str(BIN / "distui"), "attach", "light"], place.env, size) as terminal:
                terminal.until("the run", painted)
                terminal.rest(3)
                ours.append(watched(terminal, effort.watch_s / ROUNDS))
                keys += key_times(terminal, effort.keys // ROUNDS, PANES)
            with Terminal(BARE, place.env, size) as terminal:
                terminal.until("the bare application", bare_page)
                terminal.rest(3)
                theirs.append(watched(terminal, effort.watch_s / ROUNDS))
                bare_keys += key_times(terminal, effort.keys // ROUNDS, BARE_PANES)
        where = f"cockpit, 8 GPUs, 8 ranks, {size[1]}×{size[0]}"
        note = (
            f"{ours[-1].memory}; {_rate(ours):.1f} kB/s to the terminal, the bare one {_rate(theirs):.1f}."
        )
        yield ratio_row(f"{where}: CPU", _all(ours), _all(theirs), CPU_GOAL, (note,))
        yield tail_row(f"{where}: key to another screen", Sample(tuple(keys), "ms", 0),
                       Sample(tuple(bare_keys), "ms", 0), KEY_GOAL)  # fmt: skip


def rows(effort: Effort) -> Iterator[Row]:
    """All on one run with eight GPUs."""
    with a_place() as place:
        place.env.update(fake_driver(place))
        show_ranks(place, start_light(place, "light"))
        time.sleep(SETTLE_S)
        yield from paint_rows(place, effort)
        yield from run_rows(place, effort)
        yield from beside(place, effort)
