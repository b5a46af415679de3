"""The GPU of each rank, and processes that hold a GPU wrongly. Pure, except `witness`, which reads /proc.

There are two sources: the launch environment (`CUDA_VISIBLE_DEVICES`, `LOCAL_RANK`) says which GPU a rank should use,
NVML's pids say which one it uses. NVML takes precedence if its pids can be matched. In a container they often cannot,
because the driver may report pids of the host's namespace.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from msgspec import structs

from ...presets.finding import Finding
from ..run.formatting import size_text, spans_text
from ..run.proc import read_nspids, read_stat
from ..run.samples import Gpu, RankSample

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
    """Return the NVML index from a rank's launch environment; None if it does not determine one.

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
    direct: dict[int, int] = {}
    aliases: dict[int, int] = {}
    for process in launched:
        for pid in process.pids:
            direct[pid] = process.rank
            aliases |= dict.fromkeys(pids.namespaced.get(pid, ()), process.rank)
    owners = {pid: rank for pid, rank in direct.items() if pid in seen}
    if owners or pids.initial:
        return owners
    return {pid: rank for pid, rank in aliases.items() if pid in seen}


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
    """Yield a finding per GPU of this run that other programs' processes use."""
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
