"""Which thread speaks of which communicator: most messages name none."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

from . import lines as say
from .lines import Head, Thread
from .nccl_facts import NODES, RANKS, CommunicatorPart, RankPart

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
