"""A connection between two runners of one run: each proves that it has the run's key before the other reads any content.

Handshake: the client sends magic and a nonce. The server answers with its nonce and an HMAC-SHA256 over both nonces.
The client answers with another HMAC. Both nonces and the run's key give one pair of keys per direction, so a recorded
message cannot be replayed. Each message is one frame: length (4 bytes, big-endian), HMAC over number, length and
encrypted content, and the encrypted content. The content is a list of byte strings with a length before each. It is
encrypted with SHAKE-256 of key and frame number; each pair of these is used once.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import select
import socket
import struct
import time
from collections.abc import Iterable

MAGIC = b"distui/1"
NONCE = 32
MAC = 32
HELLO = len(MAGIC) + NONCE
MAX_MESSAGE = 8 << 20
"""Bytes of content per message."""
KEY_FILE = "relay.key"
"""Name of the file in the run's directory that holds the run's key, in hex."""
GREETING_S = 5.0
"""Seconds for the handshake."""
_LENGTH = struct.Struct(">I")
HEAD = _LENGTH.size + MAC


class Broken(OSError):
    """The other end has no key of this run, has closed the connection, or sent an invalid frame."""


def read_key(run_dir: str, rendezvous: str) -> bytes | None:
    """Derive the key of one rendezvous from the run's key; None if the run has no valid key."""
    try:
        with open(os.path.join(run_dir, KEY_FILE)) as file:
            key = bytes.fromhex(file.read().strip())
    except (OSError, ValueError):
        return None
    return _derived(key, b"rendezvous", rendezvous.encode()) if len(key) >= 16 else None


def _derived(key: bytes, *parts: bytes) -> bytes:
    return hmac.digest(key, b"".join(_LENGTH.pack(len(part)) + part for part in parts), "sha256")


def proof(key: bytes, side: bytes, nonces: bytes) -> bytes:
    """Return the HMAC that proves the key for these nonces. `side`: b"server" or b"client"."""
    return _derived(key, b"proof", side, nonces)


def proves(given: bytes, key: bytes, side: bytes, nonces: bytes) -> bool:
    return hmac.compare_digest(given, proof(key, side, nonces))


class Seal:
    """One direction of a connection: encrypts its frames, or decrypts them."""

    def __init__(self, key: bytes, side: bytes, nonces: bytes) -> None:
        """`side`: the sender, b"server" or b"client"."""
        self._mac_key = _derived(key, b"mac", side, nonces)
        self._hide_key = _derived(key, b"hide", side, nonces)
        self._number = 0

    def seal(self, parts: Iterable[bytes]) -> bytes:
        """Make the next frame. Raises Broken for more than MAX_MESSAGE."""
        content = b"".join(_LENGTH.pack(len(part)) + part for part in parts)
        if len(content) > MAX_MESSAGE:
            raise Broken("a message of %d bytes is too large" % len(content))
        self._number += 1
        hidden = hide(content, self._hide_key, self._number)
        return _LENGTH.pack(len(hidden)) + self._mac(hidden) + hidden

    def open(self, head: bytes, hidden: bytes) -> list[bytes]:
        """Verify the next frame and return its parts. Raises Broken."""
        self._number += 1
        if not hmac.compare_digest(head[_LENGTH.size :], self._mac(hidden)):
            raise Broken("a frame was changed on its way, or is not the next")
        return _parts(hide(hidden, self._hide_key, self._number))

    def _mac(self, hidden: bytes) -> bytes:
        number = struct.pack(">QI", self._number, len(hidden))
        return hmac.digest(self._mac_key, number + hidden, "sha256")


def hide(data: bytes, key: bytes, number: int) -> bytes:
    """Encrypt or decrypt: XOR with SHAKE-256 of key and number. Each pair of these may be used once."""
    if not data:
        return data
    stream = hashlib.shake_256(key + number.to_bytes(8, "big")).digest(len(data))
    return (int.from_bytes(data, "big") ^ int.from_bytes(stream, "big")).to_bytes(len(data), "big")


def length(head: bytes) -> int:
    """Read the size of the content in bytes from the head of a frame. Raises Broken."""
    size = int(_LENGTH.unpack_from(head)[0])
    if size > MAX_MESSAGE:
        raise Broken("a frame of %d bytes is too large" % size)
    return size


def _parts(content: bytes) -> list[bytes]:
    parts, at = [], 0
    while at < len(content):
        end = at + _LENGTH.size
        size = int.from_bytes(content[at:end], "big")
        if end + size > len(content):
            raise Broken("a message ends too early")
        parts.append(content[end : end + size])
        at = end + size
    return parts


class Channel:
    """The client's end: one request at a time."""

    def __init__(self, connection: socket.socket, key: bytes) -> None:
        """Perform the handshake. Raises OSError; Broken if the other end does not have this key."""
        self._connection = connection
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        deadline = time.monotonic() + GREETING_S
        ours = os.urandom(NONCE)
        self._send(MAGIC + ours, deadline)
        answer = self._read(NONCE + MAC, deadline)
        nonces = ours + answer[:NONCE]
        if not proves(answer[NONCE:], key, b"server", nonces):
            raise Broken("what listens there does not have the key of this run")
        self._send(proof(key, b"client", nonces), deadline)
        self._out, self._in = Seal(key, b"client", nonces), Seal(key, b"server", nonces)

    def ask(self, parts: Iterable[bytes], seconds: float) -> list[bytes]:
        """Send a message and return the answer. Raises OSError; then close the channel."""
        deadline = time.monotonic() + seconds
        self._send(self._out.seal(parts), deadline)
        head = self._read(HEAD, deadline)
        return self._in.open(head, self._read(length(head), deadline))

    def idle(self) -> bool:
        """Return whether it is open, and no data came since the last answer."""
        return not select.select([self._connection], [], [], 0)[0]

    def close(self) -> None:
        self._connection.close()

    def _send(self, data: bytes, deadline: float) -> None:
        self._connection.settimeout(_left(deadline))
        self._connection.sendall(data)

    def _read(self, size: int, deadline: float) -> bytes:
        pieces = []
        while size:
            self._connection.settimeout(_left(deadline))
            piece = self._connection.recv(min(size, 1 << 20))
            if not piece:
                raise Broken("the other end hung up")
            pieces.append(piece)
            size -= len(piece)
        return b"".join(pieces)


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise socket.timeout("no answer in time")
    return left


def dial(host: str, port: int, key: bytes, seconds: float = GREETING_S) -> Channel:
    """Connect to the coordinator of a run. Raises OSError."""
    connection = socket.create_connection((host, port), seconds)
    try:
        return Channel(connection, key)
    except OSError:
        connection.close()
        raise
