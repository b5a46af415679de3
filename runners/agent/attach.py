"""The bridge between stdio and an agent's socket: what `ssh HOST distui agent attach RUN` executes there."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from .. import identity
from ..registry import AGENT_FILE


async def bridge(run_dir: Path) -> int:
    """Copy both ways until either side ends; 4 with a sentence when no agent answers."""
    who = identity.read(run_dir / AGENT_FILE)
    if who is None or not identity.alive(who):
        sys.stderr.write(f"distui: no agent serves {run_dir}\n")
        return 4
    try:
        reader, writer = await asyncio.open_unix_connection(who.socket)
    except OSError as error:
        sys.stderr.write(f"distui: {who.socket}: {error.strerror}\n")
        return 4
    loop = asyncio.get_running_loop()
    stdin = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stdin), sys.stdin)
    transport, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, sys.stdout)
    stdout = asyncio.StreamWriter(transport, protocol, None, loop)
    up = asyncio.create_task(_copy(stdin, writer))
    down = asyncio.create_task(_copy(reader, stdout))
    await asyncio.wait({up, down}, return_when=asyncio.FIRST_COMPLETED)
    for task in (up, down):
        task.cancel()
    writer.close()
    return 0


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    while data := await source.read(65536):
        target.write(data)
        await target.drain()
