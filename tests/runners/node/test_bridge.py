"""The bridge: stdio and an agent's socket, both ways, neither waiting for the other."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from distui.runners.node import bridge

pytestmark = pytest.mark.real

RUN8 = "00c0ffee"


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="dt-", dir="/tmp") as name:
        yield Path(name)


@pytest.fixture
def agent(folder: Path) -> Iterator[socket.socket]:
    """What listens where node 1's agent would."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(folder / f"{RUN8}n1.sock"))
        server.listen(1)
        server.settimeout(20)
        yield server


def start(folder: Path, *words: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-I", "-S", bridge.__file__, *words],
        env={"DISTUI_SOCKET_DIR": str(folder)},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def test_bytes_go_both_ways_and_the_agents_end_is_the_end(folder: Path, agent: socket.socket) -> None:
    process = start(folder, RUN8, "1")
    assert process.stdin is not None
    assert process.stdout is not None
    peer, _ = agent.accept()
    peer.settimeout(20)
    with peer:
        process.stdin.write(b"\x00ask\n")
        process.stdin.flush()
        assert peer.recv(100) == b"\x00ask\n"
        peer.sendall(b"DISTUI/1\nanswer\xff")
    out, err = process.communicate(timeout=20)
    assert (process.returncode, out, err) == (0, b"DISTUI/1\nanswer\xff", b"")


def test_an_agent_that_is_about_to_start_is_waited_for(folder: Path) -> None:
    process = start(folder, RUN8, "1", "20")
    with socket.socket(socket.AF_UNIX) as server:
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.3)
        server.bind(str(folder / f"{RUN8}n1.sock"))
        server.listen(1)
        server.settimeout(20)
        peer, _ = server.accept()
        with peer:
            peer.sendall(b"here")
        out, err = process.communicate(timeout=20)
    assert (process.returncode, out, err) == (0, b"here", b"")


def test_the_viewers_end_is_the_end(folder: Path, agent: socket.socket) -> None:
    process = start(folder, RUN8, "1")
    assert process.stdin is not None
    peer, _ = agent.accept()
    with peer:
        peer.settimeout(20)
        process.stdin.write(b"last")
        process.stdin.close()
        assert peer.recv(100) == b"last"
        assert peer.recv(100) == b""
    assert process.wait(20) == 0
    for pipe in (process.stdout, process.stderr):
        assert pipe is not None
        pipe.close()


def test_a_full_direction_does_not_hold_up_the_other(folder: Path, agent: socket.socket) -> None:
    """Nobody reads what the agent sends; what the viewer sends still arrives."""
    process = start(folder, RUN8, "1")
    assert process.stdin is not None
    peer, _ = agent.accept()
    with peer:
        peer.settimeout(20)
        flood = threading.Thread(target=_flood, args=(peer,), daemon=True)
        flood.start()
        for number in range(20):
            process.stdin.write(b"%d\n" % number)
            process.stdin.flush()
        got = b""
        while not got.endswith(b"19\n"):
            got += peer.recv(4096)
        assert flood.is_alive()  # still cannot send all of it
        process.kill()
        process.communicate(timeout=20)
    flood.join(20)


def _flood(peer: socket.socket) -> None:
    try:
        peer.sendall(bytes(64 << 20))
    except OSError:
        return


@pytest.mark.parametrize("made", [False, True])
def test_without_an_agent_there_is_one_sentence(folder: Path, made: bool) -> None:
    if made:  # a socket that an agent left behind
        with socket.socket(socket.AF_UNIX) as stale:
            stale.bind(str(folder / f"{RUN8}n0.sock"))
    process = start(folder, RUN8, "0")
    out, err = process.communicate(timeout=20)
    assert (process.returncode, out) == (4, b"")
    assert err.startswith(b"distui: no agent answers on ")
    assert err.count(b"\n") == 1


def test_a_directory_that_others_may_write_is_not_trusted(folder: Path, agent: socket.socket) -> None:
    folder.chmod(0o777)
    process = start(folder, RUN8, "1")
    _, err = process.communicate(timeout=20)
    assert process.returncode == 4
    assert b"its directory is not yours alone" in err


@pytest.mark.parametrize("words", [(), (RUN8,), ("../x", "0"), (RUN8, "0", "soon"), (RUN8, "0", "1", "2")])
def test_wrong_words(folder: Path, words: tuple[str, ...]) -> None:
    process = start(folder, *words)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 2
    assert err.startswith(b"usage: ")


def test_it_is_there_at_once(folder: Path, agent: socket.socket) -> None:
    """The shortest of five starts, by the processor's time: others may be busy here."""
    took = []
    for _ in range(5):
        process = start(folder, RUN8, "1")
        peer, _address = agent.accept()
        times = psutil.Process(process.pid).cpu_times()
        took.append(times.user + times.system)
        peer.close()
        process.communicate(timeout=20)
    assert min(took) < 0.25  # 30 ms on a quiet machine
    assert os.environ.get("DISTUI_SOCKET_DIR") != str(folder)
