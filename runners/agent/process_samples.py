"""Sample a rank's process and its children from outside."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..run.proc import levels, read_io, read_once, read_stat
from ..run.processes import environ_of

MOST_PROCESSES = 256
"""Most processes per rank to read."""
WORKER = "pt_data_worker"
"""Name of torch's data loader processes. Older versions set no name."""
FREEZERS = ("__refrigerator", "do_freezer_trap")
"""Kernel functions that a frozen process waits in."""


@dataclass(frozen=True, slots=True)
class Outside:
    """One sample of a process. None means that it has exited or is not readable."""

    state: str | None
    cpu_s: float | None
    """CPU seconds of the main thread."""
    process_s: float | None
    read_bytes: int | None
    written_bytes: int | None
    waits_in: str | None = None
    """Kernel function that the main thread waits in. None if it runs, or if the kernel hides the name."""
    workers_busy: int | None = None
    """See Pulse, also for `frozen` and `halted_workers`."""
    frozen: bool = False
    halted_workers: tuple[int, ...] = ()
    members: tuple[int, ...] = ()
    """The process and its descendants."""


def sample(pid: int, proc: str = "/proc") -> Outside:
    """Sample a process. Read and written bytes include its children's."""
    stat = read_stat(pid, proc)
    if stat is None:
        return Outside(None, None, None, None, None)
    main, members = read_stat(pid, f"{proc}/{pid}/task"), tree(pid, proc)
    return Outside(
        stat.state,
        None if main is None else main.cpu_s,
        stat.cpu_s,
        *_io(members, proc),
        _waits_in(pid, proc),
        _workers_busy(members[1:], proc),
        is_frozen(pid, proc),
        tuple(worker for worker in workers(members[1:], proc) if _is_halted(worker, proc)),
        tuple(members),
    )


def _io(pids: Sequence[int], proc: str) -> tuple[int | None, int | None]:
    """Bytes that processes have read and written; None if the first one is not readable."""
    counts = [read_io(pid, proc) for pid in pids]
    if counts[0] is None:
        return None, None
    readable = [count for count in counts if count is not None]
    return sum(count[0] for count in readable), sum(count[1] for count in readable)


def _waits_in(pid: int, proc: str) -> str | None:
    name = (read_once(f"{proc}/{pid}/wchan") or b"").decode("ascii", "replace").strip()
    return name if name not in ("", "0") else None


def is_frozen(pid: int, proc: str = "/proc") -> bool:
    """Whether the cgroup freezer of version 1 or 2 has stopped a process, in its cgroup or in an outer one."""
    if _waits_in(pid, proc) in FREEZERS:
        return True
    for level in levels(Path(proc).parent, pid, "freezer")[:1]:
        state = read_once(str(level / "freezer.state")) or b""
        events = read_once(str(level / "cgroup.events")) or b""
        return state.startswith(b"FROZEN") or b"frozen 1" in events
    return False


def _is_halted(pid: int, proc: str) -> bool:
    stat = read_stat(pid, proc)
    return stat is not None and (stat.state in ("T", "t") or is_frozen(pid, proc))


def workers(pids: Iterable[int], proc: str) -> list[int]:
    """Return the pids of torch's data loader workers among these processes."""
    stats = (read_stat(pid, proc) for pid in pids)
    return [stat.pid for stat in stats if stat is not None and stat.name == WORKER]


def _workers_busy(pids: Iterable[int], proc: str) -> int | None:
    """Return the number of torch data loader workers that are not in poll, waiting for a task. None if unknown."""
    busy = []
    for pid in workers(pids, proc):
        stat = read_stat(pid, proc)
        if stat is None:
            continue
        waits_in = _waits_in(pid, proc)
        if waits_in is None and stat.state == "S":
            return None
        busy.append("poll" not in (waits_in or ""))
    return sum(busy) if busy else None


def program(pid: int, proc: str = "/proc") -> str:
    """Return only the program's name: arguments may hold secrets."""
    return (read_once(f"{proc}/{pid}/comm") or b"").decode("utf-8", "replace").strip()


def tree(pid: int, proc: str = "/proc") -> list[int]:
    """Return the process and its descendants that main threads forked, such as data loader workers."""
    pids = [pid]
    for parent in pids:
        listed = read_once(f"{proc}/{parent}/task/{parent}/children") or b""
        pids += [int(word) for word in listed.split()]
        if len(pids) > MOST_PROCESSES:
            break
    return pids


def world_of(pid: int) -> tuple[str | None, str | None]:
    """Return the initial WORLD_SIZE and MASTER_ADDR:MASTER_PORT of a process."""
    env = environ_of(pid)
    master = env.get("MASTER_ADDR")
    return env.get("WORLD_SIZE"), None if master is None else f"{master}:{env.get('MASTER_PORT', '')}"
