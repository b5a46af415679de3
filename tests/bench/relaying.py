"""What the relay costs the head when a viewer there looks at every node through it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from . import machine
from .counting import cpu_percents, together
from .figures import Row, Sample, limit_row
from .options import Effort

NODES = 128
SCRIPT = Path(__file__).with_name("relay_nodes.py")
CONNECTS = 1
"""Viewers after each other, of which the last one looks on. To one after another that was killed nothing more comes."""
CPU_GOAL, CONNECT_GOAL_S = 15.0, 5.0


class Process:
    """One part of the run."""

    def __init__(self, role: str, directory: Path, nodes: int, port: int) -> None:
        words = [role, str(directory), str(nodes), str(port)]
        self._popen = subprocess.Popen(
            [sys.executable, str(SCRIPT), *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.pid = self._popen.pid

    def line(self) -> str:
        """The next line it says."""
        assert self._popen.stdout is not None
        return self._popen.stdout.readline()

    def ask(self) -> dict[str, int]:
        """What the viewer has heard by now."""
        assert self._popen.stdin is not None
        self._popen.stdin.write("\n")
        self._popen.stdin.flush()
        found: dict[str, int] = json.loads(self.line())
        return found

    def close(self) -> None:
        self._popen.kill()
        self._popen.wait()


def rows(effort: Effort) -> list[Row]:
    """Connecting, then a minute of looking."""
    directory = Path(tempfile.mkdtemp(prefix="dbr-"))
    made: list[Process] = []
    try:
        made.append(Process("head", directory, NODES, 0))
        port = int(made[0].line())
        made.append(Process("crowd", directory, NODES, port))
        made[1].line()
        connected = []
        for _ in range(CONNECTS):
            made[2:], ended = [Process("viewer", directory, NODES, port)], made[2:]
            for process in ended:
                process.close()
            connected.append(json.loads(made[2].line())["connected_s"])
        before = made[2].ask()
        pids = [made[0].pid, made[2].pid]
        cpu = cpu_percents(pids, effort.watch_s)
        after = made[2].ask()
        memory = [machine.memory(pid) for pid in pids]
    finally:
        for process in made:
            process.close()
        shutil.rmtree(directory, ignore_errors=True)
    parts = [sum(one) / len(one) for one in cpu]
    rate = (after["bytes"] - before["bytes"]) / 1000 / effort.watch_s
    note = (
        f"Of it: runner's part with the store {parts[0]:.1f} %, agent's part {parts[1]:.1f} %; memory (RSS) "
        f"{memory[0].rss / machine.MIB:.0f} MiB (torch included) and {memory[1].rss / machine.MIB:.0f} MiB; "
        f"{rate:.0f} kB/s came."
    )
    return [
        limit_row(f"relay, {NODES} nodes at 1 Hz: CPU of the head", together(cpu), CPU_GOAL, "", (note,)),
        limit_row(
            f"relay: streams to {NODES - 1} nodes opened, and heard of all",
            Sample(tuple(connected), "s", 1),
            CONNECT_GOAL_S,
        ),
    ]
