"""A run with a long journal: what `ls`, `status` and `attach` take, and its agent's memory."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from functools import partial

from distui.presets.finding import Finding
from distui.runners.run.journal import Journal, read
from distui.runners.run.model import Event, FindingCleared, FindingRaised, HookChanged, Stamped

from . import machine
from .cockpits import first_paint
from .figures import Row, Sample, limit_row, ratio_row
from .helping import cpu_ms
from .options import QUICK, Effort
from .place import BIN, Place, a_place, wait_for

LIST_GOAL, ATTACH_GOAL, RSS_GOAL, MANY_GOAL_S = 1.3, 1.5, 55.0, 1.0
MANY = 1500
"""Ended runs of a place that was used for months."""
DISTUI = str(BIN / "distui")
TEXT = "rank {} steps at half the speed of the others: {} ms a step, they take {} ms"


def happened(count: int, pid: int) -> Iterator[Event]:
    """Events as they come in a long life: hooks that come and go, findings raised and cleared."""
    for number in range(count // 4):
        rank = number % 1024
        text = TEXT.format(rank, 250 + number % 50, 120 + number % 9)
        yield HookChanged(1, 0, "up", pid, "WARN", True, "2.27.3")
        yield FindingRaised(Finding("straggler", "warning", text, rank=rank, node=0))
        yield FindingCleared("straggler", rank, 0)
        yield HookChanged(1, 0, "armed", pid, "WARN", True, "2.27.3")


def lengthened(place: Place, name: str, count: int) -> None:
    """A live run with `count` events more in its journal, and an agent that has read them."""
    place.distui("exec", "--name", name, "--detach", "--", "sleep", "3600")
    agent, folder = place.agent(name), place.run_dir(name)
    os.kill(agent, signal.SIGTERM)
    wait_for("the agent's end", lambda: None if os.path.exists(f"/proc/{agent}") else True)
    journal = Journal(folder)
    seq = max(stamped.seq for stamped in read(folder))
    for number, event in enumerate(happened(count, os.getpid()), 1):
        journal.append(Stamped(time.time(), event, seq + number, 0))
    journal.close()
    place.distui("status", name)  # which starts another agent; that writes the fold beside the journal

    def look() -> int | None:
        pid = int(json.loads((folder / "agent.json").read_text())["pid"])
        return pid if pid != agent and os.path.exists(f"/proc/{pid}") else None

    wait_for("another agent", look, 120)


def painted(text: str) -> bool:
    """The run, and what it executes."""
    return "running" in text and "sleep" in text


def crowded(place: Place, runs: int) -> None:
    """Copies of a run that has ended."""
    place.distui("exec", "--name", "ended", "--", "true")
    folder = place.run_dir("ended")
    run = json.loads((folder / "run.json").read_text())["run"]
    for number in range(runs):
        other = f"{run[:-8]}{number:08x}"
        copy = folder.with_name(other)
        shutil.copytree(folder, copy)
        for name in ("run.json", "plan.json", "journal.jsonl"):
            path = copy / name
            path.write_text(path.read_text().replace(run, other).replace(run[-8:], other[-8:]))
        for path in copy.glob("*.fold"):
            path.unlink()


def rows(effort: Effort) -> Iterator[Row]:
    """A run with a long journal beside one without, each command several times in turns; then many runs."""
    where = f"a run with a journal of {effort.events:,} events, beside one that has just begun"
    with a_place() as place, a_place() as other:
        lengthened(place, "long", effort.events)
        lengthened(other, "long", 0)
        for words in (["ls"], ["status", "long"]):
            ours, theirs = in_turns(place, other, partial(cpu_of, words), effort.helps)
            yield ratio_row(f"{where}: `{words[0]}`, CPU", ours, theirs, LIST_GOAL)
        ours, theirs = in_turns(place, other, lambda at: first_paint(at, "long", painted)[1], effort.paints)
        yield ratio_row(f"{where}: `attach` to content, CPU", ours, theirs, ATTACH_GOAL)
        size = machine.memory(place.agent("long")).rss / machine.MIB
        yield limit_row("its agent's memory (RSS)", Sample((size,), "MiB", 1), RSS_GOAL)
        place.distui("stop", "long", "--yes")
        runs = MANY if effort.events > QUICK.events else MANY // 10
        crowded(place, runs)
        cpu_of(["ls"], place)  # not counted: the folds are written
        listed = Sample(tuple(cpu_of(["ls"], place) / 1000 for _ in range(5)), "s")
        yield limit_row(f"`ls` of {runs:,} runs, CPU", listed, MANY_GOAL_S)


def cpu_of(words: list[str], place: Place) -> float:
    """Milliseconds of CPU of a command."""
    return cpu_ms([DISTUI, *words], place.env)


def in_turns(
    place: Place, other: Place, take: Callable[[Place], float], times: int
) -> tuple[Sample, Sample]:
    """Milliseconds in both places, after one of each that is not counted."""
    found = [(take(place), take(other)) for _ in range(times + 1)][1:]
    ours, theirs = zip(*found, strict=True)
    return Sample(ours, "ms", 0), Sample(theirs, "ms", 0)
