"""The rendezvous coordinator on the first node: rounds of nodes, and the key-value store of the runners.

It listens on the address that the job uses, and reads no content before the client has proved that it has the run's key
(see secure_channel.py). Clients without a proof cannot lock out runners: if there are too many, the coordinator
disconnects the oldest one of the address with the most.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import resource
import socket
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

from . import secure_channel
from .control import is_loopback
from .secure_channel import Seal

LOST_S = 15.0
"""A node that is silent for more seconds is lost. Equal to the limit of torch's c10d rendezvous."""


@dataclass
class Participant:
    order: int
    """Sort key for the ranks of a round."""
    turn: int = 0
    """Number of rounds that it has requested."""
    heard: float = 0.0
    came: int = 0
    """Place in the order of arrival."""
    before: bool = False
    """It was in the previous round."""


class Rounds:
    """The rounds of a rendezvous and their nodes. Pure: the caller passes events and times.

    A round is complete with `most` nodes, or `last_call_s` after it has the `fewest`. A later node waits for the next
    round, which opens when every node has left the complete one. If the complete round has room, the others see the
    waiting node and leave. Each runner identifies itself by a random token.
    """

    def __init__(self, fewest: int, most: int, last_call_s: float) -> None:
        self._fewest, self._most, self._last_call_s = fewest, most, last_call_s
        self.number = 1
        self.complete = False
        self.closed = False
        self.version = 0
        """Increases with each change."""
        self._deadline: float | None = None
        self._arrivals = 0
        self._members: dict[str, Participant] = {}
        self._round: dict[str, int] = {}
        """Token → rank, or -1 until the round is complete."""
        self._size = 0
        """Number of nodes when the round became complete, including those that have left."""
        self._waiting: set[str] = set()
        self._gone: set[str] = set()
        """Tokens of runners that are lost, or replaced by another runner of their node."""

    def join(self, token: str, order: int, turn: int, now: float) -> None:
        """Add a runner to the next round. A repeated request with the same turn has no effect."""
        self.pass_time(now)
        for other, member in list(self._members.items()):
            if other != token and member.order == order:
                self._drop(other, now)  # that node's runner was restarted
        member = self._members.setdefault(token, Participant(order))
        self._gone.discard(token)
        member.heard = now
        if member.turn == turn or self.closed:
            return
        member.turn, member.came, self._arrivals = turn, self._arrivals, self._arrivals + 1
        self._round.pop(token, None)
        self._waiting.add(token)
        self._settle(now)

    def place(self, token: str, turn: int) -> tuple[int, int, int] | None:
        """Return the round's number, the runner's rank and the size; None until a round with it is complete."""
        member = self._members.get(token)
        if not self.complete or token not in self._round or member is None or member.turn != turn:
            return None
        return self.number, self._round[token], self._size

    def hear(self, token: str, now: float) -> bool:
        """Record that a runner is alive; False if it never joined."""
        if token in self._members:
            self._members[token].heard = now
        self.pass_time(now)
        return token in self._members or token in self._gone

    def waiting(self) -> int:
        """Return how many runners wait for a complete round that has room for more."""
        return len(self._waiting) if self.complete and len(self._round) < self._most else 0

    def close(self) -> None:
        """Allow no further round."""
        self.closed = True
        self.version += 1

    def pass_time(self, now: float) -> None:
        """Drop lost runners, and complete a round whose last call is over."""
        for token, member in list(self._members.items()):
            if now - member.heard > LOST_S:
                self._drop(token, now)
        if not self.complete and self._deadline is not None and now >= self._deadline:
            self._complete()

    def due(self, now: float) -> float | None:
        """Return the seconds until the next timeout; None if none is due."""
        times = [member.heard + LOST_S for member in self._members.values()]
        if self._deadline is not None and not self.complete:
            times.append(self._deadline)
        return max(0.0, min(times) - now) if times else None

    def _drop(self, token: str, now: float) -> None:
        del self._members[token]
        self._gone.add(token)
        self._round.pop(token, None)
        self._waiting.discard(token)
        self._settle(now)

    def _settle(self, now: float) -> None:
        """Update the round after a runner came or left."""
        self.version += 1
        if self.complete and not self._round:
            self.complete, self._deadline = False, None
            self.number += 1
        if self.complete:
            return
        # Nodes of the previous round have precedence.
        order = sorted(
            self._waiting, key=lambda token: (not self._members[token].before, self._members[token].came)
        )
        for token in order[: self._most - len(self._round)]:
            self._waiting.discard(token)
            self._round[token] = -1
        if len(self._round) >= self._most:
            self._complete()
        elif len(self._round) < self._fewest:
            self._deadline = None
        elif self._deadline is None:
            self._deadline = now + self._last_call_s

    def _complete(self) -> None:
        self.version += 1
        self.complete, self._deadline = True, None
        order = sorted(self._round, key=lambda token: (self._members[token].order, token))
        self._round, self._size = {token: rank for rank, token in enumerate(order)}, len(order)
        for token, member in self._members.items():
            member.before = token in self._round


POLL_S = 5.0
"""Longest wait in seconds before an answer; a client that waits longer repeats its request."""
MOST_STRANGERS = 128
"""Connections without a proof, from all addresses together; also at most a quarter of the limit of open files."""
NO_ROOM_S = 0.05
"""Seconds before the next accept after one failed for lack of a file descriptor."""
BACKLOG = 512
ANY = ("0.0.0.0", "::", "")
CONNECTION_ERRORS = (OSError, EOFError, ValueError, LookupError, asyncio.TimeoutError)
"""Exceptions that end one connection: the other end has closed it, or is no runner."""

Answer = Callable[..., "Awaitable[list[bytes]]"]


class KeyTable:
    """Values by key, and the waits for keys without one."""

    def __init__(self) -> None:
        self.values: dict[bytes, bytes] = {}
        self._awaited: dict[bytes, set[asyncio.Future[None]]] = {}

    def put(self, key: bytes, value: bytes) -> None:
        self.values[key] = value
        for future in self._awaited.pop(key, ()):
            if not future.done():
                future.set_result(None)

    async def there(self, keys: Iterable[bytes], seconds: float) -> bool:
        """Wait until all keys have values; False if they do not in time."""
        deadline = time.monotonic() + seconds
        for key in keys:
            while key not in self.values:
                future = asyncio.get_running_loop().create_future()
                waiting = self._awaited.setdefault(key, set())
                waiting.add(future)
                try:
                    await asyncio.wait_for(future, max(0.0, deadline - time.monotonic()))
                except asyncio.TimeoutError:
                    return False
                finally:
                    waiting.discard(future)
                    if not waiting and self._awaited.get(key) is waiting:
                        del self._awaited[key]
        return True


class Coordinator:
    """Answers the runners' requests in one thread."""

    def __init__(self, key: bytes, rounds: Rounds) -> None:
        self._key, self._rounds, self._keys = key, rounds, KeyTable()
        self._changed = asyncio.Event()
        self._announced = 0
        """Version of the rounds at the last wake-up of all waits."""
        self._peers: set[asyncio.Task[None]] = set()
        """Tasks of all connections: the event loop holds only weak references."""
        self._strangers: dict[asyncio.Task[None], str] = {}
        """Task of a connection without a proof → its address, the oldest first."""
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._most = MOST_STRANGERS if files < 0 else max(1, min(MOST_STRANGERS, files // 4))
        self._answers: dict[bytes, Answer] = {
            b"set": self._set,
            b"get": self._get,
            b"peek": self._peek,
            b"add": self._add,
            b"delete": self._delete,
            b"count": self._count,
            b"join": self._join,
            b"beat": self._beat,
            b"close": self._close,
        }

    async def admit(self, server: socket.socket) -> None:
        """Accept connections without end. If none can be accepted, disconnect one without a proof."""
        loop = asyncio.get_running_loop()
        server.setblocking(False)
        while True:
            try:
                connection, peer = await loop.sock_accept(server)
                reader, writer = await asyncio.open_connection(sock=connection)
            except OSError:
                if self._strangers:
                    self._hang_up_a_stranger()
                await asyncio.sleep(NO_ROOM_S)
                continue
            task = asyncio.create_task(self._serve(reader, writer))
            self._peers.add(task)
            self._strangers[task] = str(peer[0])
            task.add_done_callback(self._gone)
            if len(self._strangers) > self._most:
                self._hang_up_a_stranger()

    def _gone(self, task: asyncio.Task[None]) -> None:
        self._peers.discard(task)
        self._strangers.pop(task, None)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection until either end closes it."""
        try:
            seals = await self._greeted(reader, writer)
            while seals:
                head = await reader.readexactly(secure_channel.HEAD)
                parts = seals[0].open(head, await reader.readexactly(secure_channel.length(head)))
                writer.write(seals[1].seal(await self._answers[parts[0]](*parts[1:])))
                await writer.drain()
        except (*CONNECTION_ERRORS, TypeError, asyncio.CancelledError):  # TypeError: wrong number of words
            pass
        finally:
            writer.close()

    async def _greeted(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> tuple[Seal, Seal] | None:
        """Perform the handshake and return the seals of both directions; None if the client has no proof."""
        seals = await asyncio.wait_for(self._greet(reader, writer), secure_channel.GREETING_S)
        task = asyncio.current_task()
        if task is not None:
            self._strangers.pop(task, None)
        return seals

    async def _greet(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> tuple[Seal, Seal] | None:
        hello = await reader.readexactly(secure_channel.HELLO)
        if not hello.startswith(secure_channel.MAGIC):
            return None
        ours = os.urandom(secure_channel.NONCE)
        nonces = hello[len(secure_channel.MAGIC) :] + ours
        writer.write(ours + secure_channel.proof(self._key, b"server", nonces))
        if not secure_channel.proves(
            await reader.readexactly(secure_channel.MAC), self._key, b"client", nonces
        ):
            return None
        connection = writer.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        return Seal(self._key, b"client", nonces), Seal(self._key, b"server", nonces)

    def _hang_up_a_stranger(self) -> None:
        ((most, _),) = Counter(self._strangers.values()).most_common(1)
        oldest = next(task for task, address in self._strangers.items() if address == most)
        del self._strangers[oldest]
        oldest.cancel()

    async def _set(self, *words: bytes) -> list[bytes]:
        for key, value in zip(words[::2], words[1::2]):
            self._keys.put(key, value)
        return [b"ok"]

    async def _get(self, patience_ms: bytes, *keys: bytes) -> list[bytes]:
        if not await self._keys.there(keys, min(POLL_S, int(patience_ms) / 1000)):
            return [b"later"]
        return [b"ok", *(self._keys.values.get(key, b"") for key in keys)]

    async def _peek(self, *keys: bytes) -> list[bytes]:
        """Return each value with a "1" before it, or b"" for a key without a value."""
        values = self._keys.values
        return [b"ok", *(b"1" + values[key] if key in values else b"" for key in keys)]

    async def _add(self, key: bytes, number: bytes) -> list[bytes]:
        total = b"%d" % (int(self._keys.values.get(key, b"0")) + int(number))
        self._keys.put(key, total)
        return [b"ok", total]

    async def _delete(self, *keys: bytes) -> list[bytes]:
        return [b"ok", b"%d" % sum(self._keys.values.pop(key, None) is not None for key in keys)]

    async def _count(self) -> list[bytes]:
        return [b"ok", b"%d" % len(self._keys.values)]

    async def _join(self, token: bytes, order: bytes, turn: bytes) -> list[bytes]:
        """Return round, rank and size once a round with this runner is complete; else "later" or "closed"."""
        who, number = token.decode(), int(turn)
        deadline = time.monotonic() + POLL_S
        while True:
            self._rounds.join(who, int(order), number, time.monotonic())
            place = self._rounds.place(who, number)
            if place is not None:
                self._announce_if_new()
                return [b"ok", *(b"%d" % part for part in place)]
            if self._rounds.closed:
                return [b"closed"]
            if not await self._news(deadline):
                return [b"later"]

    async def _beat(self, token: bytes, version: bytes) -> list[bytes]:
        """Return version, waiting runners and closed (0 or 1): at once if the version is new, or after POLL_S."""
        deadline = time.monotonic() + POLL_S
        while True:
            if not self._rounds.hear(token.decode(), time.monotonic()):
                return [b"unknown"]
            self._announce_if_new()
            now = b"%d" % self._rounds.version
            if now != version or not await self._news(deadline):
                waiting, closed = self._rounds.waiting(), self._rounds.closed
                return [b"ok", b"%d" % self._rounds.version, b"%d" % waiting, b"%d" % closed]

    async def _close(self) -> list[bytes]:
        self._rounds.close()
        self._announce_if_new()
        return [b"ok"]

    async def _news(self, deadline: float) -> bool:
        """Wait until the rounds change or a timeout of theirs is due; False at the deadline."""
        self._announce_if_new()
        now = time.monotonic()
        due = self._rounds.due(now)
        patience = min(deadline - now, deadline if due is None else due + 0.01)
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._changed.wait(), max(0.0, patience))
        self._rounds.pass_time(time.monotonic())
        return time.monotonic() < deadline

    def _announce_if_new(self) -> None:
        """Wake all waits for changes of the rounds."""
        if self._announced != self._rounds.version:
            self._announced = self._rounds.version
            changed, self._changed = self._changed, asyncio.Event()
            changed.set()


def start(
    host: str, port: int, key: bytes, limits: tuple[int, int, float], local_addr: str | None = None
) -> int:
    """Start the coordinator in a thread and return its port. `limits`: fewest and most nodes, seconds of the last call.

    Raises ValueError with a sentence if it cannot listen on the address or the port.
    """
    servers = bound(own_addresses(host, local_addr), port)
    port = int(servers[0].getsockname()[1])

    async def answer() -> None:
        here = Coordinator(key, Rounds(*limits))
        await asyncio.gather(*map(here.admit, servers))

    threading.Thread(target=lambda: asyncio.run(answer()), name="distui-coordinator", daemon=True).start()
    return port


def bound(hosts: list[str], port: int) -> list[socket.socket]:
    """Return sockets that listen on these addresses, or on outward ones if these are not local.

    Raises ValueError with a sentence.
    """
    servers: list[socket.socket] = []
    for host in hosts:
        try:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            servers.append(socket.create_server((host, port), family=family, backlog=BACKLOG))
        except OSError as error:
            for server in servers:
                server.close()
            if error.errno == errno.EADDRNOTAVAIL and hosts != (own := outward_addresses()):
                return bound(own, port)  # NAT between the other nodes and this one
            raise ValueError(
                "rendezvous port %d on %s is not free (%s): choose another with --port"
                % (port, host, os.strerror(error.errno or 0))
            ) from None
        port = int(servers[0].getsockname()[1])
    if not servers:
        raise ValueError("the first node has no address: give one by which the others reach it")
    return servers


def own_addresses(host: str, local_addr: str | None = None) -> list[str]:
    """Return the addresses to listen on if the other nodes connect to `host`; never a wildcard address.

    If a name resolves to loopback on this node, other nodes resolve it to another address: return both.
    """
    named = addresses(host)
    inside = [address for address in named if is_loopback(address)]
    if host == "localhost" or host in inside:
        return named[:1]
    here = [*named, *addresses(local_addr or "")]
    outside = [address for address in here if not is_loopback(address) and address not in ANY]
    return (outside[:1] or outward_addresses()) + inside


def addresses(name: str) -> list[str]:
    """Resolve a name to its addresses, IPv4 first; [] if there are none."""
    try:
        infos = socket.getaddrinfo(name, 0, type=socket.SOCK_STREAM) if name else []
    except OSError:
        return []
    return [str(info[4][0]) for info in sorted(infos, key=lambda info: info[0] != socket.AF_INET)]


def outward_addresses() -> list[str]:
    """Return this node's address on its default route. Sends nothing."""
    ways = (address_towards("192.0.2.1:9"), address_towards("[2001:db8::1]:9"))
    return [address for address in ways if address is not None][:1]


def address_towards(endpoint: str) -> str | None:
    """Return this node's address on the route to an endpoint; None if there is no route. Sends nothing."""
    host = endpoint.rpartition(":")[0].strip("[]") or endpoint
    try:
        family, kind, _, _, there = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(there)
            return str(probe.getsockname()[0])
    except OSError:
        return None
