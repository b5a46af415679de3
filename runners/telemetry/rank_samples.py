"""Rank samples: each rank's processes, and the GPUs that they use."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from msgspec import structs

from ...presets.finding import Finding
from .. import clock
from ..formatting import size_text, spans_text
from ..model import Gpu, RankSample
from .proc import (
    KeptFile,
    Limits,
    Stat,
    below,
    children,
    parse_io,
    parse_stat,
    read_io,
    read_nspids,
    read_stat,
)

# -----------------------------------------------------------------------------------------------------------
# Parents of processes, kept from one listing of /proc to the next, so that only new processes are read.


AGAIN = 12
"""Listings before a complete reread: until then a reused pid may count as the earlier process."""


class ProcessTree:
    """The visible processes; call `refresh` every few seconds (a listing of /proc, 10 µs per new process)."""

    def __init__(self, proc: str = "/proc") -> None:
        self._proc = proc
        self._processes: dict[int, tuple[int, int]] = {}
        """Pid → parent, start time."""
        self._refreshes = 0

    def refresh(self) -> None:
        """Read new processes, drop ended ones, and reread those with an ended parent."""
        if self._refreshes % AGAIN == 0:
            self._processes.clear()
        self._refreshes += 1
        here = {int(name) for name in os.listdir(self._proc) if name.isdigit()}
        for pid in self._processes.keys() - here:
            del self._processes[pid]
        orphans = [pid for pid, (parent, _) in self._processes.items() if parent and parent not in here]
        for pid in [*orphans, *(here - self._processes.keys())]:
            self._read(pid)

    def _read(self, pid: int) -> None:
        stat = read_stat(pid, self._proc)
        if stat is None:
            self._processes.pop(pid, None)
        else:
            self._processes[pid] = stat.ppid, stat.started

    def below(self, roots: Iterable[int]) -> dict[int, dict[int, int]]:
        """For each of `roots` its descendants: pid → start time."""
        tree = children({pid: parent for pid, (parent, _) in self._processes.items()})
        return {root: {pid: self._processes[pid][1] for pid in below(tree, root)} for root in roots}


# -----------------------------------------------------------------------------------------------------------
# The GPU of each rank, and processes that hold a GPU wrongly. Pure.
# There are two sources: the launch environment (`CUDA_VISIBLE_DEVICES`, `LOCAL_RANK`) says which GPU a rank should
# use, NVML's pids say which one it uses. NVML takes precedence if its pids can be matched. In a container they often
# cannot, because the driver may report pids of the host's namespace.


SET_DEVICE = (
    'call torch.cuda.set_device(int(os.environ["LOCAL_RANK"])) before anything else that touches CUDA, '
    "also before torch.load without map_location"
)


@dataclass(frozen=True, slots=True)
class Launched:
    """One rank of this node, without NVML data."""

    rank: int
    local_rank: int
    pids: tuple[int, ...] = ()
    """Pids of the rank's process and its children, from /proc."""
    visible: str | None = None
    """Its CUDA_VISIBLE_DEVICES; None if unset."""
    order: str | None = None
    """Its CUDA_DEVICE_ORDER; None if unset, which CUDA treats as FASTEST_FIRST."""


@dataclass(frozen=True, slots=True)
class Pids:
    """Processes from /proc, as input."""

    namespaced: Mapping[int, tuple[int, ...]]
    """Rank's pid → all its pids, outermost namespace first (`proc.read_nspids`)."""
    names: Mapping[int, str]
    """Pid → name, for the processes that NVML reports."""
    ours: frozenset[int] = frozenset()
    """Other processes of this run: launcher, runner."""
    initial: bool = False
    """Whether /proc is of the initial namespace, which has NVML's pids."""


@dataclass(frozen=True, slots=True)
class Placed:
    """GPU of one rank."""

    gpu: int | None = None
    """NVML index; None if unknown."""
    source: str | None = None
    """Either "nvml" or "env"; None if unknown."""
    mem: int | None = None
    """Bytes of its processes on that GPU, from NVML."""


@dataclass(frozen=True, slots=True)
class Placement:
    """All ranks of a node on its GPUs."""

    ranks: Mapping[int, Placed]
    findings: tuple[Finding, ...] = ()
    """All current findings; the id of one about a GPU without a rank ends in ":gpu<index>"."""

    def fill(self, samples: Mapping[int, RankSample]) -> dict[int, RankSample]:
        return {
            rank: structs.replace(sample, gpu=placed.gpu, gpu_source=placed.source, gpu_mem=placed.mem)
            for rank, sample in samples.items()
            for placed in (self.ranks.get(rank, Placed()),)
        }


def place(
    launched: Sequence[Launched], gpus: Sequence[Gpu], pids: Pids, node: int | None = None
) -> Placement:
    """Join launch environment, NVML and /proc. `node` goes into the findings."""
    owners = _owners(launched, gpus, pids)
    held = _held(owners, gpus)
    ranks = {process.rank: _placed(process, gpus, held.get(process.rank, {})) for process in launched}
    findings = [*_strays(ranks, held, node), *_shared(ranks, gpus, node)]
    if owners or pids.initial:
        findings += _foreign(ranks, gpus, owners, pids, node)
    return Placement(ranks, tuple(findings))


def expected_gpu(process: Launched, gpus: Sequence[Gpu]) -> int | None:
    """The NVML index from a rank's launch environment; None if it does not determine one.

    The CUDA programming guide allows indices or (shortened) UUIDs in CUDA_VISIBLE_DEVICES, and ignores all from the
    first invalid one on. CUDA numbers the fastest GPU first unless CUDA_DEVICE_ORDER differs, while NVML uses the order
    of the PCI bus. With unlike GPUs an index is therefore ambiguous.
    """
    entries = _entries(process.visible, gpus)
    if not entries:
        return None
    # A launcher that gives each rank only one GPU does not change the local rank.
    position = 0 if len(entries) == 1 else process.local_rank
    entry = entries[position] if position < len(entries) else None
    if entry is None or not entry.isdecimal():
        return None if entry is None else _by_uuid(entry, gpus)
    unlike = len({gpu.name for gpu in gpus}) > 1 and process.order != "PCI_BUS_ID"
    return None if unlike or any(gpu.mig for gpu in gpus) else int(entry)


def _entries(visible: str | None, gpus: Sequence[Gpu]) -> list[str]:
    indices = {str(gpu.index) for gpu in gpus}
    if visible is None:
        return sorted(indices, key=int)
    valid: list[str] = []
    for entry in (part.strip() for part in visible.split(",")):
        if entry not in indices and not entry.startswith(("GPU-", "MIG-")):
            break
        valid.append(entry)
    return valid


def _by_uuid(entry: str, gpus: Sequence[Gpu]) -> int | None:
    """GPU of a UUID. "MIG-GPU-<uuid>/…" contains its GPU; "MIG-<uuid>" is known only if one GPU has MIG."""
    wanted = entry.removeprefix("MIG-").split("/", 1)[0]
    if wanted.startswith("GPU-"):
        indices = [gpu.index for gpu in gpus if gpu.uuid.startswith(wanted)]
    else:
        indices = [gpu.index for gpu in gpus if gpu.mig]
    return indices[0] if len(indices) == 1 else None


def _owners(launched: Sequence[Launched], gpus: Sequence[Gpu], pids: Pids) -> dict[int, int]:
    """NVML's pid → rank. Pids of other namespaces are used only if no pid matches directly."""
    seen = {pid for gpu in gpus for pid in gpu.pids or ()}
    direct = {pid: process.rank for process in launched for pid in process.pids if pid in seen}
    if direct or pids.initial:
        return direct
    return {
        alias: process.rank
        for process in launched
        for pid in process.pids
        for alias in pids.namespaced.get(pid, ())
        if alias in seen
    }


def _held(owners: Mapping[int, int], gpus: Sequence[Gpu]) -> dict[int, dict[int, int | None]]:
    """Rank → GPU → bytes of its processes there (None if the driver reports none)."""
    held: dict[int, dict[int, int | None]] = {}
    for gpu in gpus:
        sizes = gpu.pid_mem or (None,) * len(gpu.pids or ())
        for pid, size in zip(gpu.pids or (), sizes, strict=True):
            if (rank := owners.get(pid)) is not None:
                on = held.setdefault(rank, {})
                before = on.get(gpu.index, 0)
                on[gpu.index] = None if size is None or before is None else before + size
    return held


def _placed(process: Launched, gpus: Sequence[Gpu], held: Mapping[int, int | None]) -> Placed:
    expected = expected_gpu(process, gpus)
    if not held:
        return Placed(expected, None if expected is None else "env")
    home = expected if expected in held else _fullest(held)
    return Placed() if home is None else Placed(home, "nvml", held[home])


def _fullest(held: Mapping[int, int | None]) -> int | None:
    if len(held) == 1:
        return next(iter(held))
    sizes = {gpu: size for gpu, size in held.items() if size is not None}
    return max(sizes, key=lambda gpu: sizes[gpu]) if len(sizes) == len(held) else None


def _strays(
    ranks: Mapping[int, Placed], held: Mapping[int, Mapping[int, int | None]], node: int | None
) -> Iterable[Finding]:
    """Ranks that also hold memory on another rank's GPU; a single rank may use all of them."""
    homes = {placed.gpu: rank for rank, placed in ranks.items() if placed.gpu is not None}
    for rank, on in sorted(held.items()):
        home = ranks[rank].gpu
        others = [gpu for gpu in sorted(on) if gpu != home and gpu in homes]
        if home is not None and others:
            yield Finding(
                id="gpu-stray-context",
                severity="warning",
                text=f"rank {rank} also holds memory on {spans_text('GPU', others)} (forgotten torch.cuda.set_device?)",
                rank=rank,
                node=node,
                remedy=SET_DEVICE,
                evidence=tuple(f"GPU {gpu}: {size_text(on[gpu])}" for gpu in sorted(on)),
            )


def _shared(ranks: Mapping[int, Placed], gpus: Sequence[Gpu], node: int | None) -> Iterable[Finding]:
    """GPUs with several ranks, by NVML; with MIG this is correct."""
    for gpu in gpus:
        here = [r for r, placed in sorted(ranks.items()) if placed == Placed(gpu.index, "nvml", placed.mem)]
        if len(here) > 1 and not gpu.mig:
            yield Finding(
                id=f"gpu-shared:gpu{gpu.index}",
                severity="warning",
                text=f"{spans_text('rank', here)} all compute on GPU {gpu.index}",
                node=node,
                remedy=SET_DEVICE,
            )


def _foreign(
    ranks: Mapping[int, Placed],
    gpus: Sequence[Gpu],
    owners: Mapping[int, int],
    pids: Pids,
    node: int | None,
) -> Iterable[Finding]:
    """Processes of other programs on a GPU that this run uses."""
    used = {placed.gpu for placed in ranks.values()}
    for gpu in gpus:
        others = [pid for pid in gpu.pids or () if pid not in owners and pid not in pids.ours]
        if gpu.index in used and others:
            who = ", ".join(f"pid {pid} ({pids.names.get(pid, 'name not readable')})" for pid in others)
            yield Finding(
                id=f"gpu-foreign-process:gpu{gpu.index}",
                severity="warning",
                text=f"GPU {gpu.index} is held by {who}, not of this run",
                node=node,
                remedy="end it if it is left over from an earlier run, or choose other GPUs",
                evidence=tuple(f"pid {pid}" for pid in others),
            )


INITIAL = "pid:[4026531836]"
"""The initial pid namespace: its inode number is constant (PROC_PID_INIT_INO in the kernel's proc_ns.h)."""


def witness(
    launched: Sequence[Launched], gpus: Sequence[Gpu], ours: Iterable[int] = (), proc: str = "/proc"
) -> Pids:
    """Read the input of `place`; `ours` are other processes of this run (launcher, runner).

    Costs about 20 µs per process of a rank; repeat it after a GPU's pids have changed.
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
# Samples of the ranks' processes with their data loader children: CPU, memory, threads, storage.


LIMITS_S = 2.0
"""Seconds between two samples of the ranks' cgroup limits."""
CHILDREN_S = 5.0
"""Seconds between two scans of /proc for the ranks' children."""


class _Used(NamedTuple):
    """CPU seconds and storage bytes, in total or per second; None if unknown."""

    cpu_s: float | None
    read: float | None
    written: float | None


_UNKNOWN = _Used(None, None, None)


class _Tracked:
    """One rank's process, identified by pid and start time, with its children."""

    def __init__(self, stat: Stat, proc: str) -> None:
        self._stat = KeptFile(f"{proc}/{stat.pid}/stat", 1024)
        self._io = KeptFile(f"{proc}/{stat.pid}/io", 1024)
        self.limits = Limits(stat.pid, proc)
        self.pid = stat.pid
        self.started = stat.started
        self.gone = False
        self.children: dict[int, int] = {}
        """Pid → start time."""
        self.used: dict[int, _Used] = {}
        self.time = 0.0

    def read(self) -> Stat | None:
        """Read the process; None if it has ended, even if the pid was reused."""
        line = self._stat.read()
        stat = None if line is None else parse_stat(line)
        return stat if stat is not None and stat.started == self.started and stat.state != "Z" else None

    def spent(self, stat: Stat) -> _Used:
        """Resources that it has used so far."""
        return _Used(stat.cpu_s, *(parse_io(self._io.read()) or (None, None)))


class RankSampler:
    """Samples every rank of this node; call `sample` about once per second.

    A rank with a reused pid is reported without values, never with those of the other process. `clock` returns monotonic
    seconds.
    """

    def __init__(self, proc: str = "/proc", clock: Callable[[], float] = clock.monotonic) -> None:
        self._proc = proc
        self._clock = clock
        self._process_tree = ProcessTree(proc)
        self._tracked: dict[int, _Tracked] = {}
        self._scanned = self._limited = float("-inf")

    def sample(self, pids: Mapping[int, int]) -> dict[int, RankSample]:
        """One sample per rank; `pids` maps ranks to pids. A rank with an ended process has no values.

        cpu_percent, read_bps and write_bps include the children; rss_bytes and threads do not (a sum of RSS would count
        pages that forked children share several times). Rates are None in the first sample of a rank.
        """
        now = self._clock()
        for rank in set(self._tracked) - set(pids):
            del self._tracked[rank]
        for rank, pid in pids.items():
            self._track(rank, pid)
        if now - self._scanned >= CHILDREN_S:
            self._scanned = now
            self._scan()
        if now - self._limited >= LIMITS_S:
            self._limited = now
            for tracked in self._tracked.values():
                tracked.limits.sample()
        return {rank: self._sample(rank, pid, now) for rank, pid in pids.items()}

    def tree(self, rank: int) -> tuple[int, ...]:
        """Pids of the rank and its children in the last scan; () for a rank that has ended."""
        tracked = self._tracked.get(rank)
        return (tracked.pid, *tracked.children) if tracked is not None and not tracked.gone else ()

    def _track(self, rank: int, pid: int) -> None:
        earlier = self._tracked.get(rank)
        if earlier is not None and earlier.pid == pid:
            return
        self._tracked.pop(rank, None)
        if (stat := read_stat(pid, self._proc)) is not None:
            self._tracked[rank] = _Tracked(stat, self._proc)
            self._scanned = self._limited = float("-inf")

    def _scan(self) -> None:
        self._process_tree.refresh()
        below = self._process_tree.below([tracked.pid for tracked in self._tracked.values()])
        for tracked in self._tracked.values():
            tracked.children = below[tracked.pid]

    def _sample(self, rank: int, pid: int, now: float) -> RankSample:
        tracked = self._tracked.get(rank)
        own = None if tracked is None or tracked.gone else tracked.read()
        if tracked is None or own is None:
            if tracked is not None:
                tracked.gone = True
            return RankSample(rank=rank, pid=pid)
        used = {pid: tracked.spent(own)} | self._children(tracked)
        before, seconds = tracked.used, now - tracked.time
        tracked.used, tracked.time = used, now
        rates = _rates(before, used, seconds) if pid in before and seconds > 0 else _UNKNOWN
        return RankSample(
            rank=rank,
            pid=pid,
            cpu_percent=None if rates.cpu_s is None else 100 * rates.cpu_s,
            rss_bytes=own.rss_bytes or None,  # 0: it is exiting and has released its memory
            threads=own.threads,
            children=len(tracked.children),
            read_bps=rates.read,
            write_bps=rates.written,
            throttled_percent=tracked.limits.throttled,
            cpus=tracked.limits.cpus,
        )

    def _children(self, tracked: _Tracked) -> dict[int, _Used]:
        """Resources that the living children have used so far; ended children are dropped."""
        used = {}
        for pid, started in list(tracked.children.items()):
            stat = read_stat(pid, self._proc)
            if stat is None or stat.started != started:
                del tracked.children[pid]
            else:
                used[pid] = _Used(stat.cpu_s, *(read_io(pid, self._proc) or (None, None)))
        return used


def _rates(before: Mapping[int, _Used], after: Mapping[int, _Used], seconds: float) -> _Used:
    """Use per second of all processes in both readings; None if a value is missing."""
    pairs = [(before[pid], used) for pid, used in after.items() if pid in before]
    return _Used(*(_grown([(old[k], new[k]) for old, new in pairs], seconds) for k in range(3)))


def _grown(pairs: list[tuple[float | None, float | None]], seconds: float) -> float | None:
    grown = 0.0
    for old, new in pairs:
        if old is None or new is None:
            return None
        grown += max(0.0, new - old)
    return grown / seconds
