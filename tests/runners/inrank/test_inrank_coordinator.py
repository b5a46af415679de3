"""The coordinator under attack: whoever has not the run's key reads, writes, wakes and holds up nothing."""

from __future__ import annotations

import base64
import contextlib
import os
import pickle
import secrets
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from each import for_each
from patience import HANG_S
from ports import free_port

from distui.runners.inrank import coordinator, secure_channel
from distui.runners.inrank.rendezvous import CoordinatorAddress, CoordinatorLink
from distui.runners.inrank.secure_channel import (
    HEAD,
    HELLO,
    MAC,
    MAGIC,
    MAX_MESSAGE,
    NONCE,
    Broken,
    Seal,
    dial,
)

HOST = "127.0.0.3"
KEY = secrets.token_bytes(32)
NOBODY = 65534


@pytest.fixture(scope="module")
def port() -> int:
    """Of a coordinator for two nodes; it lives as long as this process."""
    return coordinator.start(HOST, free_port(), KEY, (2, 2, 1.0))


@contextlib.contextmanager
def line(port: int, key: bytes = KEY) -> Iterator[secure_channel.Channel]:
    """A runner's."""
    made = dial(HOST, port, key)
    try:
        yield made
    finally:
        made.close()


def connected(port: int) -> socket.socket:
    return socket.create_connection((HOST, port), 10)


def ends(peer: socket.socket, seconds: float = HANG_S) -> bytes:
    """What it says until it hangs up."""
    peer.settimeout(seconds)
    said = b""
    with contextlib.suppress(ConnectionResetError):
        while piece := peer.recv(65536):
            said += piece
    return said


def keys(port: int) -> int:
    with line(port) as runner:
        return int(runner.ask([b"count"], HANG_S)[1])


def test_a_runner_writes_and_reads(port: int) -> None:
    with line(port) as one, line(port) as other:
        big = os.urandom(1 << 20)
        assert one.ask([b"set", b"a", b"", b"b", big], HANG_S) == [b"ok"]
        assert other.ask([b"get", b"0", b"a", b"b"], HANG_S) == [b"ok", b"", big]
        assert other.ask([b"peek", b"a", b"no such"], HANG_S) == [b"ok", b"1", b""]
        assert [one.ask([b"add", b"n", b"2"], HANG_S), other.ask([b"add", b"n", b"-1"], HANG_S)] == [
            [b"ok", b"2"],
            [b"ok", b"1"],
        ]
        assert one.ask([b"delete", b"a", b"b", b"n"], HANG_S) == [b"ok", b"3"]


def test_it_listens_on_the_address_of_the_job_alone(port: int) -> None:
    for address in ("127.0.0.1", "127.0.0.2", "::1"):
        with pytest.raises(OSError, match=r"refused|Cannot assign"):
            socket.create_connection((address, port), 2)


def test_a_port_that_is_taken_is_one_sentence(port: int) -> None:
    with pytest.raises(ValueError, match=rf"^rendezvous port {port} on {HOST} is not free \(.*--port"):
        coordinator.start(HOST, port, KEY, (2, 2, 1.0))


def test_the_wrong_key_is_refused_by_both(port: int) -> None:
    with pytest.raises(Broken, match="does not have the key"):
        dial(HOST, port, secrets.token_bytes(32))
    with connected(port) as peer:  # one that does not mind who answers
        peer.sendall(MAGIC + bytes(NONCE))
        peer.recv(NONCE + MAC, socket.MSG_WAITALL)
        peer.sendall(secrets.token_bytes(MAC) + bytes(HEAD))
        assert ends(peer) == b""


def test_the_servers_own_proof_is_none_of_a_client(port: int) -> None:
    """Reflection: what it says of itself, sent back to it, also over a second connection with the same nonce."""
    with connected(port) as peer:
        peer.sendall(MAGIC + bytes(NONCE))
        answer = peer.recv(NONCE + MAC, socket.MSG_WAITALL)
        peer.sendall(answer[NONCE:])
        assert ends(peer) == b""


def test_a_recorded_connection_serves_no_second_time(port: int) -> None:
    """Everything a runner sent, sent again."""
    sent: list[bytes] = []

    class Recorded(socket.socket):
        def sendall(self, data: Any, flags: int = 0) -> None:
            sent.append(bytes(data))
            super().sendall(data, flags)

    with Recorded() as recorded:
        recorded.connect((HOST, port))
        runner = secure_channel.Channel(recorded, KEY)
        assert runner.ask([b"add", b"replayed", b"1"], HANG_S) == [b"ok", b"1"]
    with connected(port) as peer:
        with contextlib.suppress(ConnectionError):
            peer.sendall(b"".join(sent))
        assert len(ends(peer)) in (0, NONCE + MAC)
    with line(port) as runner:
        assert runner.ask([b"add", b"replayed", b"0"], HANG_S) == [b"ok", b"1"]
        runner.ask([b"delete", b"replayed"], HANG_S)


@for_each("how", ["again", "changed", "skipped", "backwards"])
def test_frames_of_a_genuine_connection_in_a_wrong_order_end_it(port: int, how: str) -> None:
    with connected(port) as peer:
        ours = os.urandom(NONCE)
        peer.sendall(MAGIC + ours)
        answer = peer.recv(NONCE + MAC, socket.MSG_WAITALL)
        nonces = ours + answer[:NONCE]
        seal = Seal(KEY, b"client", nonces)
        frames = [seal.seal([b"add", b"ordered", b"1"]) for _ in range(3)]
        wrong = {
            "again": frames[0] + frames[0],
            "changed": frames[0] + frames[1][:-1] + bytes([frames[1][-1] ^ 1]),
            "skipped": frames[0] + frames[2],
            "backwards": frames[0] + Seal(KEY, b"server", nonces).seal([b"add", b"ordered", b"1"]),
        }[how]
        peer.sendall(secure_channel.proof(KEY, b"client", nonces) + wrong)
        heard = ends(peer)
        assert Seal(KEY, b"server", nonces).open(heard[:HEAD], heard[HEAD:]) == [b"ok", b"1"], (
            "the first, and no more"
        )
    with line(port) as runner:
        assert runner.ask([b"delete", b"ordered"], HANG_S) == [b"ok", b"1"]


HOSTILE = [
    b"", b"\n", b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),
    MAGIC, MAGIC + bytes(NONCE - 1), MAGIC + bytes(NONCE) + bytes(MAC), bytes(HELLO) * 100, b"distui/2" + bytes(NONCE),
    MAGIC + bytes(NONCE) + bytes(MAC) + struct.pack(">I", 0xFFFFFFFF) + bytes(1000), os.urandom(1 << 20),
]  # fmt: skip


@for_each("data", HOSTILE)
def test_garbage_gets_no_more_than_a_nonce(port: int, data: bytes) -> None:
    before = keys(port)
    with connected(port) as peer:
        with contextlib.suppress(OSError):  # it has hung up already
            peer.sendall(data)
            peer.shutdown(socket.SHUT_WR)
        assert len(ends(peer)) in (0, NONCE + MAC)
    assert keys(port) == before


def pickled(path: Path) -> list[bytes]:
    """What executed code in the runner while torch's TCPStore and its pickled state were the rendezvous."""

    class Bomb:
        def __reduce__(self) -> Any:
            return os.system, (f"id > {path}",)

    def counted(data: bytes) -> bytes:
        return struct.pack("<Q", len(data)) + data

    bomb = pickle.dumps(Bomb())
    hello = b"\0" + struct.pack("<I", 0x3C85F7CE)
    to_torch = b"\1" + counted(b"/torch.rendezvous.RUN") + counted(base64.b64encode(bomb))
    frame = struct.pack(">I", len(bomb)) + bytes(MAC) + bomb
    return [hello + to_torch, bomb, MAGIC + bytes(NONCE) + bytes(MAC) + frame, MAGIC + bomb]


def test_what_a_stranger_pickled_is_not_executed(port: int, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    for data in pickled(marker):
        with connected(port) as peer:
            peer.sendall(data)
            peer.shutdown(socket.SHUT_WR)
            ends(peer)
    with line(port) as runner:  # nor what somebody with the key sends: it is no more than bytes
        for data in pickled(marker):
            assert runner.ask([b"set", b"bomb", data], HANG_S) == [b"ok"]
            assert runner.ask([b"get", b"0", b"bomb"], HANG_S) == [b"ok", data]
        runner.ask([b"delete", b"bomb"], HANG_S)
    assert not marker.exists()


def test_a_frame_too_large_is_not_waited_for(port: int) -> None:
    with connected(port) as peer:
        ours = os.urandom(NONCE)
        peer.sendall(MAGIC + ours)
        nonces = ours + peer.recv(NONCE + MAC, socket.MSG_WAITALL)[:NONCE]
        peer.sendall(
            secure_channel.proof(KEY, b"client", nonces) + struct.pack(">I", MAX_MESSAGE + 1) + bytes(MAC)
        )
        assert ends(peer) == b""
    with line(port) as runner, pytest.raises(Broken, match="too large"):
        runner.ask([b"set", b"k", bytes(MAX_MESSAGE)], HANG_S)


WORDS: list[list[bytes]] = [
    [], [b""], [b"no such"], [b"set"], [b"set", b"odd"], [b"add"], [b"add", b"k"], [b"add", b"k", b"x"],
    [b"count", b"1"], [b"join"], [b"join", b"t", b"x", b"1"], [b"join", b"\xff", b"0", b"1"], [b"beat"],
    [b"beat", b"nobody", b"0"], [b"close", b"1"],
]  # fmt: skip


@for_each("words", WORDS)
def test_nonsense_of_a_genuine_runner_harms_only_its_own_connection(port: int, words: list[bytes]) -> None:
    with line(port) as other:
        with line(port) as runner, contextlib.suppress(Broken):
            runner.ask(words, 10.0)
        assert other.ask([b"count"], HANG_S)[0] == b"ok"


FEW = """
import resource, sys, time
from distui.runners.inrank import coordinator
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
print(coordinator.start(sys.argv[1], 0, bytes.fromhex(sys.argv[2]), (2, 2, 1.0)), flush=True)
sys.stdin.read()
"""


@pytest.mark.real
def test_a_flood_on_few_descriptors_costs_no_line_of_its_log() -> None:
    command = [sys.executable, "-c", FEW, HOST, KEY.hex()]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        crowd = [connected(port) for _ in range(300)]
        with line(port) as runner:
            assert runner.ask([b"count"], HANG_S) == [b"ok", b"0"]
        for one in crowd:
            one.close()
        with line(port) as runner:
            assert runner.ask([b"count"], HANG_S) == [b"ok", b"0"]
        _, said = process.communicate("", HANG_S)
        assert said == ""


def test_a_silent_connection_and_half_a_greeting_are_hung_up(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(secure_channel, "GREETING_S", 0.3)
    with connected(port) as silent, connected(port) as half:
        half.sendall(MAGIC + bytes(NONCE // 2))
        assert ends(silent) == ends(half) == b""


def test_a_thousand_silent_connections_hold_nobody_up(port: int) -> None:
    crowd: list[socket.socket] = []
    try:
        for _ in range(1000):
            with contextlib.suppress(OSError):
                peer = socket.socket()
                peer.setblocking(False)
                crowd.append(peer)
                peer.connect_ex((HOST, port))
        place = CoordinatorAddress(HOST, port, KEY, "r", None, 0)
        for turn in range(20):
            runner = CoordinatorLink(place)
            said = persistent(runner, b"add", b"crowd", b"1")
            assert said == [b"ok", b"%d" % (turn + 1)]
            runner.close()
    finally:
        for peer in crowd:
            peer.close()


def persistent(runner: CoordinatorLink, *words: bytes) -> list[bytes]:
    """As a node that meets others asks: again, where it was hung up in the crowd."""
    while True:
        try:
            return runner.ask(*words)
        except OSError:
            time.sleep(0.02)


ATTACK = """
import encodings.idna, os, socket, sys, time  # before this user may read them no more
os.setgid({nobody}); os.setuid({nobody})
host, port, until = sys.argv[1], int(sys.argv[2]), time.monotonic() + float(sys.argv[3])
print(os.getuid(), flush=True)
kept = []
while time.monotonic() < until:
    for data in (b"", b"distui/1" + bytes(32), os.urandom(500), b"\\0" * 5 + b"\\1" + bytes(99)):
        try:
            peer = socket.create_connection((host, port), 1)
            peer.sendall(data)
            kept.append(peer)
        except OSError:
            pass
    del kept[:-200]
"""


@pytest.mark.long
@pytest.mark.torch
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
def test_two_nodes_meet_again_and_again_while_another_user_attacks() -> None:
    """Rounds of a rendezvous of their own, and the store that torch's agent has of them."""
    from distui.runners.inrank.rendezvous import CoordinatedRendezvous

    port = coordinator.start(HOST, 0, KEY, (2, 2, 1.0))
    nodes = [
        CoordinatedRendezvous(CoordinatorAddress(HOST, port, KEY, "r", "127.0.0.1", order))
        for order in (0, 1)
    ]
    words = [sys.executable, "-c", ATTACK.format(nobody=NOBODY), HOST, str(port), "600"]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as attacker:
        assert attacker.stdout is not None
        assert attacker.stdout.readline().strip() == str(NOBODY).encode()
        try:
            for turn in range(1, 6):
                infos = together(*(node.next_rendezvous for node in nodes))
                assert [(info.rank, info.world_size) for info in infos] == [(0, 2), (1, 2)]
                places = {
                    (info.bootstrap_store_info.master_addr, info.bootstrap_store_info.master_port)
                    for info in infos
                }
                assert len(places) == 1
                infos[0].store.set("turn", str(turn))
                assert infos[1].store.get("turn") == str(turn).encode()
                with pytest.raises(RuntimeError, match="no round/"):
                    infos[1].store.wait(["never"], timedelta(milliseconds=20))
            assert attacker.poll() is None
        finally:
            attacker.kill()
    assert nodes[0].shutdown()
    assert nodes[1].shutdown()


def together(*calls: Any) -> list[Any]:
    found: dict[int, Any] = {}
    threads = [
        threading.Thread(target=lambda at=at, call=call: found.__setitem__(at, call()))
        for at, call in enumerate(calls)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [found[at] for at in range(len(calls))]
