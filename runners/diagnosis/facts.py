"""What NCCL's logs say is so, as it travels from each node to whoever judges or shows the whole run."""

from __future__ import annotations

from msgspec import Struct


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


class Node(Struct, frozen=True, omit_defaults=True):
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


class Line(Struct, frozen=True, array_like=True):
    """A line of a log that a statement rests on."""

    file: str
    """File id: path relative to the run directory."""
    line: int
    text: str


class Facts(Struct, frozen=True, omit_defaults=True):
    """All of it."""

    nodes: tuple[Node, ...] = ()
    communicators: tuple[Communicator, ...] = ()
    lines: int = 0
    nccl_lines: int = 0
    behind: int = 0
    """Bytes of NCCL's logs that are not read yet; the files stay whole."""
    sampled: bool = False
    """Whether parts of the logs were skipped, because they grew faster than they could be read."""
    raw: dict[str, Line] = {}
    """Lines worth showing, by what they are about: "host:<host>" (its first), "network:<host>", "version:<host>",
    "bootstrap:<host>", "hcas:<host>", "comm:<id>", "pair:<id>:<kind>", "rule:<id>"."""
