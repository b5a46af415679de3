"""The runner's unix socket: commands in (one JSON object a line), pokes out.

A thread accepts and only sets state; the launcher's own loop acts.
"""

import contextlib
import json
import os
import socket
import struct
import threading


def same_user(connection):
    """Whether the peer of a unix socket runs under our uid (SO_PEERCRED)."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return struct.unpack("3i", raw)[1] in (os.geteuid(), 0)


def listen(path):
    """Bind a unix socket that only this user may use, replacing a stale one."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    old = os.umask(0o177)
    try:
        server.bind(path)
    finally:
        os.umask(old)
    server.listen(8)
    return server


class Control:
    """Serves `answer(request) -> dict`; `poke()` sends an empty line to every connection."""

    def __init__(self, path, answer):
        self._answer = answer
        self._peers = set()
        self._lock = threading.Lock()
        self._server = listen(path)
        threading.Thread(target=self._accept, name="distui-control", daemon=True).start()

    def poke(self):
        with self._lock:
            peers = list(self._peers)
        for peer in peers:
            with contextlib.suppress(OSError):
                peer.send(b"\n", socket.MSG_DONTWAIT)

    def _accept(self):
        while True:
            try:
                peer, _ = self._server.accept()
            except OSError:
                return
            if same_user(peer):
                threading.Thread(target=self._serve, args=(peer,), name="distui-peer", daemon=True).start()
            else:
                peer.close()

    def _serve(self, peer):
        with self._lock:
            self._peers.add(peer)
        try:
            with peer, peer.makefile("rb") as lines:
                for line in lines:
                    request = json.loads(line)
                    reply = dict(self._answer(request), id=request.get("id"))
                    peer.sendall(json.dumps(reply).encode() + b"\n")
        except (OSError, ValueError):
            pass
        finally:
            with self._lock:
                self._peers.discard(peer)
