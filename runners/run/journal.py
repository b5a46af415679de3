"""journal.jsonl has every event of a run in order. `chronicle.py` writes and folds it; `history.py` reads it back."""

from __future__ import annotations

import contextlib
import os
import stat
import zlib
from array import array
from collections.abc import Iterator
from pathlib import Path

import msgspec

from ...presets.plurals import plural
from ..inrank.control import FULL
from . import file_io, snapshot
from .model import (
    AttemptEnded,
    AttemptStarted,
    RankTick,
    RunCreated,
    RunEnded,
    RunPhase,
    Stamped,
)

NAME = "journal.jsonl"
END_FILE = "end.json"
"""Second copy of the run's end: a power cut may take the journal's last pages, or all of them."""
RESERVE_BYTES = 1 << 16
SYNCED = (AttemptStarted, AttemptEnded, RunEnded)
"""Events that are synced to disk before the run continues."""
_decoder = msgspec.json.Decoder(Stamped)


def decoded(line: bytes) -> Stamped | None:
    """Decode a line of a journal or of the runner's report; None if it is none."""
    return file_io.decoded(_decoder, line)


def read(
    run_dir: Path, after: int = 0, problems: list[str] | None = None, offset: int = 0
) -> Iterator[Stamped]:
    """Yield the events with seq greater than `after`, until the first unreadable place; append reasons to `problems`.

    `offset` is the byte to begin at, the start of a line.
    """
    problems, strange = [] if problems is None else problems, 0
    try:
        for _, line in file_io.lines(run_dir / NAME, offset):
            stamped = decoded(line)
            if stamped is None:
                strange += 1
            elif stamped.seq > after:
                yield stamped
    except file_io.FileError as error:
        problems.append(f"{error.name} {error.why}")
    if strange:
        problems.append(
            f"{NAME} has {plural(strange, 'line')} that cannot be read: damaged, or of another version"
        )


def is_of_run(stamped: Stamped) -> bool:
    """Whether an event happened to the run: others only mark the extent of a bundle (see `bundle_reader.opened`)."""
    event = stamped.event
    if isinstance(event, RankTick):
        return False
    return not isinstance(event, RunEnded) or event.phase is not RunPhase.EXPORTED


class Lines:
    """The lines of a journal for viewers, compressed to a tenth except for the newest."""

    BLOCK = 512

    def __init__(self) -> None:
        self._packed: list[bytes] = []
        self._open: list[bytes] = []
        self._numbers = array("q")

    def __len__(self) -> int:
        return len(self._numbers)

    @property
    def seq(self) -> int:
        """Seq of the last line; 0 without lines."""
        return self._numbers[-1] if self._numbers else 0

    @property
    def last(self) -> bytes:
        """The last line; b"" without lines."""
        return self.from_(len(self) - 1)[-1] if self._numbers else b""

    def append(self, seq: int, line: bytes) -> None:
        """Append a line, with its newline."""
        self._numbers.append(seq)
        self._open.append(line)
        if len(self._open) == self.BLOCK:
            self._packed.append(zlib.compress(b"".join(self._open), 1))
            self._open = []

    def after(self, seq: int) -> int:
        """Index of the first line with a greater seq; the number of lines if there is none."""
        return next((at for at, number in enumerate(self._numbers) if number > seq), len(self))

    def from_(self, index: int) -> list[bytes]:
        """Return lines from this index on, at least one if there is one."""
        block, first = divmod(index, self.BLOCK)
        if block >= len(self._packed):
            return self._open[first:]
        return zlib.decompress(self._packed[block]).splitlines(keepends=True)[first:]


class Journal:
    """The agent's writing end. Lines that a full disk refuses wait in memory, in order, until there is room."""

    def __init__(self, run_dir: Path) -> None:
        """Open the journal of a run; raise OSError if the path is not a regular file."""
        self._path = run_dir / NAME
        self._fd = os.open(self._path, os.O_RDWR | file_io.APPENDED, 0o600)
        if not stat.S_ISREG(os.fstat(self._fd).st_mode):
            os.close(self._fd)
            raise OSError(22, "is not a regular file", str(self._path))
        self._mend_torn_end()
        self._waiting = b""
        self._reserve = self._path.with_name(NAME + ".reserve")
        """Reserve file that is deleted on a full disk, for file systems without fallocate(2)."""
        self._lay_by()
        self.lines = Lines()
        """All lines that this process wrote, or read at its start."""
        self.sound = True
        """Whether every event of earlier processes was readable and in order."""

    def _mend_torn_end(self) -> None:
        """Cut an incomplete last line (crash, full disk) off, because it would merge with the next one."""
        size = end = os.fstat(self._fd).st_size
        while end:
            begin = max(0, end - (1 << 16))
            at = os.pread(self._fd, end - begin, begin).rfind(b"\n")
            if at >= 0:
                end = begin + at + 1
                break
            end = begin
        if end < size:
            os.ftruncate(self._fd, end)

    def _lay_by(self) -> None:
        """Reserve disk blocks for later events, so that ranks cannot fill the disk and events survive this process."""
        now = os.fstat(self._fd)
        kept = max(now.st_size, now.st_blocks * 512)
        if kept - now.st_size > RESERVE_BYTES // 2:
            return
        try:  # only the missing blocks: tmpfs releases all of a reservation that it cannot complete
            file_io.keep_room(self._fd, kept, now.st_size + RESERVE_BYTES - kept)
        except OSError as error:
            if error.errno not in FULL and not self._reserve.exists():
                with contextlib.suppress(OSError):
                    self._reserve.write_bytes(bytes(RESERVE_BYTES))

    def replay(self) -> Iterator[Stamped]:
        """Yield the events of an earlier agent."""
        problems: list[str] = []
        for stamped in read(self._path.parent, problems=problems):
            self.sound = self.sound and stamped.seq > self.seq
            self.lines.append(stamped.seq, msgspec.json.encode(stamped) + b"\n")
            yield stamped
        self.sound = self.sound and not problems

    @property
    def seq(self) -> int:
        return self.lines.seq

    def sum(self, before: tuple[int, int] = (0, 0)) -> tuple[int, int] | None:
        """Size of the file and its CRC-32; None while lines wait, or if the file cannot be read.

        `before` is an earlier result; the file has only grown since.
        """
        if self._waiting:
            return None
        try:
            size = os.fstat(self._fd).st_size
            last = self.lines.last
            if os.pread(self._fd, len(last), max(0, size - len(last))) != last:
                return None  # another program wrote to it
            crc = snapshot.crc_of(self._fd, size, *before)
        except OSError:
            return None
        return None if crc is None else (size, crc)

    @property
    def blocked(self) -> bool:
        """True while lines wait for room on the disk."""
        return bool(self._waiting)

    def append(self, stamped: Stamped) -> None:
        """Append an event with its seq already set, and flush."""
        line = msgspec.json.encode(stamped) + b"\n"
        self.lines.append(stamped.seq, line)
        self._waiting += line
        self.flush()
        if isinstance(stamped.event, SYNCED):
            with contextlib.suppress(OSError):
                os.fdatasync(self._fd)

    def flush(self) -> None:
        """Write the waiting lines. On OSError (no room) they stay."""
        while self._waiting:
            try:
                self._waiting = self._waiting[os.write(self._fd, self._waiting) :]
            except OSError as error:
                if error.errno not in FULL or not self._make_room():
                    return
        self._lay_by()

    def _make_room(self) -> bool:
        """Delete the reserve file; False if it does not exist."""
        try:
            self._reserve.unlink()
        except OSError:
            return False
        return True

    def keep_end(self, stamped: Stamped) -> None:
        """Write the run's end to end.json, or delete that file if the run continues."""
        path = self._path.with_name(END_FILE)
        with contextlib.suppress(OSError):
            if isinstance(stamped.event, RunEnded):
                file_io.write_synced(path, msgspec.json.encode(stamped))
            elif isinstance(stamped.event, RunCreated):
                path.unlink(missing_ok=True)

    def close(self) -> None:
        self.flush()
        with contextlib.suppress(OSError):
            self._reserve.unlink(missing_ok=True)
            os.ftruncate(self._fd, os.fstat(self._fd).st_size)  # releases the reserved blocks
        os.close(self._fd)
