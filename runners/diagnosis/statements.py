"""What the logs say is so: per node and communicator, from messages of NCCL in the order in which they were written."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

from . import lines as say
from .lines import Head, Thread
from .nccl_facts import (
    KEPT,
    NODES,
    PAIRS,
    RANKS,
    CommunicatorPart,
    InitStage,
    NodePart,
    RankPart,
    Timing,
    keep,
)
from .rules import Raw, Version, parse_version

K = TypeVar("K")
V = TypeVar("V")

COMMUNICATORS = 1024
SESSIONS = 1 << 14


@dataclass(slots=True)
class InitSession:
    """A thread that makes a communicator: what it says without naming one is about this one."""

    communicator: CommunicatorPart
    part: RankPart | None = None


class Sessions:
    """All threads and all communicators."""

    def __init__(self) -> None:
        self.communicators: list[CommunicatorPart] = []
        self.left_out = 0
        """Communicators that were not kept."""
        self.by_pointer: dict[tuple[Thread, str], InitSession] = {}
        self._by_thread: dict[Thread, InitSession] = {}
        """Also by process: what it says in threads that have made none."""
        self._by_id: dict[tuple[str, int], CommunicatorPart] = {}
        self._unnamed: dict[tuple[int, int], CommunicatorPart] = {}
        self._joined: dict[tuple[int, int], int] = {}

    def all(self) -> list[CommunicatorPart]:
        """The communicators, and last what was said of one that no line names."""
        unnamed = CommunicatorPart("")
        for session in [*self._by_thread.values(), *self.by_pointer.values()]:
            if session.part is None:
                unnamed.take(session.communicator)
        used = unnamed.pairs or unnamed.channels or unnamed.rings or unnamed.timed
        used = used or unnamed.collectives or unnamed.tuning  # COLL was turned on later than at the start
        return [*self.communicators, *([unnamed] if used else [])]

    def ranks_on(self, host: str) -> list[int]:
        """Ranks of a host in the largest communicator that it has a part in."""
        own = [part for part in self.communicators if host in part.hosts]
        largest = max(own, key=lambda part: part.nranks or 0, default=None)
        return sorted(part.rank for part in largest.ranks.values() if part.host == host) if largest else []

    def rank_of(self, head: Head) -> int | None:
        """The rank of a process in the largest communicator it is in."""
        session = self._by_thread.get(head.process)
        return None if session is None or session.part is None else session.part.rank

    def of(self, head: Head, message: str = "") -> InitSession:
        """What the message names (as in 2.15 to 2.17), else what this thread makes, else the process's largest."""
        pointer = message.partition(" comm 0x")[2].partition(" ")[0] if " comm 0x" in message else ""
        if pointer:
            return self._named(head, "0x" + pointer)
        session = self._by_thread.get(head.thread) or self._by_thread.get(head.process)
        if session is None:
            session = InitSession(CommunicatorPart(""))
            self._remember(head.thread, session)
        return session

    def _named(self, head: Head, pointer: str) -> InitSession:
        session = self.by_pointer.get((head.process, pointer))
        if session is None:
            _room(self.by_pointer)
            session = self.by_pointer[head.process, pointer] = InitSession(CommunicatorPart(""))
        return session

    def _remember(self, thread: Thread, session: InitSession) -> None:
        _room(self._by_thread)
        self._by_thread[thread] = session

    def join(self, head: Head, match: re.Match[str]) -> InitSession:
        """A thread is in a communicator: `match` is one of COMM."""
        pointer, rank, nranks = match["pointer"], int(match["rank"]), int(match["nranks"])
        name = say.COMM_ID.search(match["rest"])
        communicator = self._communicator(name[1] if name else "", rank, nranks)
        for before in (self._by_thread.get(head.thread), self.by_pointer.get((head.process, pointer))):
            if before is not None and before.part is None:
                communicator.take(before.communicator)
        part = RankPart(rank, head.host, head.pid, pointer)
        if len(communicator.ranks) < RANKS:
            communicator.ranks[rank] = part
        if head.host and len(communicator.hosts) < NODES:
            communicator.hosts.add(head.host)
        session = InitSession(communicator, part)
        self._remember(head.thread, session)
        largest = self._by_thread.get(head.process)
        if largest is None or nranks >= (largest.communicator.nranks or 0):
            self._remember(head.process, session)
        _room(self.by_pointer)
        self.by_pointer[head.process, pointer] = session
        return session

    def _communicator(self, name: str, rank: int, nranks: int) -> CommunicatorPart:
        """By its id; without one the n-th of that size for the n-th time that this rank joins one of that size."""
        if name:
            communicator = self._by_id.get((name, nranks))
            return communicator or self._new(name, nranks, self._by_id, (name, nranks))
        _room(self._joined)
        nth = self._joined[nranks, rank] = self._joined.get((nranks, rank), -1) + 1
        return self._unnamed.get((nranks, nth)) or self._new("", nranks, self._unnamed, (nranks, nth))

    def _new(self, name: str, nranks: int, where: dict[K, CommunicatorPart], key: K) -> CommunicatorPart:
        made = CommunicatorPart(name, nranks)
        if len(self.communicators) < COMMUNICATORS:
            self.communicators.append(made)
            where[key] = made
        else:
            self.left_out += 1
        return made


def _room(where: dict[K, V]) -> None:
    """Forget the older half of what has become too much."""
    if len(where) >= SESSIONS:
        for key in list(islice(where, SESSIONS // 2)):
            del where[key]


# -----------------------------------------------------------------------------------------------------------
# What the logs say is so: per node and communicator, from messages of NCCL in the order in which they were written.


Note = tuple[dict[str, Raw], str, RankPart | None]
"""Where a line is kept, under which key, and the rank whose first it is."""


class Statements:
    """The fold of all messages."""

    def __init__(self) -> None:
        self.nodes: dict[str, NodePart] = {}
        self.sessions = Sessions()
        self.version: Version = ()
        """The newest that was read."""
        self.versions: set[str] = set()
        self.noted: list[Note] = []
        """What the message that was read last says for the first time: whoever knows its line keeps that there."""

    def version_line(self, head: Head, message: str) -> None:
        """ "2.21.5+cuda12.4" behind "NCCL version"; until 2.21, and at WARN, without a host."""
        if match := say.VERSION.match(message):
            version = match[1] + (match[2] or "")
            self.version = parse_version(version)
            keep(self.versions, version)
            if head.host and (node := self.node(head)):
                self._first(node.lines, "version")
                keep(node.versions, version)

    def node(self, head: Head) -> NodePart | None:
        """The node of a line, or all those of a file that name none; None where there are too many."""
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
        """A line that names a communicator, rank and nranks."""
        if not (match := say.COMM.match(message)):
            return
        pointer, rest = match["pointer"], match["rest"]
        ending = say.ENDING.search(rest)
        session = self.sessions.by_pointer.get((head.process, pointer))
        if session is None or session.part is None or (ending and ending[1] == "Init START"):
            if ending and ending[1].startswith(("Destroy", "Abort")):
                return
            session = self.sessions.join(head, match)
            self.noted.append((session.communicator.lines, "comm", session.part))
        self.node(head)
        part, communicator = session.part, session.communicator
        if nodes := say.NODES.search(rest):
            communicator.nnodes = int(nodes[1])
            _advance(part, InitStage.BOOTSTRAPPED)
        if ending is not None:
            _advance(part, _STAGES[ending[1]])
            if ending[1].startswith(("Destroy", "Abort")):
                self.sessions.by_pointer.pop((head.process, pointer), None)

    def timings(self, head: Head, message: str) -> None:
        """How long init took, by phase."""
        if match := say.TIMINGS.match(message):
            rank, timed = int(match[1]), self.sessions.of(head).communicator.timed
            phases = {name: float(value) for name, value in say.PHASE.findall(match[4])[:16]}
            if len(timed) < RANKS:
                timed[rank] = Timing(rank, float(match[3]), phases)

    # ---- how they are connected

    def channel(self, head: Head, message: str) -> None:
        """A connection of two ranks, or the ring of a channel."""
        communicator = self.sessions.of(head, message).communicator
        if match := say.LINK.match(message):
            channel, source, target = int(match[1]), int(match[2]), int(match[3])
            via = say.transport(match[5])
            kinds = communicator.pairs.get((source, target))
            if kinds is None or via not in kinds:
                self._pair(communicator, (source, target), via)
            if match[4] and via.startswith("NET/"):
                _end(
                    communicator, (source, target, channel), match[4] == "receive", via.endswith("/GDRDMA")
                )
        elif (match := say.RING.match(message)) and len(communicator.rings) < KEPT:
            communicator.rings.setdefault(int(match[1]), " ".join(match[2].split()))

    def _pair(self, communicator: CommunicatorPart, ends: tuple[int, int], via: str) -> None:
        """A transport that this pair of ranks was not known to use."""
        if ends in communicator.pairs:
            communicator.pairs[ends].add(via)
        elif len(communicator.pairs) < PAIRS:
            communicator.pairs[ends] = {via}
        if len(communicator.lines) < KEPT:
            self._first(communicator.lines, f"pair:{via}")

    def trees(self, head: Head, message: str) -> None:
        """The trees of a rank."""
        depths = [int(a or b) + 1 for a, b in say.TREE.findall(message)]
        communicator = self.sessions.of(head).communicator
        communicator.trees = max([communicator.trees, *depths])

    def connected(self, head: Head, message: str) -> None:
        """All rings or trees are there."""
        if message.startswith("Connected all"):
            _advance(self.sessions.of(head, message).part, InitStage.CONNECTED)

    def channels(self, head: Head, message: str) -> None:
        """How many channels there are of each kind."""
        communicator = self.sessions.of(head).communicator
        for number, kind, peer in say.CHANNELS.findall(message):
            communicator.channels[kind + peer] = int(number)

    def numbered(self, head: Head, message: str) -> None:
        """Messages that begin with a number: of channels, or of bytes that the tuner chose for (2.21)."""
        (self.collective if " Bytes -> " in message else self.channels)(head, message)

    def nvls(self, head: Head, message: str) -> None:
        """NVLink SHARP is set up."""
        if message.startswith("NVLS comm"):
            self.sessions.of(head).communicator.nvls = True

    # ---- what a node has

    def interfaces(self, head: Head, message: str) -> None:
        """The interfaces of bootstrap and sockets, and the HCAs."""
        if (node := self.node(head)) is None or "Using" not in message:
            return
        if match := say.BOOTSTRAP.match(message):
            node.bootstrap = match[1]
            self._first(node.lines, "bootstrap")
        devices, _, oob = message.partition("; OOB ")
        if message.startswith("NET/IB"):
            self._first(node.lines, "hcas")
            for name, kind in say.HCA.findall(devices)[:KEPT]:
                node.hcas[name[:60]] = kind[:60]
        for name, address in say.INTERFACE.findall(oob if message.startswith("NET/IB") else message)[:KEPT]:
            if len(node.interfaces) < KEPT:
                node.interfaces.setdefault(name[:60], address[:60])

    def network(self, head: Head, message: str) -> None:
        """What traffic between nodes goes over."""
        match = say.NETWORK.match(message) or say.ASSIGNED.match(message)
        if match and (node := self.node(head)):
            if match[1] not in node.networks:  # a second one is news, too
                self.noted.append((node.lines, f"network {match[1]}" if node.networks else "network", None))
            keep(node.networks, match[1])

    def plugin(self, head: Head, message: str) -> None:
        """A plugin that was loaded."""
        if (match := say.PLUGIN.match(message)) and (node := self.node(head)):
            keep(
                node.plugins,
                match["net"] or match["ofi"] or match["p2p"] or f"{match['kind']}: {match['name']}",
            )

    def variable(self, head: Head, message: str) -> None:
        """A variable that NCCL has read."""
        if (
            (match := say.VARIABLE.match(message))
            and (node := self.node(head))
            and len(node.env) < 4 * KEPT
        ):
            node.env[match[1][:80]] = match[2][:200]

    # ---- what is called

    def collective(self, head: Head, message: str) -> None:
        """A collective, where COLL is on, or the tuner's choice."""
        if match := say.COLLECTIVE.match(message):
            session = self.sessions.by_pointer.get((head.process, match[2])) or self.sessions.of(head)
            called = session.communicator.collectives
            if match[1] in called or len(called) < KEPT:
                called[match[1]] += 1
            _advance(session.part, InitStage.RUNNING)
        elif match := say.TUNED.match(message):
            algorithm, protocol = (
                say.ALGORITHMS.get(match[2], match[2]),
                say.PROTOCOLS.get(match[3], match[3]),
            )
            choice = " ".join(word for word in (match[1], algorithm, protocol) if word)
            chosen = self.sessions.of(head).communicator.tuning
            if choice in chosen or len(chosen) < KEPT:
                chosen[choice] += 1


_STAGES = {
    "Init START": InitStage.STARTED,
    "Init COMPLETE": InitStage.COMPLETE,
    "Destroy COMPLETE": InitStage.DESTROYED,
    "Abort COMPLETE": InitStage.ABORTED,
}


def _advance(part: RankPart | None, stage: InitStage) -> None:
    if part is not None and part.stage < stage:
        part.stage = stage


def _end(communicator: CommunicatorPart, key: tuple[int, int, int], receiver: bool, direct: bool) -> None:
    """Keep what one end says until the other end says the same."""
    ends = communicator.ends.get(key)
    if ends is None:
        if len(communicator.ends) >= PAIRS:
            return
        ends = communicator.ends[key] = [None, None]
    ends[receiver] = direct
    if ends[0] is not None and ends[0] == ends[1]:
        del communicator.ends[key]
