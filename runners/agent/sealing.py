"""Frames that may lie where anybody writes: sealed with the run's relay key, so that only its agents can make them.

A stream begins with two nonces, one of each side, and its keys come from the relay key and both: what was recorded of
another stream fails. Each frame carries its number in its direction, inside the HMAC-SHA256. What a stream carries is
also hidden (XOR with SHAKE-256 of key, direction and number, no pair of which occurs twice): a command to restart may
hold a token, and the store is open to the cluster's network.

Frame: kind (1 byte), stream (16: the opener's nonce), number (8, big-endian), MAC (32), payload.
"""

from __future__ import annotations

import enum
import hashlib
import hmac
import os
import struct
from pathlib import Path

KEY_FILE = "relay.key"
MAX_FRAME = 64 << 10
"""Bytes, as runners/inrank/mailbox.py has it."""
_HEAD = struct.Struct(">B16sQ")
_MAC = 32
MAX_PAYLOAD = MAX_FRAME - _HEAD.size - _MAC
NONCE = 16


class Kind(enum.IntEnum):
    """What a frame is."""

    OPEN = 1
    """By the opener: there is to be a stream."""
    ACCEPT = 2
    """By the other side; its nonce is the payload."""
    DATA = 3
    TAKEN = 4
    """How many DATA frames were consumed, 8 bytes: room for more."""
    END = 5
    """The stream is over; the payload is a sentence, or empty."""
    UNKNOWN = 6
    """There is no such stream here (any more)."""


class Rejected(Exception):
    """A frame that this run's agents did not make for this place, or not for this time."""


class Cut(Rejected):
    """A genuine frame with others missing before it: the stream cannot go on."""


def read_key(run_dir: Path) -> bytes | None:
    """The relay key of a run's part; None when it has none."""
    try:
        key = bytes.fromhex((run_dir / KEY_FILE).read_text().strip())
    except (OSError, ValueError):
        return None
    return key if len(key) >= 16 else None


def new_nonce() -> bytes:
    return os.urandom(NONCE)


def header(frame: bytes) -> tuple[Kind, bytes]:
    """Kind and stream, as the frame claims them. Raises Rejected."""
    try:
        kind, stream, _ = _HEAD.unpack_from(frame)
        return Kind(kind), stream
    except (struct.error, ValueError):
        raise Rejected("it is no frame") from None


def _derived(key: bytes, *parts: bytes) -> bytes:
    return hmac.digest(key, b"\0".join(parts), hashlib.sha256)


def _mac(key: bytes, ends: tuple[int, int], head: bytes, payload: bytes) -> bytes:
    return hmac.digest(key, struct.pack(">HH", *ends) + head + payload, hashlib.sha256)


def _split(frame: bytes) -> tuple[bytes, bytes, bytes]:
    return frame[: _HEAD.size], frame[_HEAD.size : _HEAD.size + _MAC], frame[_HEAD.size + _MAC :]


class Greeting:
    """The frames outside a stream's own keys: OPEN, ACCEPT, UNKNOWN. Made and checked with the relay key."""

    def __init__(self, key: bytes) -> None:
        self._key = _derived(key, b"greeting")

    def seal(self, kind: Kind, stream: bytes, ends: tuple[int, int], payload: bytes = b"") -> bytes:
        """`ends`: from which node to which."""
        head = _HEAD.pack(kind, stream, 0)
        return head + _mac(self._key, ends, head, payload) + payload

    def open(self, frame: bytes, ends: tuple[int, int]) -> bytes:
        """The payload. Raises Rejected."""
        head, mac, payload = _split(frame)
        if not hmac.compare_digest(mac, _mac(self._key, ends, head, payload)):
            raise Rejected("its MAC is wrong")
        return payload


class Seal:
    """One direction of one stream: makes its frames, or checks them."""

    def __init__(
        self, key: bytes, stream: bytes, nonce: bytes, ends: tuple[int, int], by_opener: bool
    ) -> None:
        way = b"from the opener" if by_opener else b"to the opener"
        self._mac_key = _derived(key, b"mac", way, stream, nonce)
        self._hide_key = _derived(key, b"hide", way, stream, nonce)
        self._stream, self._ends = stream, ends
        self._number = 0

    def seal(self, kind: Kind, payload: bytes = b"") -> bytes:
        """The next frame."""
        self._number += 1
        head = _HEAD.pack(kind, self._stream, self._number)
        hidden = self._hide(payload, self._number)
        return head + _mac(self._mac_key, self._ends, head, hidden) + hidden

    def open(self, frame: bytes) -> tuple[Kind, bytes]:
        """Kind and payload of the next frame. Raises Rejected, and Cut where one before it is missing."""
        head, mac, hidden = _split(frame)
        if not hmac.compare_digest(mac, _mac(self._mac_key, self._ends, head, hidden)):
            raise Rejected("its MAC is wrong")
        kind, _, number = _HEAD.unpack(head)
        if number <= self._number:
            raise Rejected("it was here before")
        if number != self._number + 1:
            raise Cut("frames before it are missing")
        self._number = number
        return Kind(kind), self._hide(hidden, number)

    def _hide(self, data: bytes, number: int) -> bytes:
        """Hide, or show again."""
        if not data:
            return data
        stream = hashlib.shake_256(self._hide_key + number.to_bytes(8, "big")).digest(len(data))
        return (int.from_bytes(data, "big") ^ int.from_bytes(stream, "big")).to_bytes(len(data), "big")
