"""A live run with a log of 150 MB that no training writes, and scripts of any size: CPU of what reads them."""

from __future__ import annotations

import os
import resource
from pathlib import Path

from .figures import Row, Sample, limit_row
from .options import Effort
from .place import BIN, NotReached, Place, a_place, wait_for

GOAL_S = 10.0
RUN = "hostile"
PARTS = (
    b"x" * 1_000_000 + b"\n",
    (b"\x1b]0;ab" * 5000 + b"\n") * 3000,
    bytes(50_000_000) + b"\n",
    b"loss nan\n" * 400_000,
)
"""A long line, openers of escape sequences that never end, zeros, and a loss that is not a number."""
COMMANDS = (("diagnose", RUN), ("logs", RUN, "--grep", "loss"), ("logs", RUN, "--grep", "bab"))
GOAL_PLAN_S = 3.0
SCRIPTS = {
    "of 240,000 names": "a\n" * 240_000,
    "of 29,000 calls": "import torch\n" + "torch.x=dist.y(1)\n" * 29_000,
    "of 13,000 calls, which is read": "import torch\n" + "torch.x=dist.y(1)\n" * 13_000,
    "of 50 modules of half a MiB": "".join(f"import m{number}\n" for number in range(50)),
}
"""The first two are larger than what is read of a script, the third is at the limit."""


def written(place: Place) -> int:
    """A run whose command has written such a log and goes on; the log's size in bytes."""
    path = place.root / "hostile.log"
    path.write_bytes(b"".join(PARTS))
    size = path.stat().st_size
    place.distui("exec", "--name", RUN, "--detach", "--", "sh", "-c", f"cat {path.name}; exec sleep 3600")

    def look() -> bool | None:
        logs = place.run_dir(RUN).glob("node-0/*/rank-0.out")
        return any(log.stat().st_size == size for log in logs) or None

    wait_for("the log", look, 120)
    return size


def plan_s(place: Place, text: str) -> float:
    """CPU seconds of the plan of a script."""
    (place.root / "hostile.py").write_text(text)
    before = _viewers()
    code = place.start(
        [str(BIN / "distui"), "plan", "ddp", "--nproc-per-node", "2", "--", "hostile.py"]
    ).wait()
    if code:
        raise NotReached(f"distui plan: exit code {code}")
    return _viewers() - before


def cpu_s(place: Place, agent: int, words: tuple[str, ...]) -> float:
    """CPU seconds of a command, of the agent that serves it, and of the agent's searches."""
    before = _viewers() + _agent(agent)
    code = place.start([str(BIN / "distui"), *words]).wait()
    if code and words[0] != "diagnose":  # which has found an error
        raise NotReached(f"distui {' '.join(words)}: exit code {code}")
    return _viewers() + _agent(agent) - before


def _viewers() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _agent(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def rows(effort: Effort) -> list[Row]:
    """Each command a few times."""
    with a_place() as place:
        size = written(place)
        agent = place.agent(RUN)
        found = [
            (words, [cpu_s(place, agent, words) for _ in range(max(1, effort.paints // 3))])
            for words in COMMANDS
        ]
        for number in range(50):
            (place.root / f"m{number}.py").write_text("torch.x=dist.y(1)\n" * 29_000)
        planned = {
            name: [plan_s(place, text) for _ in range(max(1, effort.paints // 3))]
            for name, text in SCRIPTS.items()
        }
    note = "Of the command, the agent, and the processes that search."
    what = f"a hostile log of {size / 1e6:.0f} MB"
    rows = [
        limit_row(
            f"{what}: CPU of `distui {' '.join(words)}`",
            Sample(tuple(taken), "s", 1),
            GOAL_S,
            notes=(note,),
        )
        for words, taken in found
    ]
    return rows + [
        limit_row(f"a script {name}: CPU of `distui plan`", Sample(tuple(taken), "s", 2), GOAL_PLAN_S)
        for name, taken in planned.items()
    ]
