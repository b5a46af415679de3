"""`distui diagnose`: CPU of each kind of line beside a plain one, a million equal tracebacks, and memory."""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from .figures import Row, Sample, limit_row, ratio_row
from .options import QUICK, Effort

NCCL = Path(__file__).parents[1] / "corpus" / "nccl_host"
"""What NCCL's own host code wrote."""
LINES, QUICK_LINES = 200_000, 20_000
TIMES = 3
PLAIN_GOAL_US, KIND_GOAL, TRACEBACKS_GOAL_S, MEMORY_GOAL_MIB = 8.0, 1.5, 20.0, 16.0
TRACEBACK = """\
Traceback (most recent call last):
  File "/data/train.py", line 88, in <module>
    main()
  File "/data/train.py", line 61, in main
    loss = step(batch)
ValueError: batch {} has no labels
"""
MEGATRON = (
    " [2026-11-26 10:{:02}:{:02}] iteration {:8}/  500000 | consumed samples: {:12} | elapsed time per iteration (ms): "
    "812.4 | learning rate: 3.000E-04 | global batch size:   256 | lm loss: 2.311300E+00 | loss scale: 1.0 | grad norm: "
    "0.412 | number of skipped iterations:   0 | number of nan iterations:   0 |"
)
KINDS: dict[str, Callable[[int], str]] = {
    "`[rank3]: …`": lambda number: (
        f"[rank3]: step {number} loss {2 + number % 97 / 97:.4f} lr 3.0e-4 tok/s 12k"
    ),
    "torchtitan's": lambda number: (
        f"[rank0]:[titan] 2026-11-26 10:{number // 60 % 60:02}:{number % 60:02},{number % 1000:03} - root - INFO - "
        f"step: {number:5}  loss: {2 + number % 97 / 97:.4f}  memory: 41.20GiB(51.84%)  tps: 7,412  mfu: 41.02%"
    ),
    "Megatron's": lambda number: MEGATRON.format(number // 60 % 60, number % 60, number, number * 256),
    "of a traceback": lambda number: TRACEBACK.format(number).splitlines()[number % 6],
}
"""Kind → its line by number."""

MEASURED = """
import resource, sys, time
from pathlib import Path
from distui.runners.diagnosis.read_logs import read_all
from distui.runners.diagnosis.first_cause import judge
def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
judge(read_all([("small", Path(sys.argv[1]))]))
before, began = peak(), time.process_time()
reading = read_all([("large", Path(sys.argv[2]))])
judge(reading)
print(reading.lines, time.process_time() - began, peak() - before)
"""


@dataclass(frozen=True, slots=True)
class Read:
    """What reading a log took."""

    lines: float
    cpu_s: float
    grown_mib: float

    @property
    def us(self) -> float:
        """CPU of a line in microseconds."""
        return 1e6 * self.cpu_s / self.lines


def rows(effort: Effort) -> Iterator[Row]:
    """Kinds in turns with plain lines."""
    quick = effort.steps <= QUICK.steps
    count = QUICK_LINES if quick else LINES
    with tempfile.TemporaryDirectory(prefix="distui-bench-") as folder:
        logs = dict(written(Path(folder), count))
        plain, others = logs.pop("plain"), logs
        found: dict[str, list[Read]] = {name: [] for name in ("plain", *others)}
        for _ in range(TIMES):
            for name, path in (("plain", plain), *others.items()):
                found[name].append(measure(path))
        equal = Path(folder, "tracebacks.log")
        equal.write_text(TRACEBACK.format(7) * (count // 10 if quick else 1_000_000))
        million = measure(equal)
    of_plain = sample(found["plain"])
    yield limit_row("`distui diagnose`: CPU of a plain line", of_plain, PLAIN_GOAL_US)
    for name in others:
        yield ratio_row(
            f"the same: a line {name}, beside a plain one", sample(found[name]), of_plain, KIND_GOAL
        )
    yield limit_row(
        f"the same: {million.lines / 6:,.0f} equal tracebacks, CPU",
        Sample((million.cpu_s,), "s", 1),
        TRACEBACKS_GOAL_S,
    )
    grown = statistics.median(each.grown_mib for each in found["of NCCL, as NCCL writes it"])
    yield limit_row(
        "the same: memory beyond a short log of NCCL", Sample((grown,), "MiB", 1), MEMORY_GOAL_MIB
    )


def sample(reads: list[Read]) -> Sample:
    """CPU of a line."""
    return Sample(tuple(each.us for each in reads), "µs", 1)


def written(folder: Path, count: int) -> Iterator[tuple[str, Path]]:
    """Yield each kind with a log of about `count` lines."""
    plain = folder / "plain.log"
    plain.write_text(
        "".join(f"step {number} loss {2 + number % 97 / 97:.4f} lr 3.0e-4\n" for number in range(count))
    )
    yield "plain", plain
    for index, (name, line) in enumerate(KINDS.items()):
        path = folder / f"{index}.log"
        path.write_text("".join(f"{line(number)}\n" for number in range(count)))
        yield name, path
    once = b"".join(path.read_bytes().rstrip(b"\n") + b"\n" for path in sorted(NCCL.glob("*/*/rank*.log")))
    path = folder / "nccl.log"
    path.write_bytes(once * max(1, count // once.count(b"\n")))
    yield "of NCCL, as NCCL writes it", path


def measure(path: Path) -> Read:
    """Read a log in a new process, after its first lines as a log of their own."""
    small = path.with_name("small.log")
    with path.open("rb") as file:
        small.write_bytes(b"".join(file.readline() for _ in range(2000)))
    argv = [sys.executable, "-c", MEASURED, str(small), str(path)]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    return Read(*map(float, done.stdout.split()))
