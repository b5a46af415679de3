"""Bytes that the cockpit writes until a picture is finished: attaching, the help, another pane."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from .cockpits import LARGE
from .crowds import attached, painted, simulated
from .figures import Row, Sample, limit_row
from .options import Effort
from .place import Place
from .terminal import Terminal

HELP_GOAL, PANE_GOAL, ATTACH_GOAL = 10.0, 12.0, 15.0
"""kB each."""
QUIET_S = 0.3
"""A picture is finished when nothing was written for this long. The next sample comes after a second at most."""
SETTLE_S = 6.0
WHERE = f"cockpit, 8 ranks, {LARGE[1]}×{LARGE[0]}"
HELP = "type to filter: a word, or a key"
PANES = {
    "2": "[2 Ranks]", "3": "[3 Logs]", "4": "[4 Curves]", "5": "[5 NCCL]", "6": "[6 Findings", "7": "[7 Events]",
    "1": "[1 Overview]",
}  # fmt: skip
"""Key → text of the tab that is then the current one."""


def finished(terminal: Terminal, before: int, what: str, shown: Callable[[str], bool]) -> float:
    """Return the kB that were written since `before` bytes, until the screen shows it and no more comes."""
    terminal.until(what, shown, 60)
    while not terminal.is_quiet(QUIET_S):
        pass
    return (terminal.received - before) / 1000


def pressed(terminal: Terminal, key: str, shown: Callable[[str], bool]) -> float:
    """Return the kB of a key, which is pressed right after a sample was drawn, long before the next one."""
    while terminal.is_quiet(QUIET_S):
        pass
    while not terminal.is_quiet(QUIET_S / 3):
        pass
    before = terminal.received
    terminal.press(key)
    return finished(terminal, before, f"{key!r} pressed", shown)


def attach(place: Place) -> float:
    """Return the kB of a cockpit from its start."""
    with attached(place) as terminal:
        return finished(terminal, 0, "the run", painted)


def keys(place: Place, rounds: int) -> tuple[list[float], list[float], dict[str, list[float]]]:
    """Return the kB of opening the help, of closing it, and of each pane by its key."""
    opened, closed = [], []
    panes: dict[str, list[float]] = {key: [] for key in PANES}
    with attached(place) as terminal:
        terminal.until("the run", painted, 60)
        terminal.rest(SETTLE_S)
        for _ in range(rounds):
            opened.append(pressed(terminal, "?", lambda text: HELP in text))
            closed.append(pressed(terminal, "\x1b", lambda text: HELP not in text))
            for key, tab in PANES.items():
                panes[key].append(pressed(terminal, key, lambda text, tab=tab: tab in text))  # type: ignore[misc]
    return opened, closed, panes


def sample(values: list[float]) -> Sample:
    """A sample in kB."""
    return Sample(tuple(values), "kB", 1)


def rows(effort: Effort) -> Iterator[Row]:
    """One run with 1 Hz on one node."""
    rounds = max(3, effort.keys // 6)
    with simulated(1) as place:
        yield limit_row(
            f"{WHERE}: bytes of attaching", sample([attach(place) for _ in range(rounds)]), ATTACH_GOAL
        )
        opened, closed, panes = keys(place, rounds)
    yield limit_row(f"{WHERE}: bytes of opening the help", sample(opened), HELP_GOAL)
    yield limit_row(f"{WHERE}: bytes of closing the help", sample(closed), HELP_GOAL)
    medians = {key: sample(values).median for key, values in panes.items()}
    largest = max(medians, key=medians.__getitem__)
    every = ", ".join(f"{key}: {median:.1f}" for key, median in sorted(medians.items()))
    note = f"The largest of all panes; kB by key: {every}."
    yield limit_row(f"{WHERE}: bytes of another pane", sample(panes[largest]), PANE_GOAL, "", (note,))
