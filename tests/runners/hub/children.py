"""Child processes that are coroutines of the test's loop: pipes as of a process, and an exit code."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
from collections.abc import Awaitable, Callable

import pytest

LIMIT = 16 << 20
_pids = itertools.count((1 << 22) + 1_000_000)
"""Above the largest pid of Linux: no signal reaches a process."""


class Pipes:
    """The program's ends of its three pipes."""

    def __init__(
        self, stdin: asyncio.StreamReader, stdout: asyncio.StreamWriter, stderr: asyncio.StreamWriter
    ) -> None:
        self.stdin, self.stdout, self.stderr = stdin, stdout, stderr


Program = Callable[[tuple[str, ...], Pipes], Awaitable[int]]
"""What a command line does, and its exit code."""


class Child:
    """What is used of asyncio.subprocess.Process."""

    stdin: asyncio.StreamWriter
    stdout: asyncio.StreamReader
    stderr: asyncio.StreamReader

    _ours: tuple[asyncio.StreamWriter | asyncio.ReadTransport, ...]
    _its: tuple[asyncio.StreamWriter | asyncio.ReadTransport, ...]

    def __init__(self) -> None:
        self.pid = next(_pids)
        self.returncode: int | None = None
        self._over = asyncio.Event()
        self._work: asyncio.Task[None] | None = None

    @classmethod
    async def start(cls, program: Program, words: tuple[str, ...]) -> Child:
        child = cls()
        stdin, read_in, child.stdin = await _pipe()
        out, child.stdout, write_out = await _pipe()
        err, child.stderr, write_err = await _pipe()
        child._ours = (child.stdin, out, err)
        child._its = (stdin, write_out, write_err)
        child._work = asyncio.create_task(child._run(program, words, Pipes(read_in, write_out, write_err)))
        return child

    async def _run(self, program: Program, words: tuple[str, ...], pipes: Pipes) -> None:
        code = -signal.SIGKILL.value
        try:
            code = await program(words, pipes)
        except asyncio.CancelledError:
            for ours in self._ours:
                ours.close()
        finally:
            for its in self._its:
                its.close()
            self.returncode = code
            self._over.set()

    async def wait(self) -> int:
        await self._over.wait()
        assert self.returncode is not None
        return self.returncode

    def kill(self) -> None:
        if self.returncode is not None or self._work is None:
            raise ProcessLookupError
        self._work.cancel()

    async def communicate(self, data: bytes | None = None) -> tuple[bytes, bytes]:
        if data:
            self.stdin.write(data)
        self.stdin.close()
        out, err = await asyncio.gather(self.stdout.read(), self.stderr.read())
        await self.wait()
        return out, err


async def _pipe() -> tuple[asyncio.ReadTransport, asyncio.StreamReader, asyncio.StreamWriter]:
    loop = asyncio.get_running_loop()
    read, write = os.pipe()
    reader = asyncio.StreamReader(LIMIT)
    end, _ = await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(read, "rb", 0)
    )
    transport, protocol = await loop.connect_write_pipe(
        asyncio.streams.FlowControlMixin, os.fdopen(write, "wb", 0)
    )
    return end, reader, asyncio.StreamWriter(transport, protocol, None, loop)


class Programs:
    """What stands in for the programs that this process starts: by the first word, and how often each was started."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._by_name: dict[str, Program] = {}
        self._children: list[tuple[str, Child]] = []
        self.started: list[tuple[str, ...]] = []
        monkeypatch.setattr(asyncio, "create_subprocess_exec", self._start)

    def put(self, name: str, program: Program) -> None:
        """`name`: the first word of its command lines."""
        self._by_name[name] = program

    async def _start(self, *words: object, **options: object) -> Child:
        argv = tuple(map(str, words))
        if argv[0] not in self._by_name:
            raise FileNotFoundError(2, "No such file or directory")
        self.started.append(argv)
        child = await Child.start(self._by_name[argv[0]], argv)
        self._children.append((argv[0], child))
        return child

    def kill(self, name: str) -> None:
        """SIGKILL to those that run."""
        for its, child in self._children:
            if its == name:
                with contextlib.suppress(ProcessLookupError):
                    child.kill()


async def copied(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy to the end of the reader, and end the writer."""
    with contextlib.suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    writer.close()
