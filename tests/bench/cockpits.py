"""The cockpit in a real terminal: first paint, keys, CPU."""

from __future__ import annotations

import shutil
import time

from .agents import SETTLE_S, fake_driver, show_ranks, start_light
from .counting import Cost, watched
from .figures import Row, Sample, limit_row
from .options import Effort
from .place import BIN, Place, a_place
from .terminal import Terminal

KEY_GOAL, CPU_GOAL, PAINT_GOAL = 50.0, 1.0, 400.0
SIZE = (40, 120)
LARGE = (60, 200)
TITLES = ("GPU utilisation", "GPU memory", "power, share", "temperature", "time of a step")
"""What the heat map is headed with, metric after metric: the key `m` goes round."""


def painted(text: str) -> bool:
    """Content, not only a frame: the run's name, its GPUs, and a rank that steps."""
    return "light" in text and TITLES[0] in text and "running" in text


def first_paint(place: Place) -> float:
    """Milliseconds from exec to the first frame with content."""
    with Terminal([str(BIN / "distui"), "attach", "light"], place.env, SIZE) as terminal:
        return 1000 * (terminal.until("the run", painted) - terminal.began)


def key_times(terminal: Terminal, count: int) -> list[float]:
    """Milliseconds from a key to the heat map that it asked for, while the run goes on."""
    found = []
    for number in range(count):
        terminal.rest(0.31)  # keys fall at every phase of the update
        title = TITLES[(number + 1) % len(TITLES)]
        pressed = terminal.press("m")
        found.append(1000 * (terminal.until(title, lambda text, t=title: t in text) - pressed))  # type: ignore[misc]
    return found


def htop(place: Place, seconds: float) -> str:
    """The same of htop at 1 Hz, where it is installed."""
    path = shutil.which("htop")
    if path is None:
        return "htop is not installed here"
    with Terminal([path, "-d", "10"], place.env, SIZE) as terminal:
        terminal.rest(2)
        cost = watched(terminal, seconds)
    return f"htop: {cost.cpu}, {cost.rate / 1000:.1f} kB/s"


def rows(effort: Effort) -> list[Row]:
    """All on one run with eight GPUs."""
    with a_place() as place:
        place.env.update(fake_driver(place))
        show_ranks(place, start_light(place, "light"))
        time.sleep(SETTLE_S)
        first_paint(place)  # not counted: files are not in the page cache yet
        paints = [first_paint(place) for _ in range(effort.paints)]
        costs: dict[tuple[int, int], Cost] = {}
        keys: list[float] = []
        for size in (SIZE, LARGE):
            with Terminal([str(BIN / "distui"), "attach", "light"], place.env, size) as terminal:
                terminal.until("the run", painted)
                terminal.rest(3)
                costs[size] = watched(terminal, effort.watch_s)
                keys += key_times(terminal, effort.keys if size == SIZE else 0)
        peer = htop(place, effort.watch_s / 2)
    found = [
        limit_row("cockpit: first paint", Sample(tuple(paints), "ms", 0), PAINT_GOAL),
        limit_row("cockpit: key to screen", Sample(tuple(keys), "ms", 1), KEY_GOAL, "",
                  (f"The slowest of {len(keys)}: {max(keys):.0f} ms.",)),
    ]  # fmt: skip
    for size, cost in costs.items():
        where = f"cockpit, 8 GPUs, 8 ranks, {size[1]}×{size[0]}: CPU"
        note = f"{cost.memory}; {cost.rate / 1000:.1f} kB/s to the terminal."
        found.append(limit_row(where, cost.cpu, CPU_GOAL, peer if size == SIZE else "", (note,)))
    return found
