"""What /proc tells about the processes that NVML names: the input of `mapping.place`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

from ..model import Gpu
from .mapping import Launched, Pids
from .proc import read_nspids, read_stat

INITIAL = "pid:[4026531836]"
"""The initial pid namespace: its inode number is fixed (PROC_PID_INIT_INO in the kernel's proc_ns.h)."""


def witness(
    launched: Sequence[Launched], gpus: Sequence[Gpu], ours: Iterable[int] = (), proc: str = "/proc"
) -> Pids:
    """Read what `place` needs; `ours` are further processes of this run (launcher, runner).

    About 20 µs for each process of a rank; worth repeating when a GPU's pids changed.
    """
    own = {pid for one in launched for pid in one.pids}
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
