"""What statements hold: nodes, communicators, and the ranks in them."""

from __future__ import annotations

import enum
from collections import Counter
from dataclasses import dataclass, field

from .grammar import Stamp
from .tally import Raw

RANKS = 1 << 16
"""Most ranks of a communicator that are kept one by one."""
PAIRS = 1 << 17
"""Most pairs of ranks of a communicator whose transport is kept."""
NODES = 4096
"""Most hosts that are kept."""
KEPT = 64
"""Most names of one kind that are kept of a node."""


class Stage(enum.IntEnum):
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
    stage: Stage = Stage.STARTED
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
class Communicator:
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
        found = Counter(part.stage for part in self.ranks.values())
        return {stage.name.lower(): found[stage] for stage in Stage if found[stage]}

    def transports(self) -> dict[str, int]:
        """Transport → number of pairs."""
        found = Counter(" and ".join(sorted(one)) for one in self.pairs.values())
        return dict(found.most_common())

    def slowest(self) -> Timing | None:
        """The rank whose init took longest; None where none says how long it took."""
        return max(self.timed.values(), key=lambda one: one.seconds, default=None)

    def reached(self, stage: Stage) -> bool:
        """Whether every rank is known to have come so far."""
        return len(self.ranks) == self.nranks and all(part.stage >= stage for part in self.ranks.values())

    def take(self, other: Communicator) -> None:
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
class Node:
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

    def network(self) -> str:
        """The networks as one text; "" where it is not said."""
        return ", ".join(self.named_networks())


def keep(where: set[str], name: str) -> None:
    """Add, unless there are enough."""
    if len(where) < KEPT:
        where.add(name[:200])
