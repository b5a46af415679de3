"""What agent, sampler and hook take from the training, seen from inside the ranks."""

from __future__ import annotations

import array
import bisect
import os
import signal
import statistics
import time
from collections.abc import Sequence

from .agents import agent_and_sampler, fake_driver
from .figures import Row, Sample, interval, quartiles, skipped
from .options import Effort
from .place import NotReached, Place, a_place, stamped, torchrun, wait_for

GOAL = 0.5
"""Percent of the step time."""
WARM_UP = 20
"""First steps of a run that are not counted."""
SETTLE_S = 0.3
"""What is left out after the agent was stopped or let go."""


def words(place: Place, steps: int) -> list[str]:
    """The example without checkpoints, so that a step is a step."""
    return stamped(
        "--steps", str(steps), "--checkpoint-every", "0", "--resume", "never",
        "--checkpoint-dir", str(place.root / "checkpoints"),
    )  # fmt: skip


def pin(place: Place, nproc: int) -> None:
    """One thread a rank; a single rank keeps to one core, so that the other is spare."""
    place.env["OMP_NUM_THREADS"] = "1"
    if nproc == 1:
        place.env["BENCH_CORE"] = str(max(os.sched_getaffinity(0)))


def step_times(place: Place, seconds: float) -> list[float]:
    """Monotonic seconds of all steps of rank 0 of the run that has just ended; its stamps are removed."""
    path = wait_for("the end of the training", lambda: next(place.stamps.glob("steps-0-*"), None), seconds)
    time.sleep(0.2)
    numbers = array.array("q")
    numbers.frombytes(path.read_bytes())
    for old in place.stamps.iterdir():
        old.unlink()
    return [one / 1e9 for one in numbers]


def mean_ms(times: Sequence[float]) -> float:
    """Mean milliseconds a step."""
    if len(times) < 2:
        raise NotReached("a run made no two steps to compare")
    return 1000 * (times[-1] - times[0]) / (len(times) - 1)


def run_ours(place: Place, number: int, nproc: int, steps: int) -> float:
    """Mean step of one run under distui."""
    options = ("--nproc-per-node", str(nproc))
    place.launch(f"slow{number}", words(place, steps), options).wait(60)
    times = step_times(place, 60 + steps)
    place.distui("wait", f"slow{number}", "--timeout", "60")
    return mean_ms(times[WARM_UP:])


def run_bare(place: Place, env: dict[str, str], nproc: int, steps: int) -> float:
    """Mean step of one run under torchrun."""
    running = place.start(torchrun(nproc, words(place, steps), "--standalone"), **env)
    times = step_times(place, 60 + steps)
    running.wait(60)
    return mean_ms(times[WARM_UP:])


def whole_runs(effort: Effort, nproc: int) -> Row:
    """Whole runs in turns, the first of each pair changing sides."""
    ours: list[float] = []
    theirs: list[float] = []
    with a_place({"BENCH_STEPS": "1"}) as place:
        place.env.update(fake_driver(place))
        pin(place, nproc)
        env = place.same_env(words(place, effort.steps), ("--nproc-per-node", str(nproc)))
        for number in range(effort.pairs):
            for mine in (True, False) if number % 2 else (False, True):
                if mine:
                    ours.append(run_ours(place, number, nproc, effort.steps))
                else:
                    theirs.append(run_bare(place, env, nproc, effort.steps))
    where = "2 ranks on 2 cores" if nproc == 2 else "1 rank, a core to spare"
    if effort.pairs < 3:
        return skipped(
            f"slowdown, whole runs, {where}", "fewer than 3 pairs say nothing", GOAL, f"≤ {GOAL} %"
        )
    return slowdown_row(f"slowdown, whole runs, {where}", ours, theirs)


def slowdown_row(what: str, ours: list[float], theirs: list[float], *, note: str = "") -> Row:
    """Percent by which paired step times differ, with its interval."""
    percents = [100 * (mine / other - 1) for mine, other in zip(ours, theirs, strict=True)]
    low, high = interval(percents)
    middle = statistics.median(percents)
    return Row(
        what, str(Sample(tuple(ours), "ms")), str(Sample(tuple(theirs), "ms")), middle,
        f"{middle:+.2f} % (95 %: {low:+.2f} to {high:+.2f})", GOAL,
        f"≤ {GOAL} %", (note,) if note else (), (low, high),
    )  # fmt: skip


class Blocks:
    """Marks of when the agent was let go and stopped, in one run."""

    def __init__(self, pids: Sequence[int]) -> None:
        self._pids = pids
        self.on: list[tuple[float, float]] = []
        self.off: list[tuple[float, float]] = []

    def run(self, pairs: int, seconds: float) -> None:
        """Alternate; each pair begins with the other side than the one before."""
        for number in range(pairs):
            for on in (True, False) if number % 2 else (False, True):
                for pid in self._pids:
                    os.kill(pid, signal.SIGCONT if on else signal.SIGSTOP)
                began = time.monotonic() + SETTLE_S
                time.sleep(SETTLE_S + seconds)
                (self.on if on else self.off).append((began, time.monotonic()))
        for pid in self._pids:
            os.kill(pid, signal.SIGCONT)


def within(times: Sequence[float], span: tuple[float, float]) -> float:
    """Mean milliseconds of the steps inside a span of time."""
    return mean_ms(times[bisect.bisect_left(times, span[0]) : bisect.bisect_right(times, span[1])])


def one_run(effort: Effort, nproc: int) -> Row:
    """The same processes, with agent and sampler alternately running and stopped."""
    with a_place({"BENCH_STEPS": "1"}) as place:
        place.env.update(fake_driver(place))
        pin(place, nproc)
        options = ("--nproc-per-node", str(nproc))
        place.launch("blocks", words(place, 100_000_000), options).wait(60)
        place.new_stamps(set(), nproc)
        time.sleep(2)
        agent = place.agent("blocks")
        blocks = Blocks(agent_and_sampler(agent))
        blocks.run(effort.blocks, effort.block_s)
        place.distui("stop", "blocks", "--yes", "--grace", "20")
        times = step_times(place, 60)
    ours = [within(times, span) for span in blocks.on]
    theirs = [within(times, span) for span in blocks.off]
    where = "2 ranks on 2 cores" if nproc == 2 else "1 rank, a core to spare"
    note = (
        "The same ranks throughout: agent and sampler are stopped (SIGSTOP) and let go in turns. "
        "The hook stays loaded; its own cost a step is the row below."
    )
    return slowdown_row(f"slowdown by the agent at 1 Hz, {where}", ours, theirs, note=note)


def hook_row(place_step_ms: float, effort: Effort) -> Row:
    """Nanoseconds that the hook adds to an optimizer step."""
    from .hooking import hook_ns

    costs = [hook_ns() for _ in range(effort.helps)]
    low, high = quartiles(costs)
    share = statistics.median(costs) / (place_step_ms * 1e6) * 100
    return Row(
        "the hook, in each optimizer step", f"{statistics.median(costs):.0f} ns ({low:.0f}–{high:.0f})", "0",
        share, f"{share:.4f} % of a step of {place_step_ms:.0f} ms", GOAL, f"≤ {GOAL} %",
    )  # fmt: skip


def rows(effort: Effort) -> list[Row]:
    """Blocks within a run, then whole runs."""
    found = [one_run(effort, 1), one_run(effort, 2)]
    step_ms = float(found[1].peer.split()[0])
    return [*found, hook_row(step_ms, effort), whole_runs(effort, 1), whole_runs(effort, 2)]
