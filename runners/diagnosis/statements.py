"""Fold NCCL's messages (2.3 to 2.32), in the order of writing, into nodes and communicators."""

from __future__ import annotations

import functools
import re
from collections import Counter
from dataclasses import dataclass, field
from itertools import islice
from typing import TypeVar

from .heads import Head, Stamp, Thread
from .line_formats import NCCL
from .nccl_facts import Init, RankStage
from .rules import Raw, Version, parse_version

K = TypeVar("K")
V = TypeVar("V")

_ALGORITHMS = ("TREE", "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS", "NVLS_TREE")
ALGORITHMS = {str(number): name for number, name in enumerate(_ALGORITHMS)}
PROTOCOLS = {"0": "LL", "1": "LL128", "2": "SIMPLE"}
"""2.21 logs numbers, later versions log names."""


@functools.lru_cache(4096)
def transport(via: str) -> str:
    """Return the transport between two ranks, such as "P2P/IPC", "SHM", "NET/IB/GDRDMA" or "NET/AWS Libfabric"."""
    via = via.partition(" comm ")[0].strip()
    if via.startswith(("direct shared", "SHM")):
        return "SHM"
    parts = via.split("/")
    if parts[0] == "NET" and len(parts) > 1:
        network = f"NET/{parts[1][:60]}"
        is_direct = any(part.startswith("GDRDMA") for part in parts[2:])
        return f"{network}/GDRDMA" if is_direct else network
    if parts[0] == "P2P" and len(parts) > 1:
        return f"P2P/{parts[1].split('[')[0][:60]}"
    return parts[0][:60]


RANKS = 1 << 16
"""Maximum number of ranks kept per communicator."""
PAIRS = 1 << 17
"""Maximum number of rank pairs per communicator whose transport is kept."""
NODES = 4096
"""Maximum number of hosts."""
KEPT = 64
"""Maximum number of names of one kind per node."""


@dataclass(slots=True)
class RankPart:
    rank: int
    host: str
    pid: int | None
    stage: RankStage = RankStage.STARTED
    stamp: Stamp | None = None
    """Timestamp of its first line; None without one."""
    calls: int = 0
    """Number of collectives that it called if COLL is logged. Send and Recv do not count."""


@dataclass(slots=True)
class CommunicatorPart:
    """One communicator while logs are read."""

    id: str
    """NCCL's id, logged since 2.18; "" if unknown."""
    nranks: int | None = None
    nnodes: int | None = None
    ranks: dict[int, RankPart] = field(default_factory=dict)
    hosts: set[str] = field(default_factory=set)
    timed: dict[int, Init] = field(default_factory=dict)
    rings: dict[int, str] = field(default_factory=dict)
    """Order of ranks by channel, as rank 0 logs it. Until 2.28 NCCL truncates long rings."""
    trees: int = 0
    """Number of channels with a tree."""
    channels: dict[str, int] = field(default_factory=dict)
    """Number of channels by kind: "coll", "collnet", "nvls", "p2p" and "p2p per peer"."""
    pairs: dict[tuple[int, int], set[str]] = field(default_factory=dict)
    """Transports by source and target rank."""
    ends: dict[tuple[int, int, int], list[bool | None]] = field(default_factory=dict)
    """Whether sender and receiver use GPUDirect RDMA, by source, target and channel. Dropped once both agree."""
    nvls: bool = False
    """Whether a line says that NVLink SHARP is set up. `uses_nvls` also counts channels."""
    collectives: Counter[str] = field(default_factory=Counter)
    tuning: Counter[str] = field(default_factory=Counter)
    """Number of choices per operation, algorithm and protocol, such as "AllReduce RING LL"."""
    lines: dict[str, Raw] = field(default_factory=dict)
    """The first line about it ("comm"), and the first about each transport ("pair:SHM")."""

    @property
    def spans_nodes(self) -> bool:
        """Whether its ranks are known to be on several nodes."""
        return len(self.hosts) > 1 or (self.nnodes or 0) > 1

    @property
    def uses_nvls(self) -> bool | None:
        """Whether it uses NVLink SHARP; None if no line says so and the number of its channels is unknown."""
        if self.nvls:
            return True
        nvls_channels = self.channels.get("nvls")
        return None if nvls_channels is None else nvls_channels > 0

    def stages(self) -> dict[str, int]:
        """Return the number of ranks per stage."""
        counts = Counter(part.stage for part in self.ranks.values())
        return {stage.name.lower(): counts[stage] for stage in RankStage if counts[stage]}

    def transports(self) -> dict[str, int]:
        """Return the number of pairs per transport."""
        counts = Counter(" and ".join(sorted(kinds)) for kinds in self.pairs.values())
        return dict(counts.most_common())

    def slowest(self) -> Init | None:
        """Return the rank with the longest init; None without times."""
        return max(self.timed.values(), key=lambda timing: timing.seconds, default=None)

    def reached(self, stage: RankStage) -> bool:
        """Whether every rank has reached this stage."""
        return len(self.ranks) == self.nranks and all(part.stage >= stage for part in self.ranks.values())

    def take(self, other: CommunicatorPart) -> None:
        """Merge messages that preceded the line with the communicator's name."""
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
    """One host while logs are read."""

    host: str
    file: str = ""
    """Name of the file, used instead of an unknown host; "" if the host is known."""
    versions: set[str] = field(default_factory=set)
    interfaces: dict[str, str] = field(default_factory=dict)
    """Address by name of a socket interface."""
    bootstrap: str = ""
    hcas: dict[str, str] = field(default_factory=dict)
    """Kind by HCA: "mlx5_0:1" → "IB" or "RoCE", with "/SHARP" if supported."""
    networks: set[str] = field(default_factory=set)
    """Networks between nodes: "IB", "Socket", a plugin's name."""
    plugins: set[str] = field(default_factory=set)
    env: dict[str, str] = field(default_factory=dict)
    """Variables that NCCL logs as read."""
    lines: dict[str, Raw] = field(default_factory=dict)
    """The first lines about the host ("host"), its version, network, bootstrap and HCAs."""

    def named_networks(self) -> list[str]:
        """Return the networks for display, such as "IB over RoCE" or "Socket"."""
        kinds = {kind.partition("/")[0] for kind in self.hcas.values()}
        if kinds != {"RoCE"}:
            return sorted(self.networks)
        return [f"{name} over RoCE" if name.startswith("IB") else name for name in sorted(self.networks)]


def keep(where: set[str], name: str) -> None:
    """Add a name unless the set is full."""
    if len(where) < KEPT:
        where.add(name[:200])


COMMUNICATORS = 1024
SESSIONS = 1 << 14


@dataclass(slots=True)
class InitSession:
    """A thread that creates a communicator. Its messages without a communicator's name belong to this one."""

    communicator: CommunicatorPart = field(default_factory=lambda: CommunicatorPart(""))
    part: RankPart | None = None

    @property
    def is_unnamed(self) -> bool:
        """Whether no line has named its communicator so far."""
        return self.part is None and self.communicator.nranks is None


class Sessions:
    def __init__(self) -> None:
        self.communicators: list[CommunicatorPart] = []
        self.in_tree: dict[Thread, int] = {}
        """Rank by process, from the lines of trees."""
        self.left_out = 0
        """Number of communicators above the limit."""
        self.by_pointer: dict[tuple[Thread, str], InitSession] = {}
        self._by_thread: dict[Thread, InitSession] = {}
        """Session by thread, and by process for messages of threads that created no communicator."""
        self._by_id: dict[tuple[str, int], CommunicatorPart] = {}
        self._unnamed: dict[tuple[int, int], CommunicatorPart] = {}
        self._joined: dict[tuple[int | Thread, int], int] = {}
        """Index of the newest communicator by rank or process and size, from 0."""
        self._older: dict[tuple[int, int], CommunicatorPart] = {}
        """Communicators without init in the logs, by size and index."""

    def all(self) -> list[CommunicatorPart]:
        """Return the communicators, and last one with all messages that no line assigns to a communicator."""
        unnamed = CommunicatorPart("")
        for session in [*self._by_thread.values(), *self.by_pointer.values()]:
            if session.is_unnamed:
                unnamed.take(session.communicator)
        used = unnamed.pairs or unnamed.channels or unnamed.rings or unnamed.timed
        used = used or unnamed.collectives or unnamed.tuning  # COLL was turned on after the start
        return [*self.communicators, *([unnamed] if used else [])]

    def ranks_on(self, host: str) -> list[int]:
        """Return the host's ranks in the largest communicator with a part on it."""
        own = [part for part in self.communicators if host in part.hosts]
        largest = max(own, key=lambda part: part.nranks or 0, default=None)
        return sorted(part.rank for part in largest.ranks.values() if part.host == host) if largest else []

    def rank_of(self, head: Head) -> int | None:
        """Return the rank of a process in its largest communicator, else in the newest tree."""
        session = self._by_thread.get(head.process)
        if session is None or session.part is None:
            return self.in_tree.get(head.process)
        return session.part.rank

    def of(self, head: Head, message: str = "") -> InitSession:
        """Return the session that the message names (2.15 to 2.17), else the thread's, else the process's largest."""
        pointer = message.partition(" comm 0x")[2].partition(" ")[0] if " comm 0x" in message else ""
        if pointer:
            named = head.process, f"0x{pointer}"
            return self.by_pointer.get(named) or _put(self.by_pointer, named, InitSession())
        session = self._by_thread.get(head.thread) or self._by_thread.get(head.process)
        return session or _put(self._by_thread, head.thread, InitSession())

    def join(self, head: Head, match: re.Match[str]) -> InitSession:
        """Add a thread to a communicator. `match`: a match of NCCL["comm"]."""
        pointer, rank, nranks = match["pointer"], int(match["rank"]), int(match["nranks"])
        name = NCCL["comm_id"].search(match["rest"])
        communicator = self._communicator(name[1] if name else "", rank, nranks)
        for before in (self._by_thread.get(head.thread), self.by_pointer.get((head.process, pointer))):
            if before is not None and before.is_unnamed:
                communicator.take(before.communicator)
        part = RankPart(rank, head.host, head.pid)
        if len(communicator.ranks) < RANKS:
            communicator.ranks[rank] = part
        if head.host and len(communicator.hosts) < NODES:
            communicator.hosts.add(head.host)
        session = _put(self._by_thread, head.thread, InitSession(communicator, part))
        largest = self._by_thread.get(head.process)
        if largest is None or nranks >= (largest.communicator.nranks or 0):
            _put(self._by_thread, head.process, session)
        return _put(self.by_pointer, (head.process, pointer), session)

    def called(self, head: Head, pointer: str, nranks: int) -> InitSession:
        """Return a communicator that was created before NCCL logged: the process's n-th of this size by first call."""
        nth = self._next_index(head.process, nranks)
        communicator = self._older.get((nranks, nth)) or self._new("", nranks, self._older, (nranks, nth))
        if head.host and len(communicator.hosts) < NODES:
            communicator.hosts.add(head.host)
        return _put(self.by_pointer, (head.process, pointer), InitSession(communicator))

    def _next_index(self, who: int | Thread, nranks: int) -> int:
        """Return how many communicators of this size the rank or process has joined before."""
        return _put(self._joined, (who, nranks), self._joined.get((who, nranks), -1) + 1)

    def _communicator(self, name: str, rank: int, nranks: int) -> CommunicatorPart:
        """Return a communicator by id. Without an id, count how often this rank joined one of this size."""
        if name:
            communicator = self._by_id.get((name, nranks))
            return communicator or self._new(name, nranks, self._by_id, (name, nranks))
        nth = self._next_index(rank, nranks)
        return self._unnamed.get((nranks, nth)) or self._new("", nranks, self._unnamed, (nranks, nth))

    def _new(self, name: str, nranks: int, where: dict[K, CommunicatorPart], key: K) -> CommunicatorPart:
        made = CommunicatorPart(name, nranks)
        if len(self.communicators) < COMMUNICATORS:
            self.communicators.append(made)
            where[key] = made
        else:
            self.left_out += 1
        return made


def _put(where: dict[K, V], key: K, value: V) -> V:
    """Store and return a value. If the mapping is full, delete its older half."""
    if len(where) >= SESSIONS:
        for old in list(islice(where, SESSIONS // 2)):
            del where[old]
    where[key] = value
    return value


Note = tuple[dict[str, Raw], str, RankPart | None]
"""The mapping and key for a line, and the rank whose first line it is."""


class Statements:
    """Nodes, communicators and versions from all messages."""

    def __init__(self) -> None:
        self.nodes: dict[str, NodePart] = {}
        self.sessions = Sessions()
        self.version: Version = ()
        """The newest version that was read."""
        self.versions: set[str] = set()
        self._by_process: dict[Thread, str] = {}
        """Version by process, for processes that log their own: since 2.22, at INFO."""
        self.noted: list[Note] = []
        """Facts that the last message states for the first time. The reader keeps its line there."""

    def version_line(self, head: Head, message: str) -> None:
        """Read "2.21.5+cuda12.4" after "NCCL version". Until 2.21, and at WARN, the line has no host."""
        if match := NCCL["version"].match(message):
            version = match[1] + (match[2] or "")
            self.version = parse_version(version)
            keep(self.versions, version)
            if head.pid is not None:
                _put(self._by_process, head.process, version)
            if head.host and (node := self.node(head)):
                self._first(node.lines, "version")
                keep(node.versions, version)

    def version_of(self, part: RankPart) -> str:
        """Return the NCCL version of a rank's process; "" if it logs none."""
        return self._by_process.get((part.host, part.pid, None), "")

    def node(self, head: Head) -> NodePart | None:
        """Return the node of a line, or one node for a file without hosts; None above the limit."""
        name = head.thread[0]
        node = self.nodes.get(name)
        if node is None and len(self.nodes) < NODES:
            node = self.nodes[name] = NodePart(head.host, "" if head.host else name)
            self._first(node.lines, "host")
        return node

    def _first(self, lines: dict[str, Raw], key: str) -> None:
        if key not in lines:
            self.noted.append((lines, key, None))

    def comm(self, head: Head, message: str) -> None:
        """Read a line that names a communicator, rank and nranks."""
        if not (match := NCCL["comm"].match(message)):
            return
        pointer, rest = match["pointer"], match["rest"]
        ending = NCCL["ending"].search(rest)
        session = self.sessions.by_pointer.get((head.process, pointer))
        if session is None or session.part is None or (ending and ending[1] == "Init START"):
            if ending and ending[1].startswith(("Destroy", "Abort")):
                return
            session = self.sessions.join(head, match)
            self.noted.append((session.communicator.lines, "comm", session.part))
        self.node(head)
        part, communicator = session.part, session.communicator
        if nodes := NCCL["nnodes"].search(rest):
            communicator.nnodes = int(nodes[1])
            _advance(part, RankStage.BOOTSTRAPPED)
        if ending is not None:
            _advance(part, _STAGES[ending[1]])
            if ending[1].startswith(("Destroy", "Abort")):
                self.sessions.by_pointer.pop((head.process, pointer), None)

    def timings(self, head: Head, message: str) -> None:
        """Read the init time by phase."""
        if match := NCCL["timings"].match(message):
            rank, timed = int(match[1]), self.sessions.of(head).communicator.timed
            phases = {name: float(value) for name, value in NCCL["phase"].findall(match[4])[:16]}
            if len(timed) < RANKS:
                timed[rank] = Init(rank, float(match[3]), phases)

    def channel(self, head: Head, message: str) -> None:
        """Read a connection of two ranks, or the ring of a channel."""
        communicator = self.sessions.of(head, message).communicator
        if match := NCCL["link"].match(message):
            channel, source, target = int(match[1]), int(match[2]), int(match[3])
            via = transport(match[5])
            kinds = communicator.pairs.get((source, target))
            if kinds is None or via not in kinds:
                self._pair(communicator, (source, target), via)
            if match[4] and via.startswith("NET/"):
                _end(
                    communicator, (source, target, channel), match[4] == "receive", via.endswith("/GDRDMA")
                )
        elif (match := NCCL["ring"].match(message)) and len(communicator.rings) < KEPT:
            communicator.rings.setdefault(int(match[1]), " ".join(match[2].split()))

    def _pair(self, communicator: CommunicatorPart, ends: tuple[int, int], via: str) -> None:
        """Add a new transport of a pair of ranks."""
        if ends in communicator.pairs:
            communicator.pairs[ends].add(via)
        elif len(communicator.pairs) < PAIRS:
            communicator.pairs[ends] = {via}
        if len(communicator.lines) < KEPT:
            self._first(communicator.lines, f"pair:{via}")

    def trees(self, head: Head, message: str) -> None:
        depths = [int(a or b) + 1 for a, b in NCCL["tree"].findall(message)]
        communicator = self.sessions.of(head).communicator
        communicator.trees = max([communicator.trees, *depths])
        if (own := NCCL["own"].search(message)) and head.pid is not None:
            _put(self.sessions.in_tree, head.process, int(own[1]))

    def connected(self, head: Head, message: str) -> None:
        """Note that all rings or trees are connected."""
        if message.startswith("Connected all"):
            _advance(self.sessions.of(head, message).part, RankStage.CONNECTED)

    def channels(self, head: Head, message: str) -> None:
        communicator = self.sessions.of(head).communicator
        for number, kind, peer in NCCL["channels"].findall(message):
            communicator.channels[kind + peer] = int(number)

    def numbered(self, head: Head, message: str) -> None:
        """Read messages that begin with a number: channels, or the size in bytes of a tuner's choice (2.21)."""
        (self.collective if " Bytes -> " in message else self.channels)(head, message)

    def nvls(self, head: Head, message: str) -> None:
        """Note that NVLink SHARP is set up."""
        if message.startswith("NVLS comm"):
            self.sessions.of(head).communicator.nvls = True

    def interfaces(self, head: Head, message: str) -> None:
        """Read the interfaces of bootstrap and sockets, and the HCAs."""
        if (node := self.node(head)) is None or "Using" not in message:
            return
        if match := NCCL["bootstrap"].match(message):
            node.bootstrap = match[1]
            self._first(node.lines, "bootstrap")
        sockets = message
        if message.startswith("NET/IB"):
            self._first(node.lines, "hcas")
            devices, _, sockets = message.partition("; OOB ")
            for name, kind in NCCL["hca"].findall(devices)[:KEPT]:
                node.hcas[name[:60]] = kind[:60]
        for name, address in NCCL["interface"].findall(sockets)[:KEPT]:
            if len(node.interfaces) < KEPT:
                node.interfaces.setdefault(name[:60], address[:60])

    def network(self, head: Head, message: str) -> None:
        match = NCCL["network"].match(message) or NCCL["assigned"].match(message)
        if match and (node := self.node(head)):
            if match[1] not in node.networks:  # keep the line of a second network as well
                self.noted.append((node.lines, f"network {match[1]}" if node.networks else "network", None))
            keep(node.networks, match[1])

    def plugin(self, head: Head, message: str) -> None:
        if (match := NCCL["plugin"].match(message)) and (node := self.node(head)):
            tuner = f"{match['kind']}: {match['name']}"
            keep(node.plugins, match["net"] or match["ofi"] or match["p2p"] or tuner)

    def variable(self, head: Head, message: str) -> None:
        match = NCCL["variable"].match(message)
        node = None if match is None else self.node(head)
        if match is not None and node is not None and len(node.env) < 4 * KEPT:
            node.env[match[1][:80]] = match[2][:200]

    def collective(self, head: Head, message: str) -> None:
        """Read a collective (if COLL is logged) or a tuner's choice."""
        if match := NCCL["collective"].match(message):
            self._called(head, match)
        elif match := NCCL["tuned"].match(message):
            algorithm, protocol = ALGORITHMS.get(match[2], match[2]), PROTOCOLS.get(match[3], match[3])
            choice = " ".join(word for word in (match[1], algorithm, protocol) if word)
            _count(self.sessions.of(head).communicator.tuning, choice)

    def _called(self, head: Head, match: re.Match[str]) -> None:
        """Count a collective. `match`: a match of NCCL["collective"]."""
        session = self.sessions.by_pointer.get((head.process, match[2]))
        if session is None and match[3]:
            session = self.sessions.called(head, match[2], int(match[3]))
        session = session or self.sessions.of(head)
        _count(session.communicator.collectives, match[1])
        if session.part is not None and match[1] not in ("Send", "Recv"):
            session.part.calls += 1
        _advance(session.part, RankStage.RUNNING)


def _count(counts: Counter[str], name: str) -> None:
    """Count a name unless there are too many."""
    if name in counts or len(counts) < KEPT:
        counts[name] += 1


_STAGES = {
    "Init START": RankStage.STARTED,
    "Init COMPLETE": RankStage.COMPLETE,
    "Destroy COMPLETE": RankStage.DESTROYED,
    "Abort COMPLETE": RankStage.ABORTED,
}


def _advance(part: RankPart | None, stage: RankStage) -> None:
    if part is not None and part.stage < stage:
        part.stage = stage


def _end(communicator: CommunicatorPart, key: tuple[int, int, int], receiver: bool, direct: bool) -> None:
    """Keep the value of one end until both ends have the same value."""
    ends = communicator.ends.get(key)
    if ends is None:
        if len(communicator.ends) >= PAIRS:
            return
        ends = communicator.ends[key] = [None, None]
    ends[receiver] = direct
    if ends[0] is not None and ends[0] == ends[1]:
        del communicator.ends[key]
