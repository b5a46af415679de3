"""`distui diagnose` over the corpus, repeated until it is large: time on one core, and memory."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

from .figures import Row, Sample, limit_row
from .options import QUICK, Effort

CORPUS = Path(__file__).parents[1] / "runners" / "diagnosis" / "corpus"
REAL = Path(__file__).parents[1] / "corpus" / "nccl_host"
"""What NCCL's own host code wrote: every second line of CORPUS fires a rule, which no log of a real job comes near."""
BYTES = 1_000_000_000
QUICK_BYTES = 20_000_000
GOAL_US = 5.0
"""CPU a line of NCCL: 200,000 lines a second."""
GOAL_MIB = 16.0
"""Memory beyond that of the corpus once."""
TIMES = 3

MEASURED = """
import resource, sys, time
from pathlib import Path
from distui.runners.diagnosis.read_logs import read_all
from distui.runners.diagnosis.first_cause import judge
def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
judge(read_all((name, Path(name)) for name in sys.argv[1:2]))
before, began = peak(), time.process_time()
reading = read_all((name, Path(name)) for name in sys.argv[2:])
judge(reading)
print(reading.lines, reading.nccl_lines, time.process_time() - began, peak() - before)
"""


def rows(effort: Effort) -> list[Row]:
    """The same processes in every copy of the corpus; and other processes in each, which real logs seldom have."""
    size = QUICK_BYTES if effort.steps <= QUICK.steps else BYTES
    once = b"".join(path.read_bytes().rstrip(b"\n") + b"\n" for path in sorted(CORPUS.glob("[0-9]*.log")))
    with tempfile.TemporaryDirectory(prefix="distui-bench-") as folder:
        small, large = Path(folder, "once.log"), Path(folder, "many.log")
        small.write_bytes(once)
        _write(large, once, size)
        found = [_measure(small, large) for _ in range(TIMES)]
        _write(large, once, size // 10, renumbered=True)
        other = _measure(small, large)
        real = b"".join(
            path.read_bytes().rstrip(b"\n") + b"\n" for path in sorted(REAL.glob("*/*/rank*.log"))
        )
        small.write_bytes(real)
        _write(large, real, size // 10)
        own = [_measure(small, large) for _ in range(TIMES)]
    count = len(once.splitlines())
    note = f"The corpus of {count} lines repeated to {size / 1e9:g} GB; {other[3]:.0f} % of the lines are NCCL's own."
    each = Sample(tuple(one[0] for one in found), "µs")
    grown = Sample(tuple(one[2] for one in found), "MiB", 1)
    real_us = Sample(tuple(one[0] for one in own), "µs")
    of_real = (
        f"The logs in tests/corpus/nccl_host, repeated; {own[0][3]:.0f} % of the lines are NCCL's own."
    )
    every = Sample(tuple(one[1] for one in found), "lines/s", 0)
    return [
        limit_row(
            "`distui diagnose`: CPU a line of NCCL, as NCCL writes them", real_us, GOAL_US, notes=(of_real,)
        ),
        limit_row("the same where every second line fires a rule", each, GOAL_US, notes=(note,)),
        limit_row("`distui diagnose`: memory beyond the corpus once", grown, GOAL_MIB, notes=(note,)),
        Row("`distui diagnose`: all lines, on one core", str(every)),
        Row("the same, other processes in each copy", f"{other[1]:.0f} lines/s"),
    ]


def _write(path: Path, once: bytes, size: int, renumbered: bool = False) -> None:
    with path.open("wb") as file:
        for copy in range(size // len(once)):
            file.write(_renumbered(once, copy) if renumbered else once)


def _renumbered(once: bytes, copy: int) -> bytes:
    """With pids and thread ids that no other copy has."""
    return re.sub(
        rb":(\d{3,7}):(\d{3,7}) ",
        lambda found: b":%d:%d " % (int(found[1]) + 7 * copy, int(found[2]) + 7 * copy),
        once,
    )


def _measure(small: Path, large: Path) -> tuple[float, float, float, float]:
    """CPU µs a line of NCCL, lines a second of CPU, MiB beyond `small`, per cent of NCCL's lines; by a new process."""
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, small, large], capture_output=True, text=True, check=True
    )
    lines, nccl, cpu, mib = map(float, done.stdout.split())
    return cpu / nccl * 1e6, lines / cpu, mib, 100 * nccl / lines
