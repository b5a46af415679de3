"""NCCL's nodes and communicators as its logs describe them, in the form that nodes send to the viewer and detectors."""

from __future__ import annotations

import enum
import operator
from collections import Counter
from collections.abc import Callable, Iterable, Mapping

import msgspec
from msgspec import Struct, structs


class InitStage(enum.IntEnum):
    """Progress of one rank in a communicator's life."""

    STARTED = 0
    BOOTSTRAPPED = 1
    """The rank knows its peers and the number of nodes."""
    COMPLETE = 2
    CONNECTED = 3
    """Rings or trees are connected: at init until 2.21, at the first collective since 2.22."""
    RUNNING = 4
    """A collective was called. Logged only with COLL in NCCL_DEBUG_SUBSYS."""
    DESTROYED = 5
    ABORTED = 6


STAGES = tuple(stage.name.lower() for stage in InitStage)
"""Names in order of progress."""


class Pair(Struct, frozen=True, array_like=True):
    """One connection between two ranks of a communicator."""

    source: int
    target: int
    kind: str
    """NCCL's name of the transport: "P2P/CUMEM", "SHM", "NET/IB/GDRDMA", "NET/Socket"."""


class Init(Struct, frozen=True, omit_defaults=True):
    """Time that one rank took to join a communicator."""

    rank: int
    seconds: float
    phases: dict[str, float] = {}
    """Seconds per phase: kernels, bootstrap, topo, …"""


class Communicator(Struct, frozen=True, omit_defaults=True):
    """One communicator, from the logs of one node or of all."""

    id: str
    nranks: int | None = None
    nnodes: int | None = None
    hosts: dict[str, tuple[int, ...]] = {}
    """Known ranks by host."""
    stages: dict[int, str] = {}
    """Stage of each rank: "started", "bootstrapped", "complete", "connected", "running", "destroyed", "aborted"."""
    began: dict[int, float] = {}
    """Unix time of each rank's first line about it, if its lines have timestamps."""
    inits: tuple[Init, ...] = ()
    pairs: tuple[Pair, ...] = ()
    rings: tuple[tuple[int, ...], ...] = ()
    """The order of ranks in at most 8 rings; () if no line has the complete ring."""
    ring_count: int = 0
    trees: int = 0
    channels: dict[str, int] = {}
    nvls: bool | None = None
    tuning: dict[str, int] = {}
    collectives: dict[str, int] = {}
    folded: int = 0
    """Number of omitted pairs. `pairs` then has only one pair per two hosts and kind."""
    seen: float | None = None
    """Unix time when an agent first read about it."""


class NcclNode(Struct, frozen=True, omit_defaults=True):
    """One node, from NCCL's logs and the node's own files."""

    host: str
    node: int | None = None
    """The node's number in the run."""
    versions: tuple[str, ...] = ()
    networks: tuple[str, ...] = ()
    """Networks between nodes: "IB", "IB over RoCE", "AWS Libfabric", "Socket"."""
    bootstrap: str = ""
    """Interface and address."""
    interfaces: tuple[str, ...] = ()
    hcas: dict[str, str] = {}
    """HCAs that NCCL uses, with their kind."""
    plugins: tuple[str, ...] = ()
    env: dict[str, str] = {}
    """Variables that NCCL logs as read."""
    devices: tuple[str, ...] = ()
    """RDMA devices of the node with an active port, from /sys/class/infiniband instead of a log."""
    peermem: bool | None = None
    """Whether nvidia_peermem or dma-buf is loaded; None if unknown."""


class FactLine(Struct, frozen=True, array_like=True):
    """A log line as evidence, truncated and without control characters."""

    file: str
    """A path, or a file ID: the path relative to the run directory."""
    line: int
    """Line number, from 1."""
    text: str


class NcclFacts(Struct, frozen=True, omit_defaults=True):
    """All known facts about nodes and communicators."""

    nodes: tuple[NcclNode, ...] = ()
    communicators: tuple[Communicator, ...] = ()
    lines: int = 0
    nccl_lines: int = 0
    behind: int = 0
    """Bytes of NCCL's logs that are not read yet. The files stay complete."""
    sampled: bool = False
    """Whether parts of the logs were skipped because they grew faster than the reader."""
    raw: dict[str, FactLine] = {}
    """Lines to show, by topic: "host:<host>" (its first), "network:<host>", "version:<host>", "bootstrap:<host>",
    "hcas:<host>", "comm:<id>", "pair:<id>:<kind>", "rule:<id>"."""


RANKS = 1024
"""Maximum number of listed ranks per communicator."""
PAIRS = 20_000
"""Maximum number of pairs per communicator. Above it, only the first per two hosts and kind is kept."""
COMMUNICATORS = 256
"""Maximum number of communicators. The smallest are omitted."""
NODES = 1024
RINGS = 8

_encoder, _decoder = msgspec.json.Encoder(), msgspec.json.Decoder(NcclFacts)


def encode(facts: NcclFacts) -> bytes:
    """Return the facts as one JSON object."""
    return _encoder.encode(facts)


def decode(document: bytes) -> NcclFacts:
    """Decode the facts. Raises msgspec.MsgspecError if the document is invalid."""
    return _decoder.decode(document)


def placed(facts: NcclFacts, node: int, devices: tuple[str, ...], peermem: bool | None) -> NcclFacts:
    """Add the node's number and the facts from its own files to the facts of its logs."""
    return structs.replace(
        facts,
        nodes=tuple(
            structs.replace(host, node=node, devices=devices, peermem=peermem) for host in facts.nodes
        ),
    )


def shifted(facts: NcclFacts, shift: float) -> NcclFacts:
    """Add `shift` seconds to all times, to correct the node's clock."""
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


def speed(kind: str) -> int:
    """Return a rank of transports from 0, the fastest, in NCCL's order of preference."""
    if kind.startswith("P2P"):
        return 0
    if kind == "SHM":
        return 1
    if kind == "NET/Socket":
        return 4
    return 2 if kind.endswith("/GDRDMA") else 3


def folded_pairs(pairs: Iterable[Pair], owners: Mapping[int, str]) -> tuple[tuple[Pair, ...], int]:
    """Return at most PAIRS pairs, and the number of omitted ones."""
    given = tuple(pairs)
    if len(given) <= PAIRS:
        return given, 0
    first: dict[tuple[str | None, str | None, str], Pair] = {}
    for pair in given:
        first.setdefault((owners.get(pair.source), owners.get(pair.target), pair.kind), pair)
    kept = tuple(first.values())[:PAIRS]
    return kept, len(given) - len(kept)


def merge(facts: Iterable[NcclFacts]) -> NcclFacts:
    """Merge the facts of several nodes: communicators by id and size, nodes by host and number."""
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
    """Merge several nodes' facts about one communicator."""
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
    pairs, folded = folded_pairs(dict.fromkeys(pair for comm in same for pair in comm.pairs), owners)
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
        channels=_combined(operator.or_, [comm.channels for comm in same]),
        nvls=_any(comm.nvls for comm in same),
        tuning=_combined(operator.add, [comm.tuning for comm in same]),
        collectives=_combined(operator.add, [comm.collectives for comm in same]),
        folded=folded + sum(comm.folded for comm in same),
        seen=min(seen, default=None),
    )


def _combined(
    how: Callable[[Counter[str], Counter[str]], Counter[str]], parts: list[dict[str, int]]
) -> dict[str, int]:
    total = Counter[str]()
    for part in parts:
        total = how(total, Counter(part))
    return dict(total)


def _any(answers: Iterable[bool | None]) -> bool | None:
    given = [answer for answer in answers if answer is not None]
    return any(given) if given else None


def requests_sockets(env: Mapping[str, str]) -> bool:
    """Whether NCCL's variables request TCP between nodes."""
    return env.get("NCCL_IB_DISABLE", "0") not in ("0", "") or env.get("NCCL_NET", "").lower() == "socket"
