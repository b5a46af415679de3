"""serve: the read-only cockpit of a run in a browser."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import getpass
import os
import socket
import sys
from collections.abc import AsyncIterator

from ...runners.node.shares import shared
from ...runners.run import run_directories
from ...runners.run.commands import Share, Unshare
from ...runners.run.errors import RunError
from ...runners.run.packages import install_extra
from ...runners.run.wire.client import new_id
from ..browser.gate import LOOPBACK, Gate


def serve(options: argparse.Namespace) -> int:
    """Serve until Ctrl-C. Raises RunError."""
    entry = run_directories.resolve(options.run)
    try:
        from ..browser import server
    except ImportError as error:
        if not (error.name or "").startswith(("textual_serve", "aiohttp", "jinja2")):
            raise
        raise RunError(
            f"`distui serve` needs the package textual-serve: {install_extra('serve')}"
        ) from None
    with _listener(options.port) as listener:
        gate = Gate(listener.getsockname()[1])

        async def until_interrupted() -> None:
            async with _share(entry) as path:
                sys.stdout.write(_directions(entry.record.name, gate))
                sys.stdout.flush()
                await server.serve(server.Website(gate, path, entry.record.name), listener)

        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(until_interrupted())
    return 0


def _listener(port: int) -> socket.socket:
    """Listen on the loopback interface; port 0 is a free one. Raises RunError."""
    if not 0 <= port < 1 << 16:
        raise RunError(f"--port {port}: a port is a number from 1 to 65535")
    try:
        return socket.create_server((LOOPBACK, port))
    except OSError as error:
        why = os.strerror(error.errno or 0)  # error.strerror repeats the address
        raise RunError(f"port {port} cannot be opened ({why}): choose another with --port") from None


@contextlib.asynccontextmanager
async def _share(entry: run_directories.Entry) -> AsyncIterator[str]:
    """Share the run with this account only, for the pages; yield the socket. Raises RunError."""
    done = await shared(entry, Share(new_id(), "its owner, in a browser", user=os.getuid()))
    if not done["ok"]:
        raise RunError(done["text"])
    try:
        yield done["socket"]
    finally:
        with contextlib.suppress(RunError):
            await shared(entry, Unshare(new_id(), done["socket"]))


def _directions(name: str, gate: Gate) -> str:
    """Return the lines to type and to open, on the machine with the browser."""
    port = gate.host.rpartition(":")[2]
    forward = f"ssh -N -L {port}:{LOOPBACK}:{port} {getpass.getuser()}@{os.uname().nodename}"
    return (
        f"{name}, read-only, until Ctrl-C. On the machine with the browser, type\n"
        f"  {forward}\n"
        "and open this address, which works once:\n"
        f"  {gate.address}\n"
    )
