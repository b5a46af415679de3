"""Two nodes' relays on one machine, over a real store; runners' parts on the test's loop, or in processes."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from patience import HANG_S
from ports import free_port

from distui.runners.agent.relay_client import AgentRelay, Stream
from distui.runners.inrank.relay import HEAD, IDLE_S, Relay
from distui.runners.inrank.secure_channel import Channel, dial

from .carrier import KEY, RUN

CARRIER = Path(__file__).with_name("carrier.py")
RUNS = itertools.count()


class Turns(Relay):
    """A runner's part whose rounds the event loop takes: its own thread ends at once."""

    def __init__(self, port: int, run: str, node: int) -> None:
        super().__init__("127.0.0.1", port, KEY, run, node, 2)
        self._wake: Any = asyncio.Event()
        self.paused = False

    def _run(self) -> None:
        return

    async def turn(self) -> None:
        """What the thread does."""
        while True:
            pause = IDLE_S if self._agent is None or self.paused else self._round()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._wake.wait()
            self._wake.clear()

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """What `serve` does in the thread of a connection."""
        await reader.readline()
        agent: Any = Agent(writer)
        agent.sendall(json.dumps({"id": 0, "ok": True}).encode() + b"\n")
        before, self._agent = self._agent, agent
        self._peers, self._out, self._rung, self._checked_at = set(), {}, set(), None
        if before is not None:
            before.shutdown(0)
        self._wake.set()
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                size, node = HEAD.unpack(await reader.readexactly(HEAD.size))
                self._heed(node, await reader.readexactly(size))
        if self._agent is agent:
            self._agent, self._peers, self._out = None, set(), {}
        writer.close()


class Agent:
    """An agent's connection, with the two methods of a socket that a relay uses."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self.sendall = writer.write
        self._close = writer.close

    def shutdown(self, how: int) -> None:
        self._close()


class Carrier:
    """One runner's part, on the loop of the test."""

    def __init__(self, directory: Path, node: int, port: int, run: str) -> None:
        self.socket = directory / f"c{node}"
        self.relay = Turns(port, run, node)

    async def start(self) -> None:
        self._server = await asyncio.start_unix_server(self.relay.answer, self.socket)
        self._turns = asyncio.create_task(self.relay.turn())

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Stopped for a while: what is written for it stays in the store."""
        self.relay.paused = True
        try:
            yield
        finally:
            self.relay.paused = False

    async def close(self) -> None:
        self._server.close()
        self._turns.cancel()
        await asyncio.wait({self._turns})
        assert self._turns.cancelled(), self._turns.exception()
        self.relay._hang_up()


class Carriers:
    """Both runners' parts on the loop of the test, for a run of their own in the store at `port`."""

    def __init__(self, directory: Path, port: int) -> None:
        self.directory, self.port, self.run = directory, port, f"{RUN}-{next(RUNS)}"
        self.both = [Carrier(directory, node, port, self.run) for node in (0, 1)]

    async def __aenter__(self) -> Carriers:
        for carrier in self.both:
            await carrier.start()
        return self

    async def __aexit__(self, *failure: object) -> None:
        for carrier in self.both:
            await carrier.close()


class ProcessCarrier:
    """One runner's part in a process. Node 0 holds the store, at this port."""

    def __init__(self, directory: Path, node: int, port: int) -> None:
        self.socket = directory / f"c{node}"
        words = [str(self.socket), str(node), "2", str(port)]
        self.errors = (directory / f"carrier-{node}.err").open("w+")
        self.process = subprocess.Popen(
            [sys.executable, str(CARRIER), *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            stderr=self.errors,
        )  # fmt: skip

    def ready(self) -> int:
        """The store's port, once the runner's part is there."""
        assert self.process.stdout is not None
        return int(self.process.stdout.readline())

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """See Carrier.paused."""
        self.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED)  # until then it may still take something
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def said(self) -> str:
        """What it and torch wrote to stderr."""
        self.errors.seek(0)
        return self.errors.read()

    def close(self) -> int:
        """End it as a runner ends; its exit code."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        code = self.process.wait(HANG_S)
        self.process.stdout.close()
        self.errors.close()
        return code


class ProcessCarriers:
    """Both runners' parts in processes."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.run = directory, RUN
        self.both = [ProcessCarrier(directory, 0, free_port())]  # which a later one can have again
        self.port = self.both[0].ready()
        self.both.append(ProcessCarrier(directory, 1, self.port))
        self.both[1].ready()
        self._codes: list[int] | None = None

    def replace_head(self) -> None:
        """After it was killed: another runner, with a new store on the same port."""
        self.both[0].close()
        self.both[0] = ProcessCarrier(self.directory, 0, self.port)
        self.both[0].ready()

    def close(self) -> list[int]:
        """Their exit codes."""
        if self._codes is None:
            self._codes = [carrier.close() for carrier in reversed(self.both)]
        return self._codes


class Stranger:
    """Reads and writes the mailboxes from node 0 to node 1 without being an agent."""

    def __init__(self, line: Channel, run: str) -> None:
        self.line, self._run = line, run
        self._box = f"distui.relay/{run}/0/1"

    def key(self, word: object) -> str:
        """Key of a counter or frame."""
        return f"{self._box}/{word}"

    def written(self) -> int:
        """How many frames there were."""
        return int(self._peek("written") or b"0")

    def frame(self, number: int) -> bytes | None:
        """A frame that nobody has taken yet."""
        return self._peek(number)

    def remove(self, number: int) -> None:
        assert self._ask(b"delete", self.key(number).encode()) == [b"1"]

    def replace(self, word: object, value: bytes) -> None:
        self._ask(b"set", self.key(word).encode(), value)

    def _peek(self, word: object) -> bytes | None:
        (found,) = self._ask(b"peek", self.key(word).encode())
        return found[1:] if found else None

    def _ask(self, *parts: bytes) -> list[bytes]:
        return self.line.ask(parts, HANG_S)[1:]


class Held:
    """What node 0 writes while node 1's runner is paused."""

    def __init__(self, stranger: Stranger) -> None:
        self._stranger = stranger
        self.first = stranger.written()
        """Number of the first frame."""

    async def frames(self, count: int = 1) -> list[bytes]:
        """The first frames, once they are there."""
        found: list[bytes] = []

        def there() -> bool:
            looked = [self._stranger.frame(self.first + at) for at in range(count)]
            found[:] = [frame for frame in looked if frame is not None]
            return len(found) == count

        await eventually(there)
        return found


class Pair:
    """The agents' part on nodes 0 and 1; each node's agent answers on a socket as `echo` does."""

    def __init__(self, carriers: Carriers | ProcessCarriers) -> None:
        self.carriers = carriers.both
        self.all = carriers
        self.echo = carriers.directory / "echo"
        self.relays = [AgentRelay(node, 2, self.echo) for node in (0, 1)]
        self.tasks: dict[int, asyncio.Task[None]] = {}
        self._lines: list[Channel] = []

    async def start(self) -> None:
        """Connect both, and wait for the store."""
        self._server = await asyncio.start_unix_server(_echo, str(self.echo))
        for node in (0, 1):
            self.attach(node)
        await eventually(lambda: all(relay.up for relay in self.relays))

    def attach(self, node: int) -> None:
        """Connect a node's agent."""
        socket = str(self.carriers[node].socket)
        self.tasks[node] = asyncio.create_task(self.relays[node].run(lambda: socket))

    async def opened(self) -> Stream:
        """A stream to node 1 that has carried something."""
        stream = await self.relays[0].open(1)
        await echoed(stream, b"x")
        return stream

    def stranger(self) -> Stranger:
        """Somebody else in the store."""
        line = dial("127.0.0.1", self.all.port, KEY)
        self._lines.append(line)
        return Stranger(line, self.all.run)

    @contextlib.contextmanager
    def held(self, stranger: Stranger) -> Iterator[Held]:
        """Nobody takes what is written for node 1 meanwhile."""
        with self.carriers[1].paused():
            yield Held(stranger)

    async def close(self) -> None:
        for line in self._lines:
            line.close()
        for task in self.tasks.values():
            task.cancel()
        await asyncio.gather(*self.tasks.values(), return_exceptions=True)
        self._server.close()


@asynccontextmanager
async def pair(carriers: Carriers | ProcessCarriers) -> AsyncIterator[Pair]:
    """A pair that is ended whatever happens."""
    made = Pair(carriers)
    try:
        await made.start()
        yield made
    finally:
        await made.close()


async def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()


async def echoed(stream: Stream, data: bytes) -> bytes:
    """What comes back."""
    writing = asyncio.create_task(stream.write(data))
    async with asyncio.timeout(HANG_S):
        back = await read_exactly(stream, len(data))
        with contextlib.suppress(BrokenPipeError):
            await writing
    return back


async def read_exactly(stream: Stream, size: int) -> bytes:
    """That many bytes of a stream, or what there was."""
    data = b""
    while len(data) < size and (piece := await stream.read()):
        data += piece
    return data


async def ended(stream: Stream) -> str:
    """Why a stream ended, once it has."""
    async with asyncio.timeout(HANG_S):
        assert await stream.read() == b""
    return stream.why


async def eventually(wanted: Callable[[], object]) -> None:
    """Ask again until it is true: for what the other side does and nothing tells."""
    async with asyncio.timeout(HANG_S):
        while not wanted():
            await asyncio.sleep(0.01)
