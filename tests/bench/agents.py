"""What the agent and its sampler use with eight GPUs and eight ranks, and the same of those who only watch GPUs."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from . import machine
from .counting import Cost, cpu_percents, together, watched
from .figures import Row, Sample, limit_row, ratio_row, skipped
from .options import Effort
from .place import RANKS, NotReached, Place, a_place, wait_for
from .terminal import Terminal

CPU_GOAL, RSS_GOAL = 0.5, 55.0
GPUS = 8
ROUNDS = 3
"""Turns in which a peer is compared."""
SETTLE_S = 8.0
"""After the start: imports, first samples, the ranks' own."""
RIG = Path(__file__).parents[1] / "rigs" / "nvml"
GIB = 1 << 30
NVITOP = "nvitop==1.7.2"


def fake_driver(place: Place) -> dict[str, str]:
    """Variables that lead a sampler to eight busy GPUs. Raises NotReached without a compiler."""
    made = subprocess.run(
        [sys.executable, RIG / "build.py", place.root / "driver"],
        capture_output=True,
        text=True,
        check=False,
    )
    if made.returncode:
        raise NotReached(f"the fake driver: {made.stderr.strip()}")
    show_ranks(place, ())
    return {
        "DISTUI_NVML_LIBRARY": made.stdout.strip(),
        "DISTUI_FAKE_NVML_SCENARIO": str(place.root / "scenario"),
    }


def show_ranks(place: Place, pids: Sequence[int]) -> None:
    """Eight busy GPUs, each held by one of the processes."""
    sys.path.insert(0, str(RIG))
    import scenario

    lines = [scenario.process(gpu, pid, 60 * GIB) for gpu, pid in enumerate(pids)]
    scenario.write(place.root / "scenario", scenario.busy(GPUS) + "".join(lines))


def start_light(place: Place, name: str) -> list[int]:
    """Eight light ranks under the agent; their pids. The fake driver must be in the place's environment."""
    words = [str(RANKS / "light.py")]
    place.launch(name, words, ("--nproc-per-node", str(GPUS))).wait(60)

    def look() -> list[int] | None:
        pids = [rank["pid"] for rank in place.status(name)["ranks"] if (rank["step"] or 0) > 2]
        return pids if len(pids) == GPUS else None

    pids = wait_for("eight ranks that step", look, 120)
    show_ranks(place, pids)
    return pids


def agent_and_sampler(agent: int) -> list[int]:
    """The agent, and the sampler if there is one."""
    found = [agent]
    for child in machine.children(agent):
        with open(f"/proc/{child}/cmdline", "rb") as file:
            if b"telemetry.sampler" in file.read():
                found.append(child)
    return found


def split(each: list[list[float]], names: Sequence[str]) -> str:
    """What each process has in the sum."""
    means = [sum(one) / len(one) for one in each]
    return ", ".join(f"{name} {mean:.2f} %" for name, mean in zip(names, means, strict=True))


def rows(effort: Effort) -> list[Row]:
    """Agent and sampler, and nvitop on the same GPUs, in turns."""
    with a_place() as place:
        place.env.update(fake_driver(place))
        start_light(place, "light")
        time.sleep(SETTLE_S)
        pids = agent_and_sampler(place.agent("light"))
        if len(pids) < 2:
            raise NotReached("the agent has no sampler")
        ours, theirs = list[list[list[float]]](), list[Cost]()
        program = nvitop_program(place) if effort.nvitop else "nvitop was not asked for"
        for _ in range(ROUNDS):
            ours.append(cpu_percents(pids, effort.watch_s / ROUNDS))
            if program.startswith("/"):
                theirs.append(nvitop(place, program, effort.watch_s / ROUNDS))
        held = [machine.memory(pid) for pid in pids]
    return list(compared(ours, theirs, held, program))


def compared(
    ours: list[list[list[float]]], theirs: list[Cost], held: list[machine.Memory], program: str
) -> Iterator[Row]:
    """CPU beside nvitop, and memory."""
    names, what = ("agent", "sampler"), "agent + sampler, 8 GPUs, 8 ranks, 1 Hz: CPU beside nvitop"
    each = [[value for turn in ours for value in turn[number]] for number in range(len(names))]
    if theirs:
        peer = Sample(tuple(value for cost in theirs for value in cost.cpu.values), "% of a core")
        yield ratio_row(what, together(each), peer, CPU_GOAL, (f"Of it: {split(each, names)}.",))
    else:
        yield skipped(what, program, CPU_GOAL, f"≤ {CPU_GOAL:.2f} ×")
    both = held[0] + held[1]
    parts = "; ".join(f"{name}: {one}" for name, one in zip(names, held, strict=True))
    peer_memory = f"nvitop: {theirs[-1].memory.rss / machine.MIB:.1f} MiB" if theirs else ""
    rss = Sample((both.rss / machine.MIB,), "MiB", 1)
    yield limit_row(
        "agent + sampler: memory (RSS)", rss, RSS_GOAL, peer_memory, (f"{parts}; together {both}.",)
    )


def nvitop_program(place: Place) -> str:
    """Path of nvitop in a throw-away environment of the place; a sentence where it cannot be installed."""
    folder = place.root / "nvitop"
    program = folder / "bin" / "nvitop"
    for argv in (
        [sys.executable, "-m", "venv", str(folder)],
        [str(folder / "bin" / "pip"), "install", "--quiet", NVITOP],
    ):
        if program.exists():
            break
        done = subprocess.run(argv, capture_output=True, text=True, timeout=300, check=False)
        if done.returncode:
            return f"nvitop cannot be installed here: {(done.stderr.strip().splitlines() or [''])[-1]}"
    return str(program)


def nvitop_env(place: Place) -> dict[str, str]:
    """Leads nvitop to the same simulated GPUs."""
    return {**place.env, "LD_LIBRARY_PATH": os.path.dirname(place.env["DISTUI_NVML_LIBRARY"])}


def nvitop(place: Place, program: str, seconds: float) -> Cost:
    """What nvitop uses at 1 Hz on the same fake GPUs."""
    with Terminal([program, "--interval", "1"], nvitop_env(place), (40, 120)) as terminal:
        terminal.until("nvitop", lambda text: "MEM" in text and "Traceback" not in text, 60)
        terminal.rest(5)
        return watched(terminal, seconds)
