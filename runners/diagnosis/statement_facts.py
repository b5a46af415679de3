"""Convert the statements of NCCL's lines into the facts that nodes send and the NCCL screen shows. Pure."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable

from ..run.log_files import parse_file_id
from .heads import Stamp
from .nccl_facts import (
    COMMUNICATORS,
    NODES,
    RANKS,
    RINGS,
    Communicator,
    FactLine,
    NcclFacts,
    NcclNode,
    Pair,
    folded_pairs,
    preference,
)
from .rules import Tally
from .statements import CommunicatorPart, NodePart, Statements


def facts_of(statements: Statements, tally: Tally, lines: int, nccl_lines: int) -> NcclFacts:
    """Return the facts of all lines read so far. `lines`, `nccl_lines`: number of all lines, and of NCCL's."""
    raw: dict[str, FactLine] = {}
    nodes = tuple(_node(node, raw) for node in list(statements.nodes.values())[:NODES])
    # The sort is stable: communicators of equal size stay in the order of their init.
    named = sorted(_named(statements.sessions.all()), key=lambda each: -(each[1].nranks or 0))
    communicators = tuple(_communicator(name, comm, raw) for name, comm in named[:COMMUNICATORS])
    for entry in tally.entries:
        if entry.firsts:
            raw[f"rule:{entry.rule.id}"] = entry.firsts[0].evidence
    return NcclFacts(nodes=nodes, communicators=communicators, lines=lines, nccl_lines=nccl_lines, raw=raw)


def _named(parts: Iterable[CommunicatorPart]) -> list[tuple[str, CommunicatorPart]]:
    """Return the communicators with their names: NCCL's id, else the size and a number."""
    counted: Counter[int] = Counter()
    named = []
    for comm in parts:
        name = comm.id
        if not name and comm.nranks is not None:
            counted[comm.nranks] += 1
            name = f"{comm.nranks} ranks, no. {counted[comm.nranks]}"
        named.append((name, comm))
    return named


def _node(node: NodePart, raw: dict[str, FactLine]) -> NcclNode:
    name = node.host or node.file
    for key, line in node.lines.items():  # a second network's line is `network:<host>:Socket`
        raw[":".join((key.partition(" ")[0], name, *key.split(" ", 1)[1:]))] = line.evidence()
    first = node.lines.get("host")
    file_id = None if first is None else parse_file_id(first.file)
    address = node.interfaces.get(node.bootstrap, "")
    return NcclNode(
        host=name,
        node=None if file_id is None else file_id.node,
        versions=tuple(sorted(node.versions)),
        networks=tuple(node.named_networks()),
        bootstrap=":".join(text for text in (node.bootstrap, address) if text),
        interfaces=tuple(f"{face}:{its}" for face, its in node.interfaces.items()),
        hcas=dict(node.hcas),
        plugins=tuple(sorted(node.plugins)),
        env=dict(node.env),
    )


def _communicator(name: str, comm: CommunicatorPart, raw: dict[str, FactLine]) -> Communicator:
    for key, line in comm.lines.items():
        what, _, kind = key.partition(":")
        raw[f"{what}:{name}" + (f":{kind}" if kind else "")] = line.evidence()
    members = list(comm.ranks.values())[:RANKS]
    hosts: dict[str, list[int]] = {}
    for part in members:
        hosts.setdefault(part.host, []).append(part.rank)
    owners = {part.rank: part.host for part in members}
    pairs, folded = folded_pairs(_pairs(comm), owners)
    began = ((part.rank, _unix(part.stamp)) for part in members)
    return Communicator(
        id=name,
        nranks=comm.nranks,
        nnodes=comm.nnodes,
        hosts={host: tuple(sorted(ranks)) for host, ranks in sorted(hosts.items())},
        stages={part.rank: part.stage.name.lower() for part in members},
        began={rank: at for rank, at in began if at is not None},
        inits=tuple(comm.timed.values())[:RANKS],
        pairs=pairs,
        rings=_rings(comm),
        ring_count=comm.channels.get("coll") or len(comm.rings),
        trees=comm.trees,
        channels=dict(comm.channels),
        nvls=comm.uses_nvls,
        tuning=dict(comm.tuning),
        collectives=dict(comm.collectives),
        folded=folded,
    )


def _pairs(comm: CommunicatorPart) -> Iterable[Pair]:
    """Yield one entry per transport of a pair, the fastest first."""
    for (source, target), kinds in comm.pairs.items():
        for kind in sorted(kinds, key=preference):
            yield Pair(source, target, kind)


def _rings(comm: CommunicatorPart) -> tuple[tuple[int, ...], ...]:
    """Return the different complete rings. Until 2.28 NCCL truncates long ones."""
    orders = dict.fromkeys(tuple(map(int, text.split())) for _, text in sorted(comm.rings.items()))
    return tuple(order for order in orders if len(order) == comm.nranks)[:RINGS]


def _unix(stamp: Stamp | None) -> float | None:
    """Convert NCCL's timestamp with this machine's clock and time zone; None for other stamps."""
    if stamp is None or stamp.kind != "nccl":
        return None
    whole, _, part = stamp.text.partition(".")
    try:
        return time.mktime(time.strptime(whole, "%Y-%m-%d %H:%M:%S")) + float(f"0.{part or 0}")
    except (ValueError, OverflowError):
        return None
