"""The cockpit next to that of an earlier commit (`--before COMMIT`): CPU, first paint, keys, in turns.

Each cockpit shows a simulated run that its own code serves, because the wire protocol may have changed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from . import machine
from .agents import ROUNDS
from .cockpits import LARGE, key_times
from .counting import watched
from .figures import Row, Sample, interval, ratio_row
from .options import Effort
from .place import NotReached, a_place
from .terminal import Terminal

ROOT = Path(__file__).parents[2]
GOAL = 1.0
SETTLE_S = 4.0
SERVE = """
import json, sys
from tests.bench.crowds import simulated
with simulated(int(sys.argv[1])) as place:
    print(json.dumps(place.env), flush=True)
    sys.stdin.read()
"""
"""Serves a run until its input ends, and prints the environment in which a viewer finds it."""


@dataclass(slots=True)
class Measured:
    """What the cockpit of one commit took."""

    cpu: list[float] = field(default_factory=list)
    kilobytes: list[float] = field(default_factory=list)
    paints: list[float] = field(default_factory=list)
    keys: list[float] = field(default_factory=list)


def painted(text: str) -> bool:
    """Content that both commits have."""
    return "RUNNING" in text and "ms/step" in text


def unpack(commit: str, folder: Path) -> Path:
    """Write the files of a commit into a folder. Raises NotReached."""
    archive = folder / "earlier.tar"
    done = subprocess.run(
        ["git", "archive", "-o", archive, commit], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise NotReached(f"--before {commit}: {done.stderr.strip()}")
    code = folder / "earlier"
    with tarfile.open(archive) as files:
        files.extractall(code, filter="tar")
    return code


@contextmanager
def served(code: Path, nodes: int) -> Iterator[dict[str, str]]:
    """Serve a run by the code of a checkout; the environment for its viewer. Raises NotReached."""
    path = os.pathsep.join(map(str, (code / ".editable", code, code / "tests")))
    env = os.environ | {"PYTHONPATH": path}
    process = subprocess.Popen(
        [sys.executable, "-c", SERVE, str(nodes)],
        cwd=code, env=env, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    try:
        line = process.stdout.readline() if process.stdout else ""
        if not line:
            raise NotReached(f"{code}: its benchmarks serve no run")
        yield json.loads(line) | {"PYTHONPATH": path}
    finally:
        process.communicate(timeout=60)


def measure(env: dict[str, str], found: Measured, effort: Effort) -> None:
    """One turn of one cockpit."""
    command = [sys.executable, "-m", "distui", "attach", "many"]
    with Terminal(command, env, LARGE) as terminal:
        terminal.until("the run", painted, 90)
        found.paints.append(1000 * machine.cpu_s(terminal.pid))
        terminal.rest(SETTLE_S)
        cost = watched(terminal, effort.watch_s / ROUNDS)
        found.cpu += cost.cpu.values
        found.kilobytes += cost.bytes.values
        found.keys += key_times(terminal, max(4, effort.keys // ROUNDS))


def compare(code: Path, nodes: int, effort: Effort) -> tuple[Measured, Measured]:
    """This checkout and the earlier one in turns."""
    ours, theirs = Measured(), Measured()
    with ExitStack() as stack:
        here = stack.enter_context(served(ROOT, nodes))
        there = stack.enter_context(served(code, nodes))
        for _ in range(ROUNDS):
            measure(here, ours, effort)
            measure(there, theirs, effort)
    return ours, theirs


def paired_row(what: str, ours: Sample, theirs: Sample) -> Row:
    """A ratio with the confidence interval of the differences, turn by turn."""
    low, high = interval([one - other for one, other in zip(ours.values, theirs.values, strict=True)])
    row = ratio_row(what, ours, theirs, GOAL)
    return replace(row, interval=(1 + low / theirs.median, 1 + high / theirs.median))


def rows(effort: Effort) -> Iterator[Row]:
    """Eight ranks, and those of all nodes."""
    if not effort.before:
        return
    with a_place() as place:
        code = unpack(effort.before, place.root)
        for nodes in dict.fromkeys((1, effort.nodes)):
            ours, theirs = compare(code, nodes, effort)
            where = f"cockpit, {nodes * 8:,} ranks, 200×60, to that of {effort.before}"
            for what, unit, values, before in (
                ("CPU", "% of a core", ours.cpu, theirs.cpu),
                ("bytes", "kB/s", ours.kilobytes, theirs.kilobytes),
                ("first paint, CPU", "ms", ours.paints, theirs.paints),
                ("key to another screen", "ms", ours.keys, theirs.keys),
            ):
                yield paired_row(
                    f"{where}: {what}", Sample(tuple(values), unit), Sample(tuple(before), unit)
                )
