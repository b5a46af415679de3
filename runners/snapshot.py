"""The fold of a journal's beginning, beside it: who reads a run need not fold all of it again.

The journal stays the truth. A snapshot counts only for a journal that begins with exactly the bytes that it was made
of, and for the code that folded them; any other is passed over, as if it were not there. Only the process that writes
the journal writes it.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import os
import zlib
from pathlib import Path

import msgspec
from msgspec import Struct

from . import file_io
from .model import Folded, Stamped
from .state import RunState

NAME = "journal.fold"
EVERY = 2000
"""Events after which another one is written."""
MOST_BYTES = 64 << 20
"""Of a state, unpacked; a larger one is damaged, or not worth it."""
MOST_SENT = 2 << 20
"""Bytes of a packed state that a viewer gets in one line."""
_PIECE = 1 << 20


class Snapshot(Struct, frozen=True, array_like=True):
    """The state after the first `size` bytes of a journal."""

    fold: str
    """Of the code; see `fold_id`."""
    run: str
    seq: int
    size: int
    crc: int
    """CRC-32 of these bytes."""
    state: bytes
    """Packed; see `packed`."""


@functools.cache
def fold_id() -> str:
    """Changes with the code that folds; "" where it cannot be read."""
    code = hashlib.sha256()
    try:
        for name in ("state.py", "model.py", "checkpoints.py", "formatting.py", "../presets/finding.py"):
            code.update((Path(__file__).parent / name).read_bytes())
    except OSError:
        return ""
    return code.hexdigest()[:32]


def packed(state: RunState) -> bytes:
    """A state as bytes. Raises ValueError for one with a number of more than 64 bits, as a script may report it."""
    try:
        return zlib.compress(msgspec.msgpack.encode(state), 1)
    except OverflowError as error:
        raise ValueError(str(error)) from None


def unpacked(data: bytes) -> RunState:
    """The state that `packed` was given. Raises ValueError."""
    try:
        inflate = zlib.decompressobj()
        plain = inflate.decompress(data, MOST_BYTES)
        if not inflate.eof:
            raise ValueError("is cut off, or too large")
        return msgspec.msgpack.decode(plain, type=RunState)
    except (zlib.error, msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(str(error)) from None


def take(state: RunState, stamped: Stamped) -> None:
    """Apply an event, or become the state that comes in its place. Raises ValueError for one that cannot be read."""
    if not isinstance(stamped.event, Folded):
        state.apply(stamped)
        return
    newer = unpacked(stamped.event.state)
    versions = state.version + newer.version, state.telemetry_version + newer.telemetry_version
    for part in dataclasses.fields(newer):
        setattr(state, part.name, getattr(newer, part.name))
    state.version, state.telemetry_version = versions[0] + 1, versions[1] + 1


def crc_of(descriptor: int, size: int, at: int = 0, crc: int = 0) -> int | None:
    """CRC-32 of the first `size` bytes of a file, the first `at` of which have `crc`; None where it is shorter.

    Raises OSError.
    """
    while at < size:
        data = os.pread(descriptor, min(_PIECE, size - at), at)
        if not data:
            return None
        crc, at = zlib.crc32(data, crc), at + len(data)
    return crc


def write(run_dir: Path, snapshot: Snapshot) -> None:
    """Put it beside the journal. Raises OSError."""
    file_io.write_atomically(run_dir / NAME, msgspec.msgpack.encode(snapshot))


def load(run_dir: Path, run: str, journal: Path) -> tuple[RunState, int] | None:
    """The state of the run, and of how many bytes of the journal it is; None where no snapshot can be believed."""
    try:
        snapshot = msgspec.msgpack.decode(file_io.content(run_dir / NAME, MOST_BYTES), type=Snapshot)
        if not fold_id() or (snapshot.fold, snapshot.run) != (fold_id(), run):
            return None
        with file_io.opened(journal) as file:
            if crc_of(file.fileno(), snapshot.size) != snapshot.crc:
                return None
        state = unpacked(snapshot.state)
    except (file_io.FileError, OSError, msgspec.MsgspecError, ValueError):
        return None
    return (state, snapshot.size) if (state.run, state.seq) == (run, snapshot.seq) else None
