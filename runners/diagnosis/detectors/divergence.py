"""Ranks that compute different things, and transports slower than the hardware allows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from ....presets.finding import Finding
from ...model import Collective, Pulse
from .. import recorder
from ..nccl_facts import Communicator, FactLine, NcclFacts, NcclNode, speed

# -----------------------------------------------------------------------------------------------------------
# How the ranks of one node are connected, against what its hardware lets expect.


LEAST_RANKS = 4
"""Of a node with fewer it cannot be said which of them is the odd one."""


def gpudirect(facts: NcclFacts, node: NcclNode, number: int) -> Iterator[Finding]:
    """RDMA to other nodes, and never straight from GPU memory. One way alone is usual: see NCCL_NET_GDR_READ."""
    if not (node.devices or node.hcas) or node.env.get("NCCL_NET_GDR_LEVEL", "").upper() in ("0", "LOC"):
        return
    own = {rank for comm in facts.communicators for ranks in comm.hosts.values() for rank in ranks}
    kinds: dict[str, list[str]] = {}
    for comm in facts.communicators:
        for pair in comm.pairs:
            if pair.kind.startswith("NET/IB"):
                kinds.setdefault(pair.kind, _line(facts.raw, comm, pair.kind))
    if not own or not kinds or any(kind.endswith("/GDRDMA") for kind in kinds):
        return
    loaded = [f"nvidia_peermem is loaded on {node.host}"] if node.peermem else []
    yield Finding(
        "expect-gdr",
        "warning",
        f"{node.host} sends over RDMA through host memory: GPUDirect RDMA is off",
        node=number,
        remedy="Load nvidia_peermem (or a kernel and driver with dma-buf), and see that GPUs and NICs share PCIe "
        "switches: `nvidia-smi topo -m`. GeForce cards cannot do it at all.",
        evidence=(*[line for lines in kinds.values() for line in lines][:2], *loaded),
    )


def slow_pairs(facts: NcclFacts, node: NcclNode, number: int) -> Iterator[Finding]:
    """One GPU that others of its node do not reach by P2P, as they reach each other."""
    for comm in facts.communicators:
        own = set(comm.hosts.get(node.host, ()))
        if len(own) < LEAST_RANKS:
            continue
        worst: dict[tuple[int, int], str] = {}
        for pair in comm.pairs:
            if pair.source in own and pair.target in own:
                ends = min(pair.source, pair.target), max(pair.source, pair.target)
                if speed(pair.kind) >= speed(worst.get(ends, "P2P")):
                    worst[ends] = pair.kind
        slow = {ends: kind for ends, kind in worst.items() if not kind.startswith("P2P")}
        fast = [ends for ends in worst if ends not in slow]
        shared = set.intersection(*map(set, slow)) if slow else set()
        beyond = {rank for ends in fast for rank in ends} - shared
        if slow and shared and len(fast) >= len(slow) and len(beyond) >= LEAST_RANKS - 2:
            yield _odd(facts, comm, node, number, slow, min(shared))
            return


def _odd(
    facts: NcclFacts,
    comm: Communicator,
    node: NcclNode,
    number: int,
    slow: Mapping[tuple[int, int], str],
    rank: int,
) -> Finding:
    kind = max(slow.values(), key=speed)
    pairs = ", ".join(f"{a} and {b}" for a, b in sorted(slow)[:3])
    nvlink = bool(comm.nvls)
    return Finding(
        "expect-p2p",
        "warning" if nvlink else "note",
        f"ranks {pairs} of {node.host} are connected over {kind}, and the other GPUs there by P2P",
        role="cause" if nvlink else "hint",
        rank=rank if len(slow) > 1 else None,
        node=number,
        remedy="Compare this GPU with the others: `nvidia-smi topo -m`, `nvidia-smi nvlink -s`; where GPUs sit on two "
        "sockets without NVLink it is as it should be.",
        evidence=tuple(
            line for name in dict.fromkeys(slow.values()) for line in _line(facts.raw, comm, name)
        ),
        ranks=tuple(sorted({rank for ends in slow for rank in ends})),
    )


def _line(raw: Mapping[str, FactLine], comm: Communicator, kind: str) -> list[str]:
    fact = raw.get(f"pair:{comm.id}:{kind}")
    return [f"{fact.file}:{fact.line}: {fact.text}"] if fact else []


# -----------------------------------------------------------------------------------------------------------
# Where the collectives of ranks part: at the one that they are in, or at one before it.


SIZED = recorder.SIZED | {"all_gather", "reduce_scatter"}
"""Where ranks wait for each other, other sizes in the lists of these are a sign as well."""


class Split(NamedTuple):
    """One collective that ranks called differently."""

    of: str
    """In what: "operation", "size" (or type), "site"."""
    variants: tuple[tuple[Collective, tuple[int, ...]], ...]
    """What was called, by which ranks; what most called comes first."""


class Shift(NamedTuple):
    """The first collective that one rank did not call like another."""

    mine: Collective
    theirs: Collective
    skipped: bool
    """Whether all that follows fits when the rank left out `theirs`."""
    exact: bool
    """Whether the collective before it is known to be the same on both."""


def calls(pulses: Sequence[Pulse], group: str) -> dict[int, Collective]:
    """What a rank called in a group, by number, as far as its newest pulses tell."""
    by_seq: dict[int, Collective] = {}
    for pulse in pulses:
        for call in (*pulse.recent, *pulse.active):
            if call.group == group and not call.p2p and (call.sites or call.seq not in by_seq):
                by_seq[call.seq] = call
    return by_seq


def called(pulses: Sequence[Pulse], group: str, seq: int) -> Collective | None:
    """One of them."""
    for pulse in reversed(pulses):
        for call in (*pulse.active, *reversed(pulse.recent)):
            if call.seq == seq and call.group == group and not call.p2p:
                return call
    return None


def same(mine: Collective, theirs: Collective) -> bool:
    """Whether two ranks may have called these together, as far as is known."""
    return difference(mine, theirs) is None


def difference(mine: Collective, theirs: Collective) -> str | None:
    """In what two calls differ; None where nothing is known to."""
    if mine.op != theirs.op:
        return "operation"
    if mine.what != theirs.what and mine.op in SIZED:
        return "size"
    return "site" if mine.sites[:1] != theirs.sites[:1] and mine.sites and theirs.sites else None


def split(made: Mapping[int, Collective]) -> Split | None:
    """How ranks differ in one collective; the calls by rank."""
    kinds: dict[object, list[int]] = {}
    for rank in sorted(made):
        call = made[rank]
        kinds.setdefault((call.op, call.what if call.op in SIZED else "", call.sites[:1]), []).append(rank)
    groups = sorted(kinds.values(), key=lambda ranks: (-len(ranks), ranks))
    first = made[groups[0][0]] if groups else None
    if first is None:
        return None
    differences = [difference(first, made[ranks[0]]) for ranks in groups[1:]]
    for of in ("operation", "size", "site"):
        if of in differences:
            return Split(of, _variants(made, groups, of))
    return None


def _variants(
    made: Mapping[int, Collective], groups: Iterable[Sequence[int]], of: str
) -> tuple[tuple[Collective, tuple[int, ...]], ...]:
    """Groups of ranks that differ in this; what differs only in less stays together."""
    variants: list[tuple[Collective, list[int]]] = []
    levels = {"operation": ("operation",), "size": ("operation", "size")}.get(
        of, ("operation", "size", "site")
    )
    for ranks in groups:
        call = made[ranks[0]]
        alike = next((variant for variant in variants if difference(variant[0], call) not in levels), None)
        if alike is None:
            variants.append((call, list(ranks)))
        else:
            alike[1].extend(ranks)
    variants.sort(key=lambda variant: -len(variant[1]))
    return tuple((call, tuple(sorted(ranks))) for call, ranks in variants)


def shift(mine: Mapping[int, Collective], theirs: Mapping[int, Collective]) -> Shift | None:
    """The first collective of both in which they part; None where nothing that is known does."""
    common = sorted(mine.keys() & theirs.keys())
    first = next((seq for seq in common if not same(mine[seq], theirs[seq])), None)
    if first is None:
        return None
    later = [seq for seq in common if seq >= first and seq + 1 in theirs]
    fitting = [seq for seq in later if same(mine[seq], theirs[seq + 1])]
    located = all(mine[seq].sites and theirs[seq + 1].sites for seq in fitting)
    skipped = len(fitting) >= (1 if located else 2) and fitting == later
    before = first - 1
    exact = before in common and bool(mine[before].sites and theirs[before].sites)
    return Shift(mine[first], theirs[first], skipped, exact)
