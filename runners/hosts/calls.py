"""Commands on hosts through the system's ssh, some at once."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from ..wire import ssh

AT_ONCE = 8
"""Connections that are being made at the same time: sshd's MaxStartups begins to refuse at 10."""
T = TypeVar("T")
U = TypeVar("U")


class HostError(Exception):
    """Something on a host failed; the text is one sentence that names it."""


@dataclass(frozen=True, slots=True)
class Way:
    """How a host is reached."""

    destination: str
    options: tuple[str, ...] = ()


async def call(way: Way, remote: Sequence[str], data: bytes, seconds: float) -> bytes:
    """Run a command there with `data` on its stdin; its stdout. Raises HostError."""
    pipe = asyncio.subprocess.PIPE
    try:
        process = await asyncio.create_subprocess_exec(
            *ssh.argv(way.destination, way.options, remote),
            stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        raise HostError(f"ssh cannot be executed here ({error.strerror}): install OpenSSH") from None
    try:
        async with asyncio.timeout(seconds):
            out, err = await process.communicate(data)
    except TimeoutError:
        raise HostError(
            f"{way.destination} did not finish `{' '.join(remote)}` within {seconds:.0f} s"
        ) from None
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    if process.returncode:
        said = [line for line in err.decode("utf-8", "replace").splitlines() if line.strip()]
        why = ssh.explain(said, process.returncode, way.destination)
        last = said[-1].strip() if said else f"exit code {process.returncode}"
        raise HostError(why or f"{way.destination}: {last}")
    return out


async def each(items: Sequence[T], do: Callable[[T], Awaitable[U]]) -> list[U | HostError]:
    """Do it for all, AT_ONCE at a time; what came of each, in order."""
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(item: T) -> U | HostError:
        async with gate:
            try:
                return await do(item)
            except HostError as error:
                return error

    return list(await asyncio.gather(*(one(item) for item in items)))
