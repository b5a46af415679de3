"""The node's end as a process of this machine: facts for real, and what becomes of it when things go wrong."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hub.site import until
from patience import HANG_S

from distui.runners.doctor.session import NodeSession
from distui.runners.run.wire.ssh import HostError

from .made import unexpected

pytestmark = pytest.mark.real


@pytest.fixture
async def session() -> AsyncIterator[NodeSession]:
    found = await NodeSession.open("here", None, unexpected)
    try:
        yield found
    finally:
        await found.close()


async def facts(
    session: NodeSession, python: str = sys.executable, port: int | None = None
) -> dict[str, object]:
    return await session.ask("facts", HANG_S, python=python, cwd="/", port=port)


async def test_facts_of_this_machine(session: NodeSession) -> None:
    import torch

    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        found = await facts(session, port=port)
    assert found["hostname"] == socket.gethostname()
    assert found["boot"] == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    training = found["training"]
    assert isinstance(training, dict)
    assert training["torch"] == torch.__version__
    assert training["python"] == ".".join(map(str, sys.version_info[:3]))
    assert (training["gloo"], training["problem"], training["executable"]) == (True, "", sys.executable)
    own = Path("/proc/self/cmdline").read_text().replace("\0", " ").strip()
    assert found["port"] == {
        "port": port, "free": False, "problem": "Address already in use",
        "owner": {"pid": os.getpid(), "command": own[:200]},
    }  # fmt: skip
    faces = found["interfaces"]
    assert isinstance(faces, list)
    (loop,) = [face for face in faces if face["name"] == "lo"]
    assert loop["loopback"]
    assert "127.0.0.1" in loop["addresses"]
    space = os.statvfs("/dev/shm")
    assert found["shm"]
    assert found["shm"]["total"] == space.f_blocks * space.f_frsize  # type: ignore[index]
    assert found["ssh_address"] is None or "SSH_CONNECTION" in os.environ
    ahead, doubt = await session.clock()
    assert abs(ahead) < 1.0, "it is the same clock"
    assert doubt > 0


BROKEN = {
    "no-torch": ('raise ModuleNotFoundError("No module named \'torch\'", name="torch")', None, ""),
    "broken": ("raise ImportError('libcudart.so.12: cannot open')", None, "ImportError: libcudart.so.12: cannot open"),
    "half": ("raise ModuleNotFoundError(\"No module named 'x'\", name='x')", None,
             "ModuleNotFoundError: No module named 'x'"),
}  # fmt: skip


def wrapper(folder: Path, module: str) -> str:
    """An interpreter whose torch is this module."""
    folder.mkdir()
    (folder / "torch.py").write_text(module)
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={folder} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return str(python)


async def test_a_torch_that_cannot_be_imported(session: NodeSession, tmp_path: Path) -> None:
    for case, (statement, version, problem) in BROKEN.items():
        found = await facts(session, wrapper(tmp_path / case, f"{statement}\n"))
        training = found["training"]
        assert isinstance(training, dict)
        assert (training["torch"], training["problem"]) == (version, problem), case
    ends = "import os, sys\nprint('bad', file=sys.stderr)\nsys.stderr.flush()\nos.abort()\n"
    python = wrapper(tmp_path / "ends", ends)
    found = await facts(session, python)
    assert (found["training"], found["training_problem"]) == (None, f"{python}: bad")
    found = await facts(session, "/no/such/python")
    assert (found["training"], found["training_problem"]) == (None, "/no/such/python is not an executable")


async def test_everything_ends_with_the_connection(tmp_path: Path) -> None:
    """Also a child that is in the middle of something, and what that one has started."""
    wrapper, told = tmp_path / "python", tmp_path / "pids"
    wrapper.write_text(f"#!/bin/sh\nsleep 600 &\necho $$ $! > {told}.part\nmv {told}.part {told}\nwait\n")
    wrapper.chmod(0o755)
    session = await NodeSession.open("here", None, unexpected)
    asking = asyncio.create_task(facts(session, str(wrapper)))
    assert await asyncio.to_thread(until, told.exists)
    pids = [int(word) for word in told.read_text().split()]
    await session.close()
    with pytest.raises(HostError):
        await asking
    assert await asyncio.to_thread(
        until, lambda: not any(Path(f"/proc/{pid}/cwd").exists() for pid in pids)
    )


async def test_a_node_that_is_late_or_goes_away_is_named(session: NodeSession) -> None:
    with pytest.raises(HostError, match=r"^here did not answer within 0 s$"):
        await session.ask("connect", 0.0, host="127.0.0.1", port=1, within=5.0, name=None)
    assert (await session.ask("listen", HANG_S, port=0))["ok"]
    os.kill(session._process.pid, 9)
    with pytest.raises(HostError, match=r"^here: the connection ended with code -9$"):
        await session.ask("clock", HANG_S)
