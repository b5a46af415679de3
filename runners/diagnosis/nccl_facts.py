"""NCCL's nodes, communicators and ranks, as its logs describe them."""

from __future__ import annotations

import enum
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from .lines import Stamp
    from .rules import Raw

# -----------------------------------------------------------------------------------------------------------
# What NCCL's logs say is so, as it travels from each node to whoever judges or shows the whole run.


class Pair(Struct, frozen=True, array_like=True):
    """One connection between two ranks of a communicator."""

    source: int
    target: int
    kind: str
    """As NCCL writes it: "P2P/CUMEM", "SHM", "NET/IB/GDRDMA", "NET/Socket"."""


class Init(Struct, frozen=True, omit_defaults=True):
    """How long one rank took to join a communicator."""

    rank: int
    seconds: float
    phases: dict[str, float] = {}


class Communicator(Struct, frozen=True, omit_defaults=True):
    """One communicator, as the ranks of one node or of all tell of it."""

    id: str
    nranks: int | None = None
    nnodes: int | None = None
    hosts: dict[str, tuple[int, ...]] = {}
    """Ranks by host, as far as they were seen."""
    stages: dict[int, str] = {}
    """How far each rank came: "started", "bootstrapped", "complete", "connected", "running", "destroyed", "aborted"."""
    began: dict[int, float] = {}
    """Unix time of each rank's first line about it, where its lines carry time."""
    inits: tuple[Init, ...] = ()
    pairs: tuple[Pair, ...] = ()
    rings: tuple[tuple[int, ...], ...] = ()
    """The order of ranks in the first rings, at most 8; () where no line gives it whole."""
    ring_count: int = 0
    trees: int = 0
    channels: dict[str, int] = {}
    nvls: bool | None = None
    tuning: dict[str, int] = {}
    collectives: dict[str, int] = {}
    folded: int = 0
    """Pairs that are left out of `pairs`: of each two hosts and kind only the first stands there then."""
    seen: float | None = None
    """Unix time at which an agent first read of it."""


class NcclNode(Struct, frozen=True, omit_defaults=True):
    """One node, as NCCL and its own files tell of it."""

    host: str
    node: int | None = None
    """Its number in the run."""
    versions: tuple[str, ...] = ()
    networks: tuple[str, ...] = ()
    """Of the traffic between nodes: "IB", "IB over RoCE", "AWS Libfabric", "Socket"."""
    bootstrap: str = ""
    """Interface and address."""
    interfaces: tuple[str, ...] = ()
    hcas: dict[str, str] = {}
    """HCAs that NCCL uses, and their kind."""
    plugins: tuple[str, ...] = ()
    env: dict[str, str] = {}
    """Variables that NCCL says it has read."""
    devices: tuple[str, ...] = ()
    """RDMA devices that the node itself has, from /sys/class/infiniband, with an active port; not from a log."""
    peermem: bool | None = None
    """Whether nvidia_peermem or dma-buf is there; None where that is not known."""


class FactLine(Struct, frozen=True, array_like=True):
    """A line of a log that a statement rests on."""

    file: str
    """File id: path relative to the run directory."""
    line: int
    text: str


class NcclFacts(Struct, frozen=True, omit_defaults=True):
    """All of it."""

    nodes: tuple[NcclNode, ...] = ()
    communicators: tuple[Communicator, ...] = ()
    lines: int = 0
    nccl_lines: int = 0
    behind: int = 0
    """Bytes of NCCL's logs that are not read yet; the files stay whole."""
    sampled: bool = False
    """Whether parts of the logs were skipped, because they grew faster than they could be read."""
    raw: dict[str, FactLine] = {}
    """Lines worth showing, by what they are about: "host:<host>" (its first), "network:<host>", "version:<host>",
    "bootstrap:<host>", "hcas:<host>", "comm:<id>", "pair:<id>:<kind>", "rule:<id>"."""


# -----------------------------------------------------------------------------------------------------------
# What statements hold: nodes, communicators, and the ranks in them.


RANKS = 1 << 16
"""Most ranks of a communicator that are kept one by one."""
PAIRS = 1 << 17
"""Most pairs of ranks of a communicator whose transport is kept."""
NODES = 4096
"""Most hosts that are kept."""
KEPT = 64
"""Most names of one kind that are kept of a node."""


class InitStage(enum.IntEnum):
    """How far one rank of a communicator has come."""

    STARTED = 0
    BOOTSTRAPPED = 1
    """It knows its peers: how many nodes there are."""
    COMPLETE = 2
    CONNECTED = 3
    """Rings or trees: at init until 2.21, at the first collective from 2.22 on."""
    RUNNING = 4
    """A collective was called; only said where COLL is on."""
    DESTROYED = 5
    ABORTED = 6


@dataclass(slots=True)
class RankPart:
    """One process's part in one communicator."""

    rank: int
    host: str
    pid: int | None
    pointer: str
    stage: InitStage = InitStage.STARTED
    stamp: Stamp | None = None
    """Of its first line; None where that carries none."""


@dataclass(frozen=True, slots=True)
class Timing:
    """How long the init of one rank took, in seconds."""

    rank: int
    seconds: float
    phases: dict[str, float]
    """kernels, bootstrap, topo, …"""


@dataclass(slots=True)
class CommunicatorPart:
    """What the logs say about one communicator."""

    id: str
    """As NCCL writes it, from 2.18 on; "" where it does not."""
    nranks: int | None = None
    nnodes: int | None = None
    ranks: dict[int, RankPart] = field(default_factory=dict)
    hosts: set[str] = field(default_factory=set)
    timed: dict[int, Timing] = field(default_factory=dict)
    """How long init took each rank."""
    rings: dict[int, str] = field(default_factory=dict)
    """Channel → ranks in order, as rank 0 writes them (until 2.28 long ones are cut)."""
    trees: int = 0
    """Channels that have a tree."""
    channels: dict[str, int] = field(default_factory=dict)
    """"coll", "collnet", "nvls", "p2p" and "p2p per peer" → how many."""
    pairs: dict[tuple[int, int], set[str]] = field(default_factory=dict)
    """From rank, to rank → transports."""
    ends: dict[tuple[int, int, int], list[bool | None]] = field(default_factory=dict)
    """From, to, channel → whether sender and receiver use GPUDirect RDMA; only until both have said the same."""
    nvls: bool = False
    collectives: Counter[str] = field(default_factory=Counter)
    tuning: Counter[str] = field(default_factory=Counter)
    """ "AllReduce RING LL" → how often it was chosen."""
    lines: dict[str, Raw] = field(default_factory=dict)
    """The first that names it ("comm"), and the first of each transport ("pair:SHM")."""

    def stages(self) -> dict[str, int]:
        """Stage → number of ranks that stand there."""
        counts = Counter(part.stage for part in self.ranks.values())
        return {stage.name.lower(): counts[stage] for stage in InitStage if counts[stage]}

    def transports(self) -> dict[str, int]:
        """Transport → number of pairs."""
        counts = Counter(" and ".join(sorted(kinds)) for kinds in self.pairs.values())
        return dict(counts.most_common())

    def slowest(self) -> Timing | None:
        """The rank whose init took longest; None where none says how long it took."""
        return max(self.timed.values(), key=lambda timing: timing.seconds, default=None)

    def reached(self, stage: InitStage) -> bool:
        """Whether every rank is known to have come so far."""
        return len(self.ranks) == self.nranks and all(part.stage >= stage for part in self.ranks.values())

    def take(self, other: CommunicatorPart) -> None:
        """What was said before it was known of which communicator."""
        self.pairs.update(other.pairs)
        self.timed.update(other.timed)
        self.ends.update(other.ends)
        self.rings.update(other.rings)
        self.channels.update(other.channels)
        self.trees = max(self.trees, other.trees)
        self.nvls = self.nvls or other.nvls
        self.collectives.update(other.collectives)
        self.tuning.update(other.tuning)
        self.lines = other.lines | self.lines


@dataclass(slots=True)
class NodePart:
    """What the logs say about one host."""

    host: str
    file: str = ""
    """Which lines without a host are meant; "" where there is one."""
    versions: set[str] = field(default_factory=set)
    interfaces: dict[str, str] = field(default_factory=dict)
    """Of sockets: name → address."""
    bootstrap: str = ""
    """The interface of the bootstrap."""
    hcas: dict[str, str] = field(default_factory=dict)
    """ "mlx5_0:1" → "IB", "RoCE", with "/SHARP" where it can."""
    networks: set[str] = field(default_factory=set)
    """What traffic between nodes goes over: "IB", "Socket", a plugin's name."""
    plugins: set[str] = field(default_factory=set)
    env: dict[str, str] = field(default_factory=dict)
    """Variables that NCCL says it has read."""
    lines: dict[str, Raw] = field(default_factory=dict)
    """The first that names it ("host"), its version, network, bootstrap, and its HCAs."""

    def named_networks(self) -> list[str]:
        """ "IB over RoCE", "Socket", …"""
        kinds = {kind.partition("/")[0] for kind in self.hcas.values()}
        roce = " over RoCE" if kinds == {"RoCE"} else ""
        return [name + roce * name.startswith("IB") for name in sorted(self.networks)]


def keep(where: set[str], name: str) -> None:
    """Add, unless there are enough."""
    if len(where) < KEPT:
        where.add(name[:200])
