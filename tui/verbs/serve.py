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

from ...runners.node.local_agent import with_link
from ...runners.run import run_directories
from ...runners.run.commands import Share, Unshare
from ...runners.run.errors import RunError
from ...runners.run.packages import install_extra
from ...runners.run.wire.client import new_id
from ..browser.gate import Gate

LOOPBACK = "127.0.0.1"


def serve(options: argparse.Namespace) -> int:
    """Serve until Ctrl-C. Raises RunError."""
    entry = run_directories.resolve(options.run)
    name = entry.record.name
    if run_directories.ended(entry):
        raise RunError(f"{name} has ended, and only live runs are served: `distui replay {name}` opens it")
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
            async with _share(entry.record.run) as share:
                sys.stdout.write(_directions(name, gate))
                sys.stdout.flush()
                await server.serve(server.Website(gate, share, name), listener)

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
        raise RunError(
            f"port {port} cannot be opened ({error.strerror}): choose another with --port"
        ) from None


@contextlib.asynccontextmanager
async def _share(run: str) -> AsyncIterator[str]:
    """Share the run with this account only, for the pages; yield the socket. Raises RunError."""
    share = Share(new_id(), "its owner, in a browser", user=os.getuid())
    done = await with_link(run, lambda _, link: link.send(share))
    if not done.ok:
        raise RunError(done.text)
    path = done.data["socket"]
    try:
        yield path
    finally:
        with contextlib.suppress(RunError):
            await with_link(run, lambda _, link: link.send(Unshare(new_id(), path)))


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
