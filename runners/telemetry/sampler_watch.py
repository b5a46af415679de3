"""What to do about the GPU sampler's process, and what /proc says of the processes that NVML names."""

from __future__ import annotations

import enum
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..model import Gpu
from .proc import read_nspids, read_stat
from .rank_samples import Launched, Pids

# -----------------------------------------------------------------------------------------------------------
# What /proc tells about the processes that NVML names: the input of `mapping.place`.


INITIAL = "pid:[4026531836]"
"""The initial pid namespace: its inode number is fixed (PROC_PID_INIT_INO in the kernel's proc_ns.h)."""


def witness(
    launched: Sequence[Launched], gpus: Sequence[Gpu], ours: Iterable[int] = (), proc: str = "/proc"
) -> Pids:
    """Read what `place` needs; `ours` are further processes of this run (launcher, runner).

    About 20 µs for each process of a rank; worth repeating when a GPU's pids changed.
    """
    own = {pid for process in launched for pid in process.pids}
    initial = _initial(proc)
    seen = {pid for gpu in gpus for pid in gpu.pids or ()}
    stats = {pid: read_stat(pid, proc) for pid in seen - own}
    return Pids(
        namespaced={} if initial else {pid: read_nspids(pid, proc) for pid in own},
        names={pid: stat.name for pid, stat in stats.items() if stat is not None},
        ours=frozenset(ours),
        initial=initial,
    )


def _initial(proc: str) -> bool:
    try:
        return os.readlink(f"{proc}/self/ns/pid") == INITIAL
    except OSError:
        return False


# -----------------------------------------------------------------------------------------------------------
# What to do about the sampler child: let it be, end it, start a new one; and what to say. Pure.


NO_DRIVER = 3
"""Exit status of a sampler that found no driver library or no GPU: another one would find none either."""

SHORTEST_S = 0.1
"""Shortest interval between two samples, seconds: asking a driver more often slows training down."""


class State(enum.Enum):
    """Where the sampler child stands."""

    STARTING = "starting"  # spawned, no sample yet
    SAMPLING = "sampling"
    WAITING = "waiting"  # none, a new one follows
    ABSENT = "absent"  # none, and none will follow


class Act(enum.Enum):
    """What to do now."""

    NOTHING = "nothing"
    KILL = "kill"  # end the child without waiting for it, then wait
    SPAWN = "spawn"


@dataclass(frozen=True, slots=True)
class SamplerLimits:
    """Times in seconds."""

    stale_s: float = 5.0
    """Age of the newest sample at which the driver call counts as hung; at least 3 intervals."""
    init_s: float = 20.0
    """The same for a child that has not sampled yet: loading the driver takes seconds a GPU."""
    backoff_s: float = 5.0
    """Wait before the first new child; doubles with each failure."""
    backoff_max_s: float = 300.0
    healthy_s: float = 60.0
    """Sampling for this long forgets earlier failures."""
    stuck: int = 3
    """Killed children that the driver does not let go, at which no new one is started."""


@dataclass(frozen=True, slots=True)
class Watch:
    """All that the decision needs; times are monotonic seconds."""

    state: State
    since: float
    """When it was spawned (STARTING), began to sample (SAMPLING) or ended (WAITING)."""
    heard: float
    """When the newest sample came; before the first, when sampling was first tried."""
    failures: int = 0
    stuck: int = 0
    problem: str | None = None
    """How the child before ended; None when it hung in a driver call, or when all is well."""


def decide(watch: Watch, now: float, limits: SamplerLimits, interval: float = 1.0) -> Act:
    """The next step. Pure."""
    match watch.state:
        case State.STARTING if now - watch.since > limits.init_s:
            return Act.KILL
        case State.SAMPLING if now - watch.heard > max(limits.stale_s, 3 * interval):
            return Act.KILL
        case State.WAITING if watch.stuck < limits.stuck and now - watch.since >= backoff(watch, limits):
            return Act.SPAWN
    return Act.NOTHING


def backoff(watch: Watch, limits: SamplerLimits) -> float:
    """Seconds between the end of a child and the start of the next."""
    return min(limits.backoff_max_s, limits.backoff_s * 2.0 ** min(32, max(0, watch.failures - 1)))


def describe(watch: Watch, now: float, limits: SamplerLimits) -> str | None:
    """Why there are no new values, as a sentence; None when there are, or when it is too early to say."""
    if watch.state in (State.SAMPLING, State.ABSENT) or (
        watch.state is State.STARTING and not watch.failures
    ):
        return None
    why = watch.problem or f"GPU driver call has not returned for {now - watch.heard:.0f} s"
    if watch.state is State.STARTING:
        return f"{why} (waiting for a new sampler's first values)"
    if watch.stuck >= limits.stuck:
        return f"{why} ({watch.stuck} samplers hang in the driver; a new one follows when one of them ends)"
    left = max(0.0, backoff(watch, limits) - (now - watch.since))
    return f"{why} (a new sampler in {left:.0f} s)"
