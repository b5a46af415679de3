"""A run with a long journal: what `ls`, `status` and `attach` take, and its agent's memory."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator

from distui.presets.finding import Finding
from distui.runners.run.journal import Journal, read
from distui.runners.run.model import Event, FindingCleared, FindingRaised, HookChanged, Stamped

from . import machine
from .cockpits import first_paint
from .figures import Row, Sample, limit_row
from .helping import cpu_ms
from .options import Effort
from .place import BIN, Place, a_place, wait_for

LS_GOAL, STATUS_GOAL, ATTACH_GOAL, RSS_GOAL = 150.0, 200.0, 400.0, 60.0
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
    return "long" in text and "running" in text and "sleep" in text


def rows(effort: Effort) -> list[Row]:
    """One run; each command several times."""
    count = effort.events
    with a_place() as place:
        lengthened(place, "long", count)
        found: dict[str, Sample] = {}
        for words in (("ls",), ("status", "long")):
            argv = [str(BIN / "distui"), *words]
            cpu_ms(argv, place.env)  # not counted: files are not in the page cache yet
            found[words[0]] = Sample(tuple(cpu_ms(argv, place.env) for _ in range(effort.helps)), "ms", 0)
        paints = [first_paint(place, "long", painted)[1] for _ in range(effort.paints)]
        sizes = []
        for _ in range(3):
            sizes.append(machine.memory(place.agent("long")).rss / machine.MIB)
            time.sleep(1)
    where = f"a run with a journal of {count:,} events"
    return [
        limit_row(f"{where}: `ls`, CPU", found["ls"], LS_GOAL),
        limit_row(f"{where}: `status`, CPU", found["status"], STATUS_GOAL),
        limit_row(f"{where}: `attach` to content, CPU", Sample(tuple(paints), "ms", 0), ATTACH_GOAL),
        limit_row(f"{where}: the agent's memory (RSS)", Sample(tuple(sizes), "MiB", 1), RSS_GOAL),
    ]
