"""Fold of a journal's first part, stored next to it, so that readers need not fold the whole journal.

The journal remains authoritative. A snapshot is valid only for a journal that begins with exactly its bytes, and for
the code that folded them; any other snapshot is ignored. Only the process that writes the journal writes snapshots.
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
"""Number of events between two snapshots."""
MOST_BYTES = 64 << 20
"""Maximum bytes of an unpacked state; a larger one is damaged, or not worth loading."""
MOST_SENT = 2 << 20
"""Maximum bytes of a packed state that a viewer receives in one line."""
FOLDING = (
    "state.py",
    "model.py",
    "samples.py",
    "pulse.py",
    "growth_watch.py",
    "log_files.py",
    "checkpoints.py",
    "formatting.py",
    "../../presets/finding.py",
)
"""Modules with the code that folds."""
_PIECE = 1 << 20


class Snapshot(Struct, frozen=True, array_like=True):
    """The state after the first `size` bytes of a journal."""

    fold: str
    """Id of the folding code; see `fold_id`."""
    run: str
    seq: int
    size: int
    crc: int
    """CRC-32 of these bytes."""
    state: bytes
    """Packed state; see `packed`."""


@functools.cache
def fold_id() -> str:
    """Hash of the code that folds; "" if it cannot be read."""
    code = hashlib.sha256()
    try:
        for name in FOLDING:
            code.update((Path(__file__).parent / name).read_bytes())
    except OSError:
        return ""
    return code.hexdigest()[:32]


def packed(state: RunState) -> bytes:
    """Pack a state. Raises ValueError for a number of more than 64 bits, which a script may report."""
    try:
        return zlib.compress(msgspec.msgpack.encode(state), 1)
    except OverflowError as error:
        raise ValueError(str(error)) from None


def unpacked(data: bytes) -> RunState:
    """Unpack a state. Raises ValueError."""
    try:
        inflate = zlib.decompressobj()
        plain = inflate.decompress(data, MOST_BYTES)
        if not inflate.eof:
            raise ValueError("is cut off, or too large")
        return msgspec.msgpack.decode(plain, type=RunState)
    except (zlib.error, msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(str(error)) from None


def take(state: RunState, stamped: Stamped) -> None:
    """Apply an event; a `Folded` replaces the whole state. Raises ValueError if its state cannot be read."""
    if not isinstance(stamped.event, Folded):
        state.apply(stamped)
        return
    newer = unpacked(stamped.event.state)
    versions = state.version + newer.version, state.telemetry_version + newer.telemetry_version
    for part in dataclasses.fields(newer):
        setattr(state, part.name, getattr(newer, part.name))
    state.version, state.telemetry_version = versions[0] + 1, versions[1] + 1


def crc_of(descriptor: int, size: int, at: int = 0, crc: int = 0) -> int | None:
    """CRC-32 of the first `size` bytes of a file; None if it is shorter. `crc` is that of its first `at` bytes.

    Raises OSError.
    """
    while at < size:
        data = os.pread(descriptor, min(_PIECE, size - at), at)
        if not data:
            return None
        crc, at = zlib.crc32(data, crc), at + len(data)
    return crc


def write(run_dir: Path, snapshot: Snapshot) -> None:
    """Write a snapshot next to the journal. Raises OSError."""
    file_io.write_atomically(run_dir / NAME, msgspec.msgpack.encode(snapshot))


def load(run_dir: Path, run: str, journal: Path) -> tuple[RunState, int] | None:
    """Return the state in a run's snapshot and the number of its journal bytes; None without a valid snapshot."""
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
