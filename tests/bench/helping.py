"""What the command line costs before it does anything."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping

from .figures import Row, Sample, ratio_row
from .options import Effort
from .place import BIN

GOAL = 3.0


def cpu_ms(argv: list[str], env: Mapping[str, str] | None = None) -> float:
    """User and system time of a command in milliseconds."""
    running = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=env)
    _, status, used = os.wait4(running.pid, 0)
    running.returncode = os.waitstatus_to_exitcode(status)
    return 1000 * (used.ru_utime + used.ru_stime)


def rows(effort: Effort) -> list[Row]:
    """In turns with a Python that does nothing and with torchrun's own help."""
    commands = [
        [str(BIN / "distui"), "--help"],
        [sys.executable, "-c", "pass"],
        [str(BIN / "torchrun"), "--help"],
    ]
    found: list[list[float]] = [[], [], []]
    for command in commands:
        cpu_ms(command)  # not counted: modules are compiled, and files come into the page cache
    for _ in range(effort.helps):
        for values, command in zip(found, commands, strict=True):
            values.append(cpu_ms(command))
    ours, python, other = (Sample(tuple(values), "ms", 0) for values in found)
    note = f"`torchrun --help`: {other}."
    return [ratio_row("`distui --help` beside `python -c pass`: CPU", ours, python, GOAL, (note,))]
