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
    parts = statements.sessions.all()
    counted: Counter[int | None] = Counter()
    communicators = []
    for comm in parts:
        name = comm.id
        if not name and comm.ranks:
            counted[comm.nranks] += 1
            name = f"{comm.nranks} ranks, no. {counted[comm.nranks]}"
        communicators.append((name, comm))
    communicators.sort(key=lambda each: -(each[1].nranks or 0))  # stable: else in the order of their making
    kept = tuple(_communicator(name, comm, raw) for name, comm in communicators[:COMMUNICATORS])
    for entry in reading.tally.entries:
        if entry.firsts:
            raw[f"rule:{entry.rule.id}"] = _line(entry.firsts[0].evidence)
    return NcclFacts(
        nodes=tuple(nodes),
        communicators=kept,
        lines=reading.lines,
        nccl_lines=reading.nccl_lines,
        raw=raw,
    )


def placed(facts: NcclFacts, node: int, devices: tuple[str, ...], peermem: bool | None) -> NcclFacts:
    """The facts of one node's logs, with its number and what its own files say of it."""
    return structs.replace(
        facts,
        nodes=tuple(
            structs.replace(host, node=node, devices=devices, peermem=peermem) for host in facts.nodes
        ),
    )


def shifted(facts: NcclFacts, shift: float) -> NcclFacts:
    """By a clock that is `shift` seconds ahead."""
    return structs.replace(
        facts,
        communicators=tuple(
            structs.replace(
                comm,
                began={rank: at + shift for rank, at in comm.began.items()},
                seen=None if comm.seen is None else comm.seen + shift,
            )
            for comm in facts.communicators
        ),
    )


def _line(evidence: Evidence) -> FactLine:
    return FactLine(evidence.file, evidence.line, evidence.text)


def _node(node: nccl_facts.NodePart, raw: dict[str, FactLine]) -> NcclNode:
    name = node.host or node.file
    raw |= {f"{_key(key)}:{name}{_rest(key)}": _line(line.evidence()) for key, line in node.lines.items()}
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


def _key(key: str) -> str:
    """ "network Socket" → "network": a second network's line is `network:<host>:Socket`."""
    return key.partition(" ")[0]


def _rest(key: str) -> str:
    _, blank, rest = key.partition(" ")
    return blank and f":{rest}"


def _communicator(name: str, comm: nccl_facts.CommunicatorPart, raw: dict[str, FactLine]) -> Communicator:
    for key, line in comm.lines.items():
        what, _, kind = key.partition(":")
        raw[f"{what}:{name}" + (f":{kind}" if kind else "")] = _line(line.evidence())
    members = list(comm.ranks.values())[:RANKS]
    hosts: dict[str, list[int]] = {}
    for part in members:
        hosts.setdefault(part.host, []).append(part.rank)
    owners = {part.rank: part.host for part in members}
    pairs, folded = _folded(_pairs(comm), owners)
    began = ((part.rank, _unix(part.stamp)) for part in members)
    nvls = comm.channels.get("nvls")
    return Communicator(
        id=name,
        nranks=comm.nranks,
        nnodes=comm.nnodes,
        hosts={host: tuple(sorted(ranks)) for host, ranks in sorted(hosts.items())},
        stages={part.rank: part.stage.name.lower() for part in members},
        began={rank: at for rank, at in began if at is not None},
        inits=tuple(
            Init(timed.rank, timed.seconds, timed.phases) for timed in list(comm.timed.values())[:RANKS]
        ),
        pairs=pairs,
        rings=_rings(comm),
        ring_count=comm.channels.get("coll") or len(comm.rings),
        trees=comm.trees,
        channels=dict(comm.channels),
        nvls=True if comm.nvls or nvls else None if nvls is None else False,
        tuning=dict(comm.tuning),
        collectives=dict(comm.collectives),
        folded=folded,
    )


def _pairs(comm: nccl_facts.CommunicatorPart) -> Iterable[Pair]:
    """One for each transport of a pair, the fastest kind first."""
    for (source, target), kinds in comm.pairs.items():
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
    given = tuple(pairs)
    if len(given) <= PAIRS:
        return given, 0
    first: dict[tuple[str | None, str | None, str], Pair] = {}
    for pair in given:
        first.setdefault((owners.get(pair.source), owners.get(pair.target), pair.kind), pair)
    kept = tuple(first.values())[:PAIRS]
    return kept, len(given) - len(kept)


def _rings(comm: nccl_facts.CommunicatorPart) -> tuple[tuple[int, ...], ...]:
    """Different orders that are whole; long ones are cut by NCCL itself until 2.28."""
    orders = dict.fromkeys(tuple(map(int, text.split())) for _, text in sorted(comm.rings.items()))
    return tuple(order for order in orders if len(order) == comm.nranks)[:RINGS]


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
    for each in given:
        for node in each.nodes:
            nodes.setdefault((node.host, node.node), node)
        for communicator in each.communicators:
            same.setdefault((communicator.id, communicator.nranks), []).append(communicator)
        raw = each.raw | raw
    merged = [_union(each) if len(each) > 1 else each[0] for each in same.values()]
    merged.sort(key=lambda each: -(each.nranks or 0))
    return NcclFacts(
        nodes=tuple(nodes.values())[:NODES],
        communicators=tuple(merged[:COMMUNICATORS]),
        lines=sum(each.lines for each in given),
        nccl_lines=sum(each.nccl_lines for each in given),
        behind=sum(each.behind for each in given),
        sampled=any(each.sampled for each in given),
        raw=raw,
    )


def _union(same: list[Communicator]) -> Communicator:
    """One communicator, as several nodes tell of it."""
    hosts: dict[str, tuple[int, ...]] = {}
    stages: dict[int, str] = {}
    inits: dict[int, Init] = {}
    began: dict[int, float] = {}
    for comm in same:
        for host, ranks in comm.hosts.items():
            hosts[host] = tuple(sorted({*hosts.get(host, ()), *ranks}))
        for rank, stage in comm.stages.items():
            if rank not in stages or STAGES.index(stage) > STAGES.index(stages[rank]):
                stages[rank] = stage
        inits |= {init.rank: init for init in comm.inits}
        began = {**comm.began, **began}
    owners = {rank: host for host, ranks in hosts.items() for rank in ranks}
    pairs, folded = _folded(dict.fromkeys(pair for comm in same for pair in comm.pairs), owners)
    seen = [comm.seen for comm in same if comm.seen is not None]
    first = same[0]
    return Communicator(
        id=first.id,
        nranks=first.nranks,
        nnodes=max((comm.nnodes for comm in same if comm.nnodes is not None), default=None),
        hosts=hosts,
        stages=dict(sorted(stages.items())[:RANKS]),
        began=dict(sorted(began.items())[:RANKS]),
        inits=tuple(inits[rank] for rank in sorted(inits)[:RANKS]),
        pairs=pairs,
        rings=tuple(dict.fromkeys(ring for comm in same for ring in comm.rings))[:RINGS],
        ring_count=max(comm.ring_count for comm in same),
        trees=max(comm.trees for comm in same),
        channels=_most(comm.channels for comm in same),
        nvls=_any(comm.nvls for comm in same),
        tuning=_sum(comm.tuning for comm in same),
        collectives=_sum(comm.collectives for comm in same),
        folded=folded + sum(comm.folded for comm in same),
        seen=min(seen, default=None),
    )


def _most(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    most: Counter[str] = Counter()
    for count in counts:
        most |= Counter(count)
    return dict(most)


def _sum(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for count in counts:
        total.update(count)
    return dict(total)


def _any(answers: Iterable[bool | None]) -> bool | None:
    given = [answer for answer in answers if answer is not None]
    return any(given) if given else None
