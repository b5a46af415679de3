"""CPU of processes over some time, also of one whose terminal must be read meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from . import machine
from .figures import Sample
from .terminal import Terminal


def cpu_percents(pids: Sequence[int], seconds: float, parts: int = 6) -> list[list[float]]:
    """CPU of each process in percent of a core, in `parts` pieces of the time."""
    found: list[list[float]] = [[] for _ in pids]
    for _ in range(parts):
        before, began = [machine.cpu_s(pid) for pid in pids], time.monotonic()
        time.sleep(seconds / parts)
        took = time.monotonic() - began
        for kept, pid, then in zip(found, pids, before, strict=True):
            kept.append(100 * (machine.cpu_s(pid) - then) / took)
    return found


def together(each: list[list[float]]) -> Sample:
    """The sum of all processes, piece by piece."""
    return Sample(tuple(sum(piece) for piece in zip(*each, strict=True)), "% of a core")


@dataclass(frozen=True, slots=True)
class Cost:
    """What a viewer used while it was only looked at."""

    cpu: Sample
    memory: machine.Memory
    bytes: Sample
    """kB to the terminal a second."""
    each: list[list[float]]
    """CPU of the viewer, then of each process that was counted with it."""


def watched(terminal: Terminal, seconds: float, also: Sequence[int] = ()) -> Cost:
    """Let it be looked at, and count; `cpu` is of the viewer and of the processes in `also` together."""
    done = threading.Event()
    found: list[list[list[float]]] = []

    def count() -> None:
        found.append(cpu_percents([terminal.pid, *also], seconds))
        done.set()

    threading.Thread(target=count, daemon=True).start()
    rates = []
    before, began = terminal.received, time.monotonic()
    while not done.is_set():
        terminal.rest(0.2)
        if (took := time.monotonic() - began) >= seconds / 5:
            rates.append((terminal.received - before) / 1000 / took)
            before, began = terminal.received, time.monotonic()
    return Cost(together(found[0]), machine.memory(terminal.pid), Sample(tuple(rates), "kB/s", 1), found[0])
