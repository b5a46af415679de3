"""Rank samples: each rank's processes, and which GPU they use."""

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
# Whose child each process is, kept from one listing of /proc to the next, so that only new ones are read.


AGAIN = 12
"""Listings after which everything is read again: until then a pid given to another process may pass for the old one."""


class ProcessTree:
    """The processes that can be seen; `refresh` about every few seconds (a listing of /proc, 10 µs a new process)."""

    def __init__(self, proc: str = "/proc") -> None:
        self._proc = proc
        self._processes: dict[int, tuple[int, int]] = {}
        """pid → parent, start time."""
        self._refreshes = 0

    def refresh(self) -> None:
        """See who came, who went, and who was given another parent because its own has ended."""
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
        """For each of `roots` all that descend from it: pid → start time."""
        tree = children({pid: parent for pid, (parent, _) in self._processes.items()})
        return {root: {pid: self._processes[pid][1] for pid in below(tree, root)} for root in roots}


# -----------------------------------------------------------------------------------------------------------
# Which GPU each rank uses, and what holds a GPU that should not. Pure.
# Two witnesses: the launch environment (`CUDA_VISIBLE_DEVICES`, `LOCAL_RANK`) names what a rank should use,
# NVML's pids name what it does use. NVML is believed where its pids can be matched; in a container they often
# cannot, because the driver may name processes as the host does.


SET_DEVICE = (
    'call torch.cuda.set_device(int(os.environ["LOCAL_RANK"])) before anything else that touches CUDA, '
    "also before torch.load without map_location"
)


@dataclass(frozen=True, slots=True)
class Launched:
    """One rank of this node, without NVML."""

    rank: int
    local_rank: int
    pids: tuple[int, ...] = ()
    """Its process and that process's children, as /proc here names them."""
    visible: str | None = None
    """Its CUDA_VISIBLE_DEVICES; None when unset."""
    order: str | None = None
    """Its CUDA_DEVICE_ORDER; None when unset, which means FASTEST_FIRST to CUDA."""


@dataclass(frozen=True, slots=True)
class Pids:
    """Processes by /proc, as input."""

    namespaced: Mapping[int, tuple[int, ...]]
    """Rank's pid → all its pids, outermost namespace first (`proc.read_nspids`)."""
    names: Mapping[int, str]
    """Name by pid, for the processes that NVML names."""
    ours: frozenset[int] = frozenset()
    """Further processes of this run: launcher, runner."""
    initial: bool = False
    """Whether /proc is that of the initial namespace, where NVML's pids are the same ones."""


@dataclass(frozen=True, slots=True)
class Placed:
    """Where one rank computes."""

    gpu: int | None = None
    """NVML index; None when not known."""
    source: str | None = None
    """"nvml" or "env"; None when not known."""
    mem: int | None = None
    """Bytes that NVML counts for its processes on that GPU."""


@dataclass(frozen=True, slots=True)
class Placement:
    """All ranks of a node on its GPUs."""

    ranks: Mapping[int, Placed]
    findings: tuple[Finding, ...] = ()
    """All that hold now; ids end in ":gpu<index>" where one is about a GPU and no rank."""

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
    """The NVML index that the launch environment gives a rank; None when it does not determine one.

    Rules of the CUDA programming guide for CUDA_VISIBLE_DEVICES: indices or (shortened) UUIDs, and all from
    the first invalid one on is ignored. CUDA counts the fastest GPU first unless CUDA_DEVICE_ORDER says
    otherwise, NVML counts along the PCI bus: with unlike GPUs an index alone says nothing.
    """
    entries = _entries(process.visible, gpus)
    if not entries:
        return None
    # A launcher that shows each rank only its own GPU leaves the local rank as it is.
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
    """The GPU of a UUID. "MIG-GPU-<uuid>/…" names its GPU; "MIG-<uuid>" only where one GPU has MIG."""
    wanted = entry.removeprefix("MIG-").split("/", 1)[0]
    if wanted.startswith("GPU-"):
        indices = [gpu.index for gpu in gpus if gpu.uuid.startswith(wanted)]
    else:
        indices = [gpu.index for gpu in gpus if gpu.mig]
    return indices[0] if len(indices) == 1 else None


def _owners(launched: Sequence[Launched], gpus: Sequence[Gpu], pids: Pids) -> dict[int, int]:
    """Rank by pid as NVML names it. Other namespaces' pids only when no pid fits as it is."""
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
    """Rank → GPU → bytes of its processes there (None where the driver gives none)."""
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
    """Ranks that also hold a GPU where another rank computes; a rank alone may spread over all of them."""
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
    """GPUs on which NVML sees several ranks; with MIG that is how it should be."""
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
    """Processes of others on a GPU that this run uses."""
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
# Samples of the ranks' processes: processor, memory, threads, storage; data loader children included.


LIMITS_S = 2.0
"""Seconds between two samples of what a rank's cgroups hold back."""
CHILDREN_S = 5.0
"""Seconds between two passes over /proc for the ranks' children."""


class _Used(NamedTuple):
    """Seconds of CPU time and bytes of storage, so far or a second; None is unknown."""

    cpu_s: float | None
    read: float | None
    written: float | None


_UNKNOWN = _Used(None, None, None)


class _Tracked:
    """One rank's process, known by pid and start time, and the children found below it."""

    def __init__(self, stat: Stat, proc: str) -> None:
        self._stat = KeptFile(f"{proc}/{stat.pid}/stat", 1024)
        self._io = KeptFile(f"{proc}/{stat.pid}/io", 1024)
        self.limits = Limits(stat.pid, proc)
        self.pid = stat.pid
        self.started = stat.started
        self.gone = False
        self.children: dict[int, int] = {}
        """pid → start time."""
        self.used: dict[int, _Used] = {}
        self.time = 0.0

    def read(self) -> Stat | None:
        """The process now; None when it has ended, or the pid is another's."""
        line = self._stat.read()
        stat = None if line is None else parse_stat(line)
        return stat if stat is not None and stat.started == self.started and stat.state != "Z" else None

    def spent(self, stat: Stat) -> _Used:
        """What it used so far."""
        return _Used(stat.cpu_s, *(parse_io(self._io.read()) or (None, None)))


class RankSampler:
    """Samples every rank of this node; call `sample` about once a second.

    A pid that the kernel has given to another process since is reported without values, never with that
    process's. `clock` gives monotonic seconds.
    """

    def __init__(self, proc: str = "/proc", clock: Callable[[], float] = clock.monotonic) -> None:
        self._proc = proc
        self._clock = clock
        self._process_tree = ProcessTree(proc)
        self._tracked: dict[int, _Tracked] = {}
        self._scanned = self._limited = float("-inf")

    def sample(self, pids: Mapping[int, int]) -> dict[int, RankSample]:
        """One sample by rank, for `pids` from rank to pid. A rank whose process is gone has no values.

        cpu_percent, read_bps and write_bps cover the process and its children; rss_bytes and threads are
        the rank's own (a sum of RSS would count pages that forked children share several times over).
        Rates are None in the first sample of a rank.
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
        """The rank's pid and those of its children as last seen; () for a rank that is gone."""
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
            rss_bytes=own.rss_bytes or None,  # 0: it is exiting, its memory is gone
            threads=own.threads,
            children=len(tracked.children),
            read_bps=rates.read,
            write_bps=rates.written,
            throttled_percent=tracked.limits.throttled,
            cpus=tracked.limits.cpus,
        )

    def _children(self, tracked: _Tracked) -> dict[int, _Used]:
        """What the living children used so far; those that are gone are forgotten."""
        used = {}
        for pid, started in list(tracked.children.items()):
            stat = read_stat(pid, self._proc)
            if stat is None or stat.started != started:
                del tracked.children[pid]
            else:
                used[pid] = _Used(stat.cpu_s, *(read_io(pid, self._proc) or (None, None)))
        return used


def _rates(before: Mapping[int, _Used], after: Mapping[int, _Used], seconds: float) -> _Used:
    """Use per second over all processes seen at both times; None where a value is missing."""
    pairs = [(before[pid], used) for pid, used in after.items() if pid in before]
    return _Used(*(_grown([(old[k], new[k]) for old, new in pairs], seconds) for k in range(3)))


def _grown(pairs: list[tuple[float | None, float | None]], seconds: float) -> float | None:
    grown = 0.0
    for old, new in pairs:
        if old is None or new is None:
            return None
        grown += max(0.0, new - old)
    return grown / seconds
