"""Which GPU each rank uses, and what holds a GPU that should not. Pure.

Two witnesses: the launch environment (`CUDA_VISIBLE_DEVICES`, `LOCAL_RANK`) says what a rank should use,
NVML's pids say what it does use. NVML is believed where its pids can be matched; in a container they often
cannot, because the driver may name processes as the host does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from msgspec import structs

from ..model import Finding, Gpu, RankSample

SET_DEVICE = (
    'call torch.cuda.set_device(int(os.environ["LOCAL_RANK"])) before anything else that touches CUDA, '
    "also before torch.load without map_location"
)


@dataclass(frozen=True, slots=True)
class Launched:
    """What is known of one rank of this node without asking NVML."""

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
    """What /proc says of processes, as input."""

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
        """The samples with each rank's GPU put in."""
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
    ranks = {one.rank: _placed(one, gpus, held.get(one.rank, {})) for one in launched}
    findings = [*_strays(ranks, held, node), *_shared(ranks, gpus, node)]
    if owners or pids.initial:
        findings += _foreign(ranks, gpus, owners, pids, node)
    return Placement(ranks, tuple(findings))


def expected_gpu(one: Launched, gpus: Sequence[Gpu]) -> int | None:
    """The NVML index that the launch environment gives a rank; None when it does not tell.

    Rules of the CUDA programming guide for CUDA_VISIBLE_DEVICES: indices or (shortened) UUIDs, and all from
    the first invalid one on is ignored. CUDA counts the fastest GPU first unless CUDA_DEVICE_ORDER says
    otherwise, NVML counts along the PCI bus: with unlike GPUs an index alone says nothing.
    """
    entries = _entries(one.visible, gpus)
    if not entries:
        return None
    # A launcher that shows each rank only its own GPU leaves the local rank as it is.
    position = 0 if len(entries) == 1 else one.local_rank
    entry = entries[position] if position < len(entries) else None
    if entry is None or not entry.isdecimal():
        return None if entry is None else _by_uuid(entry, gpus)
    unlike = len({gpu.name for gpu in gpus}) > 1 and one.order != "PCI_BUS_ID"
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
        found = [gpu.index for gpu in gpus if gpu.uuid.startswith(wanted)]
    else:
        found = [gpu.index for gpu in gpus if gpu.mig]
    return found[0] if len(found) == 1 else None


def _owners(launched: Sequence[Launched], gpus: Sequence[Gpu], pids: Pids) -> dict[int, int]:
    """Rank by pid as NVML names it. Other namespaces' pids only when no pid fits as it is."""
    seen = {pid for gpu in gpus for pid in gpu.pids or ()}
    direct = {pid: one.rank for one in launched for pid in one.pids if pid in seen}
    if direct or pids.initial:
        return direct
    return {
        alias: one.rank
        for one in launched
        for pid in one.pids
        for alias in pids.namespaced.get(pid, ())
        if alias in seen
    }


def _held(owners: Mapping[int, int], gpus: Sequence[Gpu]) -> dict[int, dict[int, int | None]]:
    """Rank → GPU → bytes of its processes there (None where the driver does not say)."""
    held: dict[int, dict[int, int | None]] = {}
    for gpu in gpus:
        sizes = gpu.pid_mem or (None,) * len(gpu.pids or ())
        for pid, size in zip(gpu.pids or (), sizes, strict=True):
            if (rank := owners.get(pid)) is not None:
                on = held.setdefault(rank, {})
                before = on.get(gpu.index, 0)
                on[gpu.index] = None if size is None or before is None else before + size
    return held


def _placed(one: Launched, gpus: Sequence[Gpu], held: Mapping[int, int | None]) -> Placed:
    expected = expected_gpu(one, gpus)
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
                severity="warn",
                text=f"rank {rank} also holds memory on {_gpus(others)} (forgotten torch.cuda.set_device?)",
                rank=rank,
                node=node,
                remedy=SET_DEVICE,
                evidence=tuple(f"GPU {gpu}: {_size(on[gpu])}" for gpu in sorted(on)),
            )


def _shared(ranks: Mapping[int, Placed], gpus: Sequence[Gpu], node: int | None) -> Iterable[Finding]:
    """GPUs on which NVML sees several ranks; with MIG that is how it should be."""
    for gpu in gpus:
        here = [r for r, placed in sorted(ranks.items()) if placed == Placed(gpu.index, "nvml", placed.mem)]
        if len(here) > 1 and not gpu.mig:
            yield Finding(
                id=f"gpu-shared:gpu{gpu.index}",
                severity="warn",
                text=f"ranks {', '.join(map(str, here))} all compute on GPU {gpu.index}",
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
                severity="warn",
                text=f"GPU {gpu.index} is held by {who}, not of this run",
                node=node,
                remedy="end it if it is left over from an earlier run, or choose other GPUs",
                evidence=tuple(f"pid {pid}" for pid in others),
            )


def _gpus(indices: Sequence[int]) -> str:
    return f"GPU{'s' if len(indices) > 1 else ''} {', '.join(map(str, indices))}"


def _size(size: int | None) -> str:
    return "n/a" if size is None else f"{size / 2**20:.0f} MiB"
