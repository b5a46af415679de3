"""The bridge: stdio and an agent's socket, both ways, neither waiting for the other."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from bundled import bridge
from patience import HANG_S

pytestmark = pytest.mark.real

RUN8 = "00c0ffee"


@pytest.fixture
def agent(socket_folder: Path) -> Iterator[socket.socket]:
    """What listens where node 1's agent would."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(socket_folder / f"{RUN8}n1.sock"))
        server.listen(1)
        server.settimeout(HANG_S)
        yield server


def start(socket_folder: Path, *words: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-E", "-s", "-S", bridge(), *words],
        env={"DISTUI_SOCKET_DIR": str(socket_folder)},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def accepted(agent: socket.socket) -> socket.socket:
    peer, _ = agent.accept()
    peer.settimeout(HANG_S)
    return peer


def test_bytes_go_both_ways_and_either_end_is_the_end(socket_folder: Path, agent: socket.socket) -> None:
    process = start(socket_folder, RUN8, "1")
    assert process.stdin is not None
    with accepted(agent) as peer:
        process.stdin.write(b"\x00ask\n")
        process.stdin.flush()
        assert peer.recv(100) == b"\x00ask\n"
        peer.sendall(b"DISTUI/1\nanswer\xff")
    out, err = process.communicate(timeout=HANG_S)
    assert (process.returncode, out, err) == (0, b"DISTUI/1\nanswer\xff", b"")

    process = start(socket_folder, RUN8, "1")
    assert process.stdin is not None
    with accepted(agent) as peer:
        process.stdin.write(b"last")
        process.stdin.close()
        process.stdin = None
        assert peer.recv(100) == b"last"
        assert peer.recv(100) == b""
    assert process.communicate(timeout=HANG_S) == (b"", b"")
    assert process.returncode == 0


def test_an_agent_that_is_about_to_start_is_waited_for(socket_folder: Path) -> None:
    process = start(socket_folder, RUN8, "1", str(int(HANG_S)))
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.3)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(socket_folder / f"{RUN8}n1.sock"))
        server.listen(1)
        server.settimeout(HANG_S)
        with accepted(server) as peer:
            peer.sendall(b"here")
        out, err = process.communicate(timeout=HANG_S)
    assert (process.returncode, out, err) == (0, b"here", b"")


def test_a_full_direction_does_not_hold_up_the_other(socket_folder: Path, agent: socket.socket) -> None:
    """Nobody reads what the agent sends; what the viewer sends still arrives."""
    process = start(socket_folder, RUN8, "1")
    assert process.stdin is not None
    peer, _ = agent.accept()
    with peer:
        peer.settimeout(HANG_S)
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
        process.communicate(timeout=HANG_S)
    flood.join(HANG_S)


def _flood(peer: socket.socket) -> None:
    try:
        peer.sendall(bytes(64 << 20))
    except OSError:
        return


def test_what_is_refused_in_one_sentence(socket_folder: Path, agent: socket.socket) -> None:
    def refused(*words: str) -> tuple[int, str]:
        process = start(socket_folder, *words)
        out, err = process.communicate(timeout=HANG_S)
        assert (out, err.count(b"\n")) == (b"", 1), err
        return process.returncode, err.decode()

    for words in ((), (RUN8,), ("../x", "0"), (RUN8, "0", "soon"), (RUN8, "0", "1", "2")):
        code, said = refused(*words)
        assert (code, said[:7]) == (2, "usage: "), words
    code, said = refused(RUN8, "0")
    assert (code, said.startswith("distui: no agent answers on ")) == (4, True)
    with socket.socket(socket.AF_UNIX) as stale:  # which an agent left behind
        stale.bind(str(socket_folder / f"{RUN8}n0.sock"))
    code, said = refused(RUN8, "0")
    assert (code, said.startswith("distui: no agent answers on ")) == (4, True)
    socket_folder.chmod(0o777)  # others may write there
    code, said = refused(RUN8, "1")
    assert (code, "its directory is not a directory that only you can write" in said) == (4, True)
