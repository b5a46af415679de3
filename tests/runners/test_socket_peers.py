"""A socket on which another account listens is none of ours, wherever it lies."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from distui.runners.agent import nccl_switch
from distui.runners.agent.runner_process import ask_once
from distui.runners.diagnosis.ras import RasError, parse
from distui.runners.wire.client import LinkError, SocketLink

NOBODY = 65534
LISTENS = """
import os, socket, sys
os.umask(0)
os.setgid(65534)
os.setuid(65534)
server = socket.socket(socket.AF_UNIX)
server.bind(sys.argv[1])
server.listen()
print("up", flush=True)
peer = server.accept()[0]
print("heard", peer.recv(65536), flush=True)
"""


@pytest.fixture
def squatted() -> Iterator[tuple[Path, subprocess.Popen[str]]]:
    """A socket in a folder that is open to all, and who listens on it."""
    if os.geteuid() != 0:
        pytest.skip("only root can be another account")
    with tempfile.TemporaryDirectory(prefix="dt-", dir="/tmp") as folder:
        os.chmod(folder, 0o777)
        path = Path(folder) / "x.sock"
        child = subprocess.Popen(
            ["python3", "-c", LISTENS, str(path)],
            executable=sys.executable,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert child.stdout is not None
        assert child.stdout.readline() == "up\n"
        yield path, child
        child.kill()
        child.communicate()


@pytest.mark.real
def test_a_viewer_says_nothing_to_a_stranger(squatted: tuple[Path, subprocess.Popen[str]]) -> None:
    path, child = squatted
    with pytest.raises(LinkError, match="another user listens"):
        asyncio.run(SocketLink.connect(path))
    assert child.stdout is not None
    assert child.stdout.readline() in ("heard b''\n", "")


@pytest.mark.real
def test_an_agent_asks_no_strangers_runner(squatted: tuple[Path, subprocess.Popen[str]]) -> None:
    """What it asks for may hold the values of secrets."""
    path, child = squatted
    with pytest.raises(PermissionError, match="another user listens"):
        asyncio.run(ask_once(str(path), "env", env={"MY_TOKEN": "value"}))
    assert child.stdout is not None
    assert child.stdout.readline() in ("heard b''\n", "")


def test_whoever_took_the_port_of_ras_ends_no_look() -> None:
    """Anybody can listen there before NCCL does: a line without an end, and a depth that no parser takes."""

    async def asked() -> str:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"SERVER PROTOCOL 2" + b"x" * 200_000)
            await reader.read()
            writer.close()

        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            try:
                await nccl_switch.ask(port, as_json=True, hosts=("127.0.0.1",))
            except RasError:
                return "refused"
        return "believed"

    assert asyncio.run(asked()) == "refused"
    with pytest.raises(RasError):
        parse('{"communicators":' + "[" * 200_000)
