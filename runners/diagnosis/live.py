"""What a reading says, as NcclFacts that travel; and the facts of several nodes as those of one run. Pure."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping

import msgspec
from msgspec import structs

from ..logs.log_files import parse_file_id
from . import nccl_facts
from .lines import Stamp
from .nccl_facts import Communicator, FactLine, Init, NcclFacts, NcclNode, Pair
from .reading import Reading
from .rules import Evidence

RANKS = 1024
"""Most ranks of a communicator that are told one by one."""
PAIRS = 20_000
"""Most pairs of a communicator; of more only the first between each two hosts, of each kind."""
COMMUNICATORS = 256
"""Most communicators; the smallest are left out."""
NODES = 1024
RINGS = 8
STAGES = tuple(stage.name.lower() for stage in nccl_facts.InitStage)
"""As they follow each other."""

_encoder, _decoder = msgspec.json.Encoder(), msgspec.json.Decoder(NcclFacts)


def encode(facts: NcclFacts) -> bytes:
    """One JSON object."""
    return _encoder.encode(facts)


def decode(document: bytes) -> NcclFacts:
    """Raises msgspec.MsgspecError for what is none."""
    return _decoder.decode(document)


def collect(reading: Reading) -> NcclFacts:
    """What was read so far."""
    statements, raw = reading.statements, dict[str, FactLine]()
    nodes = [_node(node, raw) for node in list(statements.nodes.values())[:NODES]]
    found = statements.sessions.all()
    counted: Counter[int | None] = Counter()
    communicators = []
    for one in found:
        name = one.id
        if not name and one.ranks:
            counted[one.nranks] += 1
            name = f"{one.nranks} ranks, no. {counted[one.nranks]}"
        communicators.append((name, one))
    communicators.sort(key=lambda each: -(each[1].nranks or 0))  # stable: else in the order of their making
    told = tuple(_communicator(name, one, raw) for name, one in communicators[:COMMUNICATORS])
    for entry in reading.tally.entries:
        if entry.firsts:
            raw[f"rule:{entry.rule.id}"] = _line(entry.firsts[0].evidence)
    return NcclFacts(
        nodes=tuple(nodes),
        communicators=told,
        lines=reading.lines,
        nccl_lines=reading.nccl_lines,
        raw=raw,
    )


def placed(facts: NcclFacts, node: int, devices: tuple[str, ...], peermem: bool | None) -> NcclFacts:
    """The facts of one node's logs, with its number and what its own files say of it."""
    return structs.replace(
        facts,
        nodes=tuple(
            structs.replace(one, node=node, devices=devices, peermem=peermem) for one in facts.nodes
        ),
    )


def shifted(facts: NcclFacts, shift: float) -> NcclFacts:
    """By a clock that is `shift` seconds ahead."""
    return structs.replace(
        facts,
        communicators=tuple(
            structs.replace(
                one,
                began={rank: at + shift for rank, at in one.began.items()},
                seen=None if one.seen is None else one.seen + shift,
            )
            for one in facts.communicators
        ),
    )


def _line(evidence: Evidence) -> FactLine:
    return FactLine(evidence.file, evidence.line, evidence.text)


def _node(node: nccl_facts.NodePart, raw: dict[str, FactLine]) -> NcclNode:
    name = node.host or node.file
    raw |= {f"{_key(key)}:{name}{_rest(key)}": _line(line.evidence()) for key, line in node.lines.items()}
    first = node.lines.get("host")
    known = None if first is None else parse_file_id(first.file)
    address = node.interfaces.get(node.bootstrap, "")
    return NcclNode(
        host=name,
        node=None if known is None else known.node,
        versions=tuple(sorted(node.versions)),
        networks=tuple(node.named_networks()),
        bootstrap=":".join(one for one in (node.bootstrap, address) if one),
        interfaces=tuple(f"{face}:{its}" for face, its in node.interfaces.items()),
        hcas=dict(node.hcas),
        plugins=tuple(sorted(node.plugins)),
        env=dict(node.env),
    )


def _key(key: str) -> str:
    """ "network Socket" → "network": a second network's line is `network:<host>:Socket`."""
    return key.partition(" ")[0]


def _rest(key: str) -> str:
    _, blank, rest = key.partition(" ")
    return blank and f":{rest}"


def _communicator(name: str, one: nccl_facts.CommunicatorPart, raw: dict[str, FactLine]) -> Communicator:
    for key, line in one.lines.items():
        what, _, kind = key.partition(":")
        raw[f"{what}:{name}" + (f":{kind}" if kind else "")] = _line(line.evidence())
    members = list(one.ranks.values())[:RANKS]
    hosts: dict[str, list[int]] = {}
    for part in members:
        hosts.setdefault(part.host, []).append(part.rank)
    owners = {part.rank: part.host for part in members}
    pairs, folded = _folded(_pairs(one), owners)
    began = ((part.rank, _unix(part.stamp)) for part in members)
    nvls = one.channels.get("nvls")
    return Communicator(
        id=name,
        nranks=one.nranks,
        nnodes=one.nnodes,
        hosts={host: tuple(sorted(ranks)) for host, ranks in sorted(hosts.items())},
        stages={part.rank: part.stage.name.lower() for part in members},
        began={rank: at for rank, at in began if at is not None},
        inits=tuple(
            Init(timed.rank, timed.seconds, timed.phases) for timed in list(one.timed.values())[:RANKS]
        ),
        pairs=pairs,
        rings=_rings(one),
        ring_count=one.channels.get("coll") or len(one.rings),
        trees=one.trees,
        channels=dict(one.channels),
        nvls=True if one.nvls or nvls else None if nvls is None else False,
        tuning=dict(one.tuning),
        collectives=dict(one.collectives),
        folded=folded,
    )


def _pairs(one: nccl_facts.CommunicatorPart) -> Iterable[Pair]:
    """One for each transport of a pair, the fastest kind first."""
    for (source, target), kinds in one.pairs.items():
        for kind in sorted(kinds, key=speed):
            yield Pair(source, target, kind)


def speed(kind: str) -> int:
    """Transports from the fastest, 0, to the slowest: what NCCL takes where nothing better is there."""
    if kind.startswith("P2P"):
        return 0
    if kind == "SHM":
        return 1
    return 4 if kind == "NET/Socket" else 2 if kind.endswith("/GDRDMA") else 3


def _folded(pairs: Iterable[Pair], owners: Mapping[int, str]) -> tuple[tuple[Pair, ...], int]:
    """At most PAIRS, and how many are left out."""
    found = tuple(pairs)
    if len(found) <= PAIRS:
        return found, 0
    first: dict[tuple[str | None, str | None, str], Pair] = {}
    for pair in found:
        first.setdefault((owners.get(pair.source), owners.get(pair.target), pair.kind), pair)
    kept = tuple(first.values())[:PAIRS]
    return kept, len(found) - len(kept)


def _rings(one: nccl_facts.CommunicatorPart) -> tuple[tuple[int, ...], ...]:
    """Different orders that are whole; long ones are cut by NCCL itself until 2.28."""
    orders = dict.fromkeys(tuple(map(int, text.split())) for _, text in sorted(one.rings.items()))
    return tuple(order for order in orders if len(order) == one.nranks)[:RINGS]


def _unix(stamp: Stamp | None) -> float | None:
    """Of NCCL's own stamp, by the clock and zone of this machine."""
    if stamp is None or stamp.kind != "nccl":
        return None
    whole, _, part = stamp.text.partition(".")
    try:
        return time.mktime(time.strptime(whole, "%Y-%m-%d %H:%M:%S")) + float(f"0.{part or 0}")
    except (ValueError, OverflowError):
        return None


# ---- several nodes


def merge(facts: Iterable[NcclFacts]) -> NcclFacts:
    """What several nodes say, as one: communicators by id and size, nodes by host and number."""
    given = list(facts)
    nodes: dict[tuple[str, int | None], NcclNode] = {}
    same: dict[tuple[str, int | None], list[Communicator]] = {}
    raw: dict[str, FactLine] = {}
    for one in given:
        for node in one.nodes:
            nodes.setdefault((node.host, node.node), node)
        for communicator in one.communicators:
            same.setdefault((communicator.id, communicator.nranks), []).append(communicator)
        raw = one.raw | raw
    told = [_union(each) if len(each) > 1 else each[0] for each in same.values()]
    told.sort(key=lambda each: -(each.nranks or 0))
    return NcclFacts(
        nodes=tuple(nodes.values())[:NODES],
        communicators=tuple(told[:COMMUNICATORS]),
        lines=sum(one.lines for one in given),
        nccl_lines=sum(one.nccl_lines for one in given),
        behind=sum(one.behind for one in given),
        sampled=any(one.sampled for one in given),
        raw=raw,
    )


def _union(same: list[Communicator]) -> Communicator:
    """One communicator, as several nodes tell of it."""
    hosts: dict[str, tuple[int, ...]] = {}
    stages: dict[int, str] = {}
    inits: dict[int, Init] = {}
    began: dict[int, float] = {}
    for one in same:
        for host, ranks in one.hosts.items():
            hosts[host] = tuple(sorted({*hosts.get(host, ()), *ranks}))
        for rank, stage in one.stages.items():
            if rank not in stages or STAGES.index(stage) > STAGES.index(stages[rank]):
                stages[rank] = stage
        inits |= {init.rank: init for init in one.inits}
        began = {**one.began, **began}
    owners = {rank: host for host, ranks in hosts.items() for rank in ranks}
    pairs, folded = _folded(dict.fromkeys(pair for one in same for pair in one.pairs), owners)
    seen = [one.seen for one in same if one.seen is not None]
    first = same[0]
    return Communicator(
        id=first.id,
        nranks=first.nranks,
        nnodes=max((one.nnodes for one in same if one.nnodes is not None), default=None),
        hosts=hosts,
        stages=dict(sorted(stages.items())[:RANKS]),
        began=dict(sorted(began.items())[:RANKS]),
        inits=tuple(inits[rank] for rank in sorted(inits)[:RANKS]),
        pairs=pairs,
        rings=tuple(dict.fromkeys(ring for one in same for ring in one.rings))[:RINGS],
        ring_count=max(one.ring_count for one in same),
        trees=max(one.trees for one in same),
        channels=_most(one.channels for one in same),
        nvls=_any(one.nvls for one in same),
        tuning=_sum(one.tuning for one in same),
        collectives=_sum(one.collectives for one in same),
        folded=folded + sum(one.folded for one in same),
        seen=min(seen, default=None),
    )


def _most(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    found: Counter[str] = Counter()
    for one in counts:
        found |= Counter(one)
    return dict(found)


def _sum(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    found: Counter[str] = Counter()
    for one in counts:
        found.update(one)
    return dict(found)


def _any(said: Iterable[bool | None]) -> bool | None:
    known = [one for one in said if one is not None]
    return any(known) if known else None
