"""The runner's socket: who may speak on it, and what it makes of nonsense."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from each import for_each
from patience import HANG_S

from distui.runners.inrank.control import MOST_LINE, MOST_PEERS, Control

from .inrank_rig import Asking

STRANGER = """
import os, socket, sys
os.setgid(65534); os.setuid(65534)
peer = socket.socket(socket.AF_UNIX); peer.settimeout(10)
try:
    peer.connect(sys.argv[1])
    peer.sendall(b'{"op": "stop"}\\n')
    print(peer.recv(100))
except OSError as error:
    print(type(error).__name__)
"""


class Desk:
    """A Control with what it was asked, on a path that every user can reach."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.asked: list[dict[str, Any]] = []
        self.left = threading.Event()
        self.control = Control(str(path), self._answer, lambda peer: self.left.set())
        self.control.start()

    def _answer(self, request: dict[str, Any], peer: socket.socket) -> dict[str, Any] | None:
        self.asked.append(request)
        return None if request.get("op") == "poke" else {"ok": True}


@pytest.fixture
def desk() -> Iterator[Desk]:
    directory = Path(tempfile.mkdtemp(prefix="dt-"))
    directory.chmod(0o755)
    yield Desk(directory / "c")
    shutil.rmtree(directory)


def test_the_socket_is_for_its_user_alone(desk: Desk) -> None:
    assert desk.path.stat().st_mode & 0o777 == 0o600


@pytest.mark.real
@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else")
@for_each("mode", [0o600, 0o777])
def test_another_user_is_refused_whatever_the_mode(desk: Desk, mode: int) -> None:
    desk.path.chmod(mode)
    command = [sys.executable, "-c", STRANGER, str(desk.path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.strip() in ("b''", "PermissionError", "ConnectionResetError", "BrokenPipeError")
    asking = Asking(desk.path)
    asking.ask("ping")
    asking.close()
    assert {request["op"] for request in desk.asked} == {"ping"}


@for_each("line", [b"[1]", b"null", b"{", b"\xff", b"[" * 100_000])
def test_nonsense_is_shown_the_door_and_the_next_is_served(desk: Desk, line: bytes) -> None:
    asking = Asking(desk.path)
    asking.send(line)
    assert asking.hear() == {}
    asking.close()
    again = Asking(desk.path)
    assert again.ask("ping")["ok"]
    again.close()


def test_a_line_without_end_is_not_read_to_its_end(desk: Desk) -> None:
    asking = Asking(desk.path)
    with contextlib.suppress(ConnectionError):
        asking.send(b"x" * (MOST_LINE + 2))
        assert asking.hear() == {}
    asking.close()
    assert desk.left.wait(HANG_S)
    assert not desk.asked


def test_of_too_many_connections_one_that_never_asked_is_closed(desk: Desk) -> None:
    asking = Asking(desk.path)
    asking.ask("ping")
    silent = [socket.socket(socket.AF_UNIX) for _ in range(MOST_PEERS)]
    for one in silent:
        one.connect(str(desk.path))
    silent[0].settimeout(HANG_S)
    assert silent[0].recv(1) == b""
    assert asking.ask("ping")["ok"]
    for one in silent:
        one.close()
    asking.close()


def test_a_poke_reaches_every_connection_and_is_not_answered(desk: Desk) -> None:
    asking = Asking(desk.path)
    asking.send(b'{"op": "poke"}')
    assert asking.ask("ping") == {"ok": True, "id": 7}
    desk.control.poke()
    assert asking._lines.readline() == b"\n"
    assert not desk.left.is_set()
    asking.close()
    assert desk.left.wait(10)


def test_a_socket_left_behind_is_replaced(desk: Desk) -> None:
    again = Desk(desk.path)
    asking = Asking(desk.path)
    asking.ask("ping")
    asking.close()
    assert again.asked
    assert not desk.asked
