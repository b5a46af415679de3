"""The cockpit in a real terminal: first paint, keys, CPU."""

from __future__ import annotations

import shutil
import statistics
import time
from collections.abc import Callable, Iterable, Iterator

from . import machine
from .agents import (
    SETTLE_S,
    agent_and_sampler,
    fake_driver,
    nvitop_env,
    nvitop_program,
    show_ranks,
    split,
    start_light,
)
from .counting import Cost, watched
from .figures import Row, Sample, limit_row, ratio_row, skipped
from .options import Effort
from .place import BIN, Place, a_place
from .terminal import Terminal

KEY_GOAL, CPU_GOAL, PAINT_GOAL, PAINT_CPU_GOAL, BESIDE_GOAL = 50.0, 1.0, 400.0, 350.0, 1.0
ROUNDS = 3
"""Turns in which a peer is compared."""
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
METRICS: Steps = tuple(("m", lambda text, title=title: title in text) for title in (*TITLES[1:], TITLES[0]))  # type: ignore[misc]
"""The next metric of the map of GPUs, which runs of many ranks have."""


def painted(text: str) -> bool:
    """Content, not only a frame: the run's name, its GPUs, and a rank that steps."""
    return "light" in text and "─ GPUs" in text and "▶ step" in text


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
    program = nvitop_program(place) if effort.nvitop else ""
    if not effort.nvitop:
        return []
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
        with Terminal([program, "--interval", "1"], nvitop_env(place), SIZE) as terminal:
            terminal.until("nvitop", lambda text: "MEM" in text and "Traceback" not in text, 60)
            terminal.rest(5)
            theirs.append(watched(terminal, effort.watch_s / ROUNDS))
            if "MEM" not in terminal.text() or "Traceback" in terminal.text():
                return [skipped(what, f"nvitop shows {terminal.text()[:200]!r}", BESIDE_GOAL)]
    each = [[value for cost in ours for value in cost.each[number]] for number in range(1 + len(pids))]
    note = (
        f"Of it: {split(each, ('cockpit', 'agent', 'sampler'))}; to the terminal "
        f"{_median(cost.bytes.median for cost in ours):.1f} kB/s, nvitop "
        f"{_median(cost.bytes.median for cost in theirs):.1f}."
    )
    return [ratio_row(what, _all(ours), _all(theirs), BESIDE_GOAL, (note,))]


def _all(costs: list[Cost]) -> Sample:
    return Sample(tuple(value for cost in costs for value in cost.cpu.values), "% of a core")


def _median(values: Iterable[float]) -> float:
    return statistics.median(values)


def htop(place: Place, seconds: float) -> str:
    """The same of htop at 1 Hz, where it is installed."""
    path = shutil.which("htop")
    if path is None:
        return "htop is not installed here"
    with Terminal([path, "-d", "10"], place.env, SIZE) as terminal:
        terminal.rest(2)
        cost = watched(terminal, seconds)
    return f"htop: {cost.cpu}, {cost.bytes.median:.1f} kB/s"


def paint_rows(place: Place, effort: Effort) -> Iterator[Row]:
    """First paint, after one that is not counted: files are not in the page cache yet."""
    first_paint(place)
    paints = [first_paint(place) for _ in range(effort.paints)]
    walls, cpus = zip(*paints, strict=True)
    yield limit_row("cockpit: first paint", Sample(walls, "ms", 0), PAINT_GOAL)
    yield limit_row("cockpit: first paint, CPU", Sample(cpus, "ms", 0), PAINT_CPU_GOAL)


def run_rows(place: Place, effort: Effort) -> Iterator[Row]:
    """Keys and CPU of a cockpit that runs."""
    for size in (SIZE, LARGE):
        with Terminal([str(BIN / "distui"), "attach", "light"], place.env, size) as terminal:
            terminal.until("the run", painted)
            terminal.rest(3)
            cost = watched(terminal, effort.watch_s)
            keys = key_times(terminal, effort.keys, PANES) if size == SIZE else []
        if keys:
            slowest = f"The slowest of {len(keys)}: {max(keys):.0f} ms."
            what = "cockpit: key to another screen"
            yield limit_row(what, Sample(tuple(keys), "ms", 1), KEY_GOAL, "", (slowest,))
        where = f"cockpit, 8 GPUs, 8 ranks, {size[1]}×{size[0]}: CPU"
        note = f"{cost.memory}; {cost.bytes.median:.1f} kB/s to the terminal."
        peer = htop(place, effort.watch_s / 2) if size == SIZE else ""
        yield limit_row(where, cost.cpu, CPU_GOAL, peer, (note,))


def rows(effort: Effort) -> Iterator[Row]:
    """All on one run with eight GPUs."""
    with a_place() as place:
        place.env.update(fake_driver(place))
        show_ranks(place, start_light(place, "light"))
        time.sleep(SETTLE_S)
        yield from paint_rows(place, effort)
        yield from run_rows(place, effort)
        yield from beside(place, effort)
