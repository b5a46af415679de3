"""How the ranks of one node are connected, against what its hardware lets expect."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ...model import Finding
from ..facts import Communicator, Facts, Line, Node
from ..live import speed

LEAST_RANKS = 4
"""Of a node with fewer it cannot be said which of them is the odd one."""


def gpudirect(facts: Facts, node: Node, number: int) -> Iterator[Finding]:
    """RDMA to other nodes, and never straight from GPU memory. One way alone is usual: see NCCL_NET_GDR_READ."""
    if not (node.devices or node.hcas) or node.env.get("NCCL_NET_GDR_LEVEL", "").upper() in ("0", "LOC"):
        return
    own = {rank for one in facts.communicators for ranks in one.hosts.values() for rank in ranks}
    kinds: dict[str, list[str]] = {}
    for one in facts.communicators:
        for pair in one.pairs:
            if pair.kind.startswith("NET/IB"):
                kinds.setdefault(pair.kind, _line(facts.raw, one, pair.kind))
    if not own or not kinds or any(kind.endswith("/GDRDMA") for kind in kinds):
        return
    known = [f"nvidia_peermem is loaded on {node.host}"] if node.peermem else []
    yield Finding(
        "expect-gdr",
        "warn",
        f"{node.host} sends over RDMA through host memory: GPUDirect RDMA is off",
        "cause",
        None,
        number,
        "Load nvidia_peermem (or a kernel and driver with dma-buf), and see that GPUs and NICs share PCIe switches: "
        "`nvidia-smi topo -m`. GeForce cards cannot do it at all.",
        (*[line for lines in kinds.values() for line in lines][:2], *known),
    )


def slow_pairs(facts: Facts, node: Node, number: int) -> Iterator[Finding]:
    """One GPU that others of its node do not reach by P2P, as they reach each other."""
    for one in facts.communicators:
        own = set(one.hosts.get(node.host, ()))
        if len(own) < LEAST_RANKS:
            continue
        worst: dict[tuple[int, int], str] = {}
        for pair in one.pairs:
            if pair.source in own and pair.target in own:
                ends = min(pair.source, pair.target), max(pair.source, pair.target)
                if speed(pair.kind) >= speed(worst.get(ends, "P2P")):
                    worst[ends] = pair.kind
        slow = {ends: kind for ends, kind in worst.items() if not kind.startswith("P2P")}
        fast = [ends for ends in worst if ends not in slow]
        shared = set.intersection(*map(set, slow)) if slow else set()
        beyond = {rank for ends in fast for rank in ends} - shared
        if slow and shared and len(fast) >= len(slow) and len(beyond) >= LEAST_RANKS - 2:
            yield _odd(facts, one, node, number, slow, min(shared))
            return


def _odd(
    facts: Facts, one: Communicator, node: Node, number: int, slow: Mapping[tuple[int, int], str], rank: int
) -> Finding:
    kind = max(slow.values(), key=speed)
    pairs = ", ".join(f"{a} and {b}" for a, b in sorted(slow)[:3])
    nvlink = bool(one.nvls)
    return Finding(
        "expect-p2p",
        "warn" if nvlink else "info",
        f"ranks {pairs} of {node.host} are connected over {kind}, and the other GPUs there by P2P",
        "cause" if nvlink else "hint",
        rank if len(slow) > 1 else None,
        number,
        "Compare this GPU with the others: `nvidia-smi topo -m`, `nvidia-smi nvlink -s`; where GPUs sit on two "
        "sockets without NVLink it is as it should be.",
        tuple(line for name in dict.fromkeys(slow.values()) for line in _line(facts.raw, one, name)),
        ranks=tuple(sorted({rank for ends in slow for rank in ends})),
    )


def _line(raw: Mapping[str, Line], one: Communicator, kind: str) -> list[str]:
    known = raw.get(f"pair:{one.id}:{kind}")
    return [f"{known.file}:{known.line}: {known.text}"] if known else []
