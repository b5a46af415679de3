"""Two nodes' relays on one machine: a real store, runners' parts in processes of their own, agents' parts here."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import subprocess
import sys
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from patience import slowness
from ports import free_port

from distui.presets.finding import Finding
from distui.runners.agent.relay_client import AgentRelay, Stream
from distui.runners.inrank.relay import Mailboxes
from distui.runners.inrank.secure_channel import Channel, dial

from .carrier import KEY, RUN

CARRIER = Path(__file__).with_name("carrier.py")


class Carrier:
    """One runner's part. Node 0 holds the store, at this port."""

    def __init__(self, directory: Path, node: int, nnodes: int, port: int) -> None:
        self.socket = directory / f"c{node}"
        words = [str(self.socket), str(node), str(nnodes), str(port)]
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
        """Stopped for a while: what is written for it stays in the store."""
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
        code = self.process.wait(20 * slowness())
        self.process.stdout.close()
        self.errors.close()
        return code


class Stranger:
    """Reads and writes the mailboxes from node 0 to node 1 without being an agent: it has the runners' key alone."""

    def __init__(self, line: Channel) -> None:
        self.line = line
        self._box = f"distui.relay/{RUN}/0/1"

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
        return self.line.ask(parts, 5.0 * slowness())[1:]

    @contextlib.contextmanager
    def put(self, *frames: bytes) -> Iterator[None]:
        """Write frames as node 0, whose runner counts on in ignorance: in the end the counters are put back."""
        before = self.written()
        boxes = Mailboxes(self.line, RUN, 0, 2)
        assert boxes.put(1, deque(frames)) == len(frames)
        boxes.ring(1)
        yield
        for word in ("written", "read"):
            self.replace(word, str(before).encode())


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


class Carriers:
    """Both runners' parts, which take some seconds to start: agents may come and go."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.both = [Carrier(directory, 0, 2, free_port())]  # which a later one can have again
        self.port = self.both[0].ready()
        self.both.append(Carrier(directory, 1, 2, self.port))
        self.both[1].ready()

    def replace_head(self) -> None:
        """After it was killed: another runner, with a new store on the same port."""
        self.both[0].close()
        self.both[0] = Carrier(self.directory, 0, 2, self.port)
        self.both[0].ready()

    def close(self) -> list[int]:
        """Their exit codes."""
        return [carrier.close() for carrier in reversed(self.both)]


class Pair:
    """The agents' part on nodes 0 and 1; each node's agent answers on a socket as `echo` does."""

    def __init__(self, carriers: Carriers, keys: tuple[bytes, bytes]) -> None:
        self.carriers, self.keys = carriers.both, keys
        self.all = carriers
        self.findings: list[Finding] = []
        self.echo = carriers.directory / "echo"
        self.relays = [
            AgentRelay(key, node, 2, self.echo, self.findings.append) for node, key in enumerate(keys)
        ]
        self.tasks: dict[int, asyncio.Task[None]] = {}
        self._lines: list[Channel] = []
        self.before = 0
        """What node 1 had rejected when `opened` returned: the end of an earlier test's streams, under another key."""

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

    async def opened(self, stream: Stream | None = None) -> Stream:
        """A stream to node 1 that has carried something: whatever was on the way before it has arrived."""
        stream = stream or await self.relays[0].open(1)
        await echoed(stream, b"x")
        self.before = self.relays[1].rejections.total
        return stream

    def rejected(self) -> int:
        """How many frames node 1 rejected since then."""
        return self.relays[1].rejections.total - self.before

    def stranger(self) -> Stranger:
        """Somebody who has got into the store."""
        line = dial("127.0.0.1", self.all.port, KEY)
        self._lines.append(line)
        return Stranger(line)

    @contextlib.contextmanager
    def held(self, stranger: Stranger) -> Iterator[Held]:
        """Nobody takes what is written for node 1 meanwhile."""
        with self.carriers[1].paused():
            yield Held(stranger)

    async def close(self) -> None:
        """End the streams as viewers do, then the agents."""
        for line in self._lines:
            line.close()
        for stream in list(self.relays[0]._streams.values()):
            stream.end()
        with contextlib.suppress(TimeoutError):
            await eventually(lambda: not any(relay._streams for relay in self.relays), 3.0)
        for task in self.tasks.values():
            task.cancel()
        await asyncio.gather(*self.tasks.values(), return_exceptions=True)
        self._server.close()


@asynccontextmanager
async def pair(carriers: Carriers, keys: tuple[bytes, bytes] | None = None) -> AsyncIterator[Pair]:
    """A pair that is ended whatever happens; with one key of its own, if none are given."""
    made = Pair(carriers, keys or (secrets.token_bytes(32),) * 2)
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
    async with asyncio.timeout(20 * slowness()):
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


async def eventually(wanted: Any, seconds: float = 20.0) -> None:
    """Ask again until it is true: for what other processes do and nothing tells."""
    async with asyncio.timeout(seconds * slowness()):
        while not wanted():
            await asyncio.sleep(0.01)
