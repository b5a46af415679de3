"""NCCL's nodes and communicators as its logs describe them, in the form that nodes send to the viewer and detectors."""

from __future__ import annotations

import enum
import operator
from collections import ChainMap, Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import chain
from typing import Any, TypeVar

import msgspec
from msgspec import Struct, structs

T = TypeVar("T")


class RankStage(enum.IntEnum):
    """Stage of one rank in the life of a communicator, from its start to its end."""

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


STAGES = tuple(stage.name.lower() for stage in RankStage)
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
    """Number of channels by kind: "coll", "collnet", "nvls", "p2p", "p2p per peer"."""
    nvls: bool | None = None
    """Whether it uses NVLink SHARP; None if unknown."""
    tuning: dict[str, int] = {}
    """How often the tuner made a choice, by collective, algorithm and protocol: "AllReduce RING LL128"."""
    collectives: dict[str, int] = {}
    """Number of logged calls by name: "AllReduce", "Send"."""
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
    return _encoder.encode(facts)


def decode(document: bytes) -> NcclFacts:
    """Decode the facts. Raises msgspec.MsgspecError if the document is invalid."""
    return _decoder.decode(document)


def with_node_facts(
    facts: NcclFacts, node: int, devices: tuple[str, ...], peermem: bool | None
) -> NcclFacts:
    """Add the node's number and the facts from its own files to the facts of its logs."""
    nodes = [structs.replace(host, node=node, devices=devices, peermem=peermem) for host in facts.nodes]
    return structs.replace(facts, nodes=tuple(nodes))


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


def preference(kind: str) -> int:
    """Return the place of a transport in NCCL's order of preference; NCCL prefers 0."""
    if kind.startswith("P2P"):
        return 0
    if kind == "SHM":
        return 1
    if kind == "NET/Socket":
        return 4
    return 2 if kind.endswith("/GDRDMA") else 3


def folded_pairs(pairs: Iterable[Pair], owners: Mapping[int, str]) -> tuple[tuple[Pair, ...], int]:
    """Return at most PAIRS pairs, and the number of omitted ones.

    If there are more, only the first pair per two hosts and kind is kept. `owners`: the host of each rank.
    """
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
    merged = [_union(each) for each in same.values()]
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
    if len(same) == 1:
        return same[0]
    fields = {name: how([getattr(comm, name) for comm in same]) for name, how in _MERGE_BY_FIELD.items()}
    merged = structs.replace(same[0], **fields)
    owners: dict[int, str] = {}
    for host, ranks in merged.hosts.items():
        owners |= dict.fromkeys(ranks, host)
    pairs, folded = folded_pairs(merged.pairs, owners)
    return structs.replace(merged, pairs=pairs, folded=merged.folded + folded)


def _hosts(parts: list[dict[str, tuple[int, ...]]]) -> dict[str, tuple[int, ...]]:
    hosts: dict[str, set[int]] = {}
    for part in parts:
        for host, ranks in part.items():
            hosts.setdefault(host, set()).update(ranks)
    return {host: tuple(sorted(ranks)) for host, ranks in hosts.items()}


def _furthest(parts: list[dict[int, str]]) -> dict[int, str]:
    """Return the last stage of each rank by any node's facts."""
    stages: dict[int, str] = {}
    for part in parts:
        for rank, stage in part.items():
            stages[rank] = max(stage, stages.get(rank, stage), key=STAGES.index)
    return dict(sorted(stages.items())[:RANKS])


def _began(parts: list[dict[int, float]]) -> dict[int, float]:
    began = dict(ChainMap(*parts))
    return dict(sorted(began.items())[:RANKS])


def _inits(parts: list[tuple[Init, ...]]) -> tuple[Init, ...]:
    inits = {init.rank: init for init in chain(*parts)}
    return tuple(inits[rank] for rank in sorted(inits)[:RANKS])


def _distinct(parts: list[tuple[T, ...]]) -> tuple[T, ...]:
    return tuple(dict.fromkeys(chain(*parts)))


def _combined(
    how: Callable[[Counter[str], Counter[str]], Counter[str]], parts: list[dict[str, int]]
) -> dict[str, int]:
    """Combine the counts of each key. `how`: operator.add for the sum, operator.or_ for the maximum."""
    total = Counter[str]()
    for part in parts:
        total = how(total, Counter(part))
    return dict(total)


def _known(how: Callable[[list[T]], T], answers: Iterable[T | None]) -> T | None:
    """Combine the known answers; None if none is known."""
    given = [answer for answer in answers if answer is not None]
    return how(given) if given else None


_MERGE_BY_FIELD: dict[str, Callable[[list[Any]], Any]] = {
    "nnodes": partial(_known, max),
    "hosts": _hosts,
    "stages": _furthest,
    "began": _began,
    "inits": _inits,
    "pairs": _distinct,
    "rings": lambda parts: _distinct(parts)[:RINGS],
    "ring_count": max,
    "trees": max,
    "channels": partial(_combined, operator.or_),
    "nvls": partial(_known, any),
    "tuning": partial(_combined, operator.add),
    "collectives": partial(_combined, operator.add),
    "folded": sum,
    "seen": partial(_known, min),
}
"""How the facts of several nodes about one communicator are merged, per field."""


def requests_sockets(env: Mapping[str, str]) -> bool:
    """Whether NCCL's variables request TCP between nodes."""
    return env.get("NCCL_IB_DISABLE", "0") not in ("0", "") or env.get("NCCL_NET", "").lower() == "socket"
