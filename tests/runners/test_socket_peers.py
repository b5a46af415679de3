"""A socket on which another account listens is none of ours, wherever it lies."""

from __future__ import annotations

import asyncio
import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from distui.runners.agent.runner_process import ask_once
from distui.runners.run.wire.client import LinkError, SocketLink

NOBODY = 65534


@pytest.fixture
def squatted() -> Iterator[tuple[Path, socket.socket]]:
    """A socket in a folder that is open to all, and which another account has bound."""
    if os.geteuid() != 0:
        pytest.skip("only root can be another account")
    with (
        tempfile.TemporaryDirectory(prefix="dt-", dir="/tmp") as folder,
        socket.socket(socket.AF_UNIX) as server,
    ):
        os.chmod(folder, 0o777)
        path, before = Path(folder) / "x.sock", os.umask(0)
        os.seteuid(NOBODY)  # the kernel keeps for its peers who listens
        try:
            server.bind(str(path))
            server.listen()
        finally:
            os.seteuid(0)
            os.umask(before)
        yield path, server


async def heard(server: socket.socket) -> bytes:
    """What the stranger got of whoever connected."""
    loop = asyncio.get_running_loop()
    server.setblocking(False)
    peer, _ = await loop.sock_accept(server)
    with peer:
        return await asyncio.wait_for(loop.sock_recv(peer, 65536), 60)


async def test_a_viewer_says_nothing_to_a_stranger(squatted: tuple[Path, socket.socket]) -> None:
    path, server = squatted
    with pytest.raises(LinkError, match="another user listens"):
        await SocketLink.connect(path)
    assert await heard(server) == b""


async def test_an_agent_asks_no_strangers_runner(squatted: tuple[Path, socket.socket]) -> None:
    """What it asks for may hold the values of secrets."""
    path, server = squatted
    with pytest.raises(PermissionError, match="another user listens"):
        await ask_once(str(path), "env", env={"MY_TOKEN": "value"})
    assert await heard(server) == b""
