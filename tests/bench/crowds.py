"""The cockpit before runs of 8, 64 and 1,024 ranks: CPU, bytes, keys, a slow link, a terminal that did not read."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from distui.runners.node import routes

from .cockpits import BARE, BARE_PANES, LARGE, METRICS, bare_page, key_times
from .counting import Cost, watched
from .figures import Row, Sample, limit_row, ratio_row, tail_row
from .options import Effort
from .place import BIN, Place, a_place, wait_for
from .reached import Here, Whole
from .sshing import SCRIPT, WRITERS
from .terminal import Terminal

CPU_GOAL, RATE_GOAL, KEY_GOAL, SLOW_GOAL, STALL_GOAL = 1.8, 15.0, 1.5, 500.0, 1.2
"""CPU beside 8 ranks, kB/s, keys beside a bare Textual application, ms over a slow link, beside before."""
SLOW = 10_000
"""Bytes a second of a slow link."""
STALL_S, SETTLE_S = 15.0, 6.0


@contextmanager
def simulated(nodes: int) -> Iterator[Place]:
    """A run "many" of `nodes` nodes behind one socket, each with eight GPUs and ranks, at 1 Hz."""
    before = dict(os.environ)
    with a_place() as place:
        os.environ.clear()
        os.environ.update(place.env)
        try:
            (place.root / "s").mkdir(mode=0o700)
            run = Whole(Here(place), ("train.py",), nodes, "many")
            routes.write(run.entry.path, run.unix())
            words = [str(SCRIPT), run.record.run, str(nodes), str(WRITERS), "whole"]
            place.start([sys.executable, *words])
            wait_for("the simulated run", lambda: (run.entry.path / "agent.json").exists() or None)
            yield place
        finally:
            os.environ.clear()
            os.environ.update(before)


def painted(text: str) -> bool:
    """Content with values, not only a frame."""
    return "RUNNING" in text and "▶ step" in text and "step n/a" not in text


def attached(place: Place, rate: int | None = None) -> Terminal:
    """The cockpit on a large terminal."""
    return Terminal([str(BIN / "distui"), "attach", "many"], place.env, LARGE, rate)


def keys_of(place: Place, effort: Effort, large: bool, rate: int | None) -> tuple[list[float], list[float]]:
    """Of a metric where there is a map, and of another screen."""
    count = effort.keys if rate is None else max(6, effort.keys // 3)
    with attached(place, rate) as terminal:
        terminal.until("the run", painted, 90)
        terminal.rest(SETTLE_S)
        metric = key_times(terminal, count, METRICS) if large else []
        return metric, key_times(terminal, count)


def looked_at(place: Place, effort: Effort) -> Cost:
    """What it costs only to look."""
    with attached(place) as terminal:
        terminal.until("the run", painted, 60)
        terminal.rest(SETTLE_S)
        return watched(terminal, effort.watch_s)


def stalled(place: Place, effort: Effort) -> tuple[Cost, Cost]:
    """What it costs before a terminal does not read for STALL_S, and after."""
    with attached(place) as terminal:
        terminal.until("the run", painted, 60)
        terminal.rest(SETTLE_S)
        before = watched(terminal, effort.watch_s / 2)
        terminal.stall(STALL_S)
        terminal.rest(SETTLE_S)
        return before, watched(terminal, effort.watch_s / 2)


def stall_rows(before: Cost, after: Cost) -> list[Row]:
    """Both as a ratio to before."""
    what = f"cockpit, 8 ranks, after {STALL_S:g} s in which its terminal did not read, to before"
    return [
        ratio_row(f"{what}: CPU", after.cpu, before.cpu, STALL_GOAL),
        ratio_row(f"{what}: bytes", after.bytes, before.bytes, STALL_GOAL),
    ]


def bare_keys(place: Place, effort: Effort) -> Sample:
    """Keys of the bare application on the same terminal."""
    with Terminal(BARE, place.env, LARGE) as terminal:
        terminal.until("the bare application", bare_page, 60)
        terminal.rest(3)
        return Sample(tuple(key_times(terminal, effort.keys, BARE_PANES)), "ms", 0)


KINDS = ("another metric", "another screen")


def key_rows(where: str, kinds: tuple[list[float], list[float]], bare: Sample) -> Iterator[Row]:
    """A row for each kind of key."""
    for name, times in zip(KINDS, kinds, strict=True):
        if times:
            yield tail_row(
                f"cockpit, {where}: key to {name}", Sample(tuple(times), "ms", 0), bare, KEY_GOAL
            )


def slow_rows(where: str, kinds: tuple[list[float], list[float]]) -> Iterator[Row]:
    """The same over a slow link, whose bytes take most of the time."""
    for name, times in zip(KINDS, kinds, strict=True):
        if times:
            note = f"The slowest of {len(times)}: {max(times):.0f} ms."
            what = f"cockpit, {where}: key to {name} at {SLOW // 1000} kB/s"
            yield limit_row(what, Sample(tuple(times), "ms", 0), SLOW_GOAL, "", (note,))


def rows(effort: Effort) -> Iterator[Row]:
    """One run after another."""
    few: Cost | None = None
    for nodes in dict.fromkeys((1, min(8, effort.nodes), effort.nodes)):
        where = f"{nodes * 8:,} ranks on {nodes} node{'s' if nodes > 1 else ''}, 200×60"
        with simulated(nodes) as place:
            if nodes == 1:
                few, bare = looked_at(place, effort), bare_keys(place, effort)
            elif nodes == effort.nodes and few is not None:
                cost = looked_at(place, effort)
                what = f"cockpit, {where}, curves shown, 1 Hz, beside 8 ranks: CPU"
                yield ratio_row(what, cost.cpu, few.cpu, CPU_GOAL, (f"{cost.memory}.",))
                yield limit_row("the same: bytes to the terminal", cost.bytes, RATE_GOAL)
            yield from key_rows(where, keys_of(place, effort, nodes > 4, None), bare)
            yield from slow_rows(where, keys_of(place, effort, nodes > 4, SLOW))
            if nodes == 1:
                yield from stall_rows(*stalled(place, effort))
