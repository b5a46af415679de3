"""Open the logs that command-line arguments name: files, compressed files, archives and directories, as byte streams.

The bytes decide the file type, not the name. Nothing is unpacked to disk, and memory use is constant.
"""

from __future__ import annotations

import bz2
import gzip
import importlib
import io
import lzma
import os
import re
import stat
import tarfile
import time
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from ...presets.plurals import plural
from ..logs.gaps import Gap, stretches
from ..logs.gaps import read as read_gap
from ..run import clock, file_io
from ..run.errors import RunError
from ..run.formatting import size_text
from ..run.packages import install_extra
from .line_formats import NO_LOGS
from .log_text import BLOCK, SAMPLE

Named = tuple[str, Path]
"""Name of a file in findings, and its path."""

FILES, DEPTH, FOLDERS = 20_000, 4, 24
"""Maximum files per directory or archive, nested archives and compressed files, and nested directories."""
RATIO, FLOOR = 1000, 1 << 30
"""Reject archives above this compression ratio once FLOOR bytes are unpacked (zip-bomb guard)."""
HELD = 64 << 20
"""Maximum bytes of a zip that must be held in memory: nested or from a pipe."""
WRITER_S = 10.0
"""Seconds to wait until a process opens a named pipe for writing."""
HEADER = 1 << 20
"""Maximum bytes of a name or of attributes in a tar header."""

_NUMBERS = re.compile(r"(\d{1,18})")


class BrokenOff(Exception):
    """A compressed file cannot be read further. The text is the reason."""


class ByteStream:
    """A stream of bytes that is read once, with a peek at its beginning."""

    def __init__(self, read: Callable[[int], bytes], spent: Callable[[], int] | None = None) -> None:
        """`spent` returns the number of compressed bytes consumed so far; None for uncompressed data."""
        self._read, self._spent = read, spent
        self._ahead = b""
        self.count = 0
        """Number of bytes that were read, with those that were only peeked at."""
        self.broken = False

    def peek(self) -> bytes:
        """Return the next SAMPLE bytes; fewer only if the stream ends or breaks off earlier."""
        try:
            while len(self._ahead) < SAMPLE and (block := self._next(BLOCK)):
                self._ahead += block
        except BrokenOff:
            if not self._ahead:  # else the next read breaks off again
                raise
        return self._ahead[:SAMPLE]

    def read(self, size: int = BLOCK) -> bytes:
        """Return up to `size` bytes; b"" at the end. Raises BrokenOff."""
        if self._ahead:
            block, self._ahead = self._ahead[:size], self._ahead[size:]
            return block
        return self._next(size)

    def _next(self, size: int) -> bytes:
        try:
            block = self._read(size)
        except Exception as error:  # noqa: BLE001 decoders of damaged data raise anything
            self.broken = True
            raise BrokenOff(_words(error)) from None
        self.count += len(block)
        if self._spent is not None and self.count > FLOOR and self.count > RATIO * self._spent():
            raise BrokenOff(f"more than {RATIO:,} bytes per packed byte")
        return block


@dataclass(frozen=True)
class Source:
    """One log."""

    name: str
    stream: ByteStream
    given: bool = True
    """Whether the user named it, so that it must be a log, or distui found it in a directory or archive."""
    depth: int = 0
    """Number of archives and compressed files around it."""


@dataclass
class Unread:
    """Files that were not read, for the user."""

    sentences: list[str] = field(default_factory=list)
    no_logs: list[str] = field(default_factory=list)
    """Files of directories and archives that are no logs."""
    links: int = 0
    older: list[str] = field(default_factory=list)
    """Logs of attempts that have a newer attempt."""

    def __iter__(self) -> Iterator[str]:
        yield from self.sentences
        if self.no_logs:
            are = "is not a log" if len(self.no_logs) == 1 else "are not logs"
            yield f"{plural(len(self.no_logs), 'file')} {are}: {_some(self.no_logs, 4)}"
        if self.older:
            yield f"{plural(len(self.older), 'log')} of older attempts: {_some(self.older, 2)}"
        if self.links:
            yield f"{plural(self.links, 'symbolic link')} {'is' if self.links == 1 else 'are'} not followed"


def _some(names: Sequence[str], most: int) -> str:
    return ", ".join([*names[:most], "…"] if len(names) > most else names)


def sources(files: Iterable[Named], unread: Unread) -> Iterator[Source]:
    """Yield all logs in reading order. Read each one before the next. Raises RunError."""
    for name, path in files:
        if os.path.isdir(path):
            yield from _in_folder(name, path, unread)
            continue
        with closing(_named_pipe(name, path) or _open(name, path, os.O_RDONLY)) as file:
            yield from _unpacked(Source(name, ByteStream(file.read)), unread, file)


@contextmanager
def plain_source(name: str, path: Path) -> Iterator[Source]:
    """Open a run's regular file without unpacking it. Never blocks on a pipe. Raises RunError."""
    with closing(_open(name, path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)) as file:
        if not stat.S_ISREG(os.fstat(file.descriptor).st_mode):
            raise RunError(f"file {name} is not a regular file: distui reads only plain log files")
        yield Source(name, ByteStream(file.read))


class _OpenFile:
    """A file descriptor without buffering: a buffered file would take more than requested out of a pipe."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def read(self, size: int) -> bytes:
        return os.read(self.descriptor, size)

    def close(self) -> None:
        os.close(self.descriptor)


class _RegularFile(_OpenFile):
    """A file up to its size at opening time. Skips holes, and returns the lines that its cap removed as empty lines."""

    def __init__(self, descriptor: int, size: int, gap: Gap | None) -> None:
        super().__init__(descriptor)
        self._size, self._gap, self._at, self._lines = size, gap, 0, 0

    def read(self, size: int) -> bytes:
        begin, end = next(stretches(self.descriptor, self._at, self._gap), (self._size, self._size))
        if self._gap is not None and self._at < self._gap.end <= begin:
            self._lines = self._gap.lines
        self._at = begin
        if self._lines:
            given = min(size, self._lines)
            self._lines -= given
            return b"\n" * given
        data = os.pread(self.descriptor, max(0, min(size, end - begin, self._size - begin)), begin)
        self._at += len(data)
        return data


def _open(name: str, path: Path, flags: int) -> _OpenFile:
    """Open a file. Raises RunError, also for a device or a kernel file."""
    try:
        descriptor = os.open(path, flags | os.O_CLOEXEC)
    except OSError as error:
        raise RunError(why(name, error)) from None
    refusal = file_io.endless(descriptor, streams=True)
    if refusal:
        os.close(descriptor)
        raise RunError(
            f"file {name} {refusal}: pipe its content instead, as in `dmesg | distui diagnose -`"
        )
    about = os.fstat(descriptor)
    if not stat.S_ISREG(about.st_mode):
        return _OpenFile(descriptor)
    return _RegularFile(descriptor, about.st_size, read_gap(path, about.st_size))


class _NamedPipe(_OpenFile):
    def __init__(self, descriptor: int, first: bytes) -> None:
        """`first`: bytes that were read already."""
        super().__init__(descriptor)
        self._first = first

    def read(self, size: int) -> bytes:
        first, self._first = self._first[:size], self._first[size:]
        return first or super().read(size)


def _named_pipe(name: str, path: Path) -> _NamedPipe | None:
    """Open a named pipe, and wait for its writer; None for anything else. Raises RunError."""
    try:
        is_fifo = path.is_fifo()
    except OSError:  # a name that is too long, which opening the file reports
        return None
    if not is_fifo or os.path.realpath(path).startswith("/proc/"):  # a pipe of the shell: `<(…)`
        return None
    file = _open(name, path, os.O_RDONLY | os.O_NONBLOCK)
    end = clock.monotonic() + WRITER_S
    while clock.monotonic() < end:
        try:
            first = os.read(file.descriptor, BLOCK)
        except BlockingIOError:  # a writer has opened it
            first, end = b"", 0.0
        if first or not end:
            os.set_blocking(file.descriptor, True)
            return _NamedPipe(file.descriptor, first)
        time.sleep(WRITER_S / 200)
    file.close()
    raise RunError(f"no process writes into the named pipe {name}: start its writer first, or name a file")


def why(name: str | Path, error: OSError) -> str:
    """Return the message for a file that cannot be opened or read."""
    if isinstance(error, FileNotFoundError):
        return f"{name} does not exist: name log files, or a run (`distui ls` lists them)"
    return f"file {name} cannot be read ({(error.strerror or str(error)).lower()}): name log files that you may read"


def natural(text: str) -> list[tuple[bool, int, str]]:
    """Return a sort key that puts rank-2 before rank-10."""
    return [(part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in _NUMBERS.split(text)]


def _in_folder(name: str, path: Path, unread: Unread) -> Iterator[Source]:
    base = "" if name in (".", "./") else f"{name.rstrip('/')}/"
    count = 0
    for inner in _files_below(path, unread):
        if not _may_be_log(path / inner, base + inner, unread):
            continue
        if count >= FILES:
            unread.sentences.append(f"{name} holds more than {FILES:,} files: the rest is not read")
            return
        count += 1
        yield from _of_folder(base + inner, path / inner, unread)
    if not count:
        raise RunError(f"no log files in {name}: name another directory")


def _files_below(path: Path, unread: Unread) -> Iterator[str]:
    """Yield the files of a directory tree that are not hidden, by their names within it."""
    for folder, folders, files in os.walk(path):
        inner = os.path.relpath(folder, path)
        unread.links += sum(os.path.islink(os.path.join(folder, each)) for each in folders)
        too_deep = inner.count(os.sep) + 1 >= FOLDERS
        kept = [] if too_deep else [each for each in folders if not each.startswith((".", "__pycache__"))]
        folders[:] = sorted(kept, key=natural)
        for each in sorted(files, key=natural):
            if not each.startswith("."):
                yield os.path.normpath(os.path.join(inner, each))


def _may_be_log(path: Path, name: str, unread: Unread) -> bool:
    try:
        mode = path.lstat().st_mode
    except OSError:
        return True  # opening the file reports the error
    if stat.S_ISLNK(mode):
        unread.links += 1
        return False
    if not stat.S_ISREG(mode) or path.suffix.lower() in NO_LOGS:
        unread.no_logs.append(name)
        return False
    return True


def _of_folder(name: str, path: Path, unread: Unread) -> Iterator[Source]:
    """Open a directory's file with O_NONBLOCK, in case a pipe has replaced it."""
    try:
        file = _open(name, path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except RunError as error:
        unread.sentences.append(str(error).partition(": ")[0])
        return
    with closing(file):
        yield from _unpacked(Source(name, ByteStream(file.read), given=False), unread, file)


def _unpacked(source: Source, unread: Unread, file: _OpenFile | None = None) -> Iterator[Source]:
    """Yield the log, or the logs packed in it. `file`: the open file if it is the whole source. Raises RunError."""
    try:
        head = source.stream.peek()
        unpack = _packing(head)
        archive = _is_tar(head) or head.startswith(_ZIP)
        if (unpack is not None or archive) and source.depth >= DEPTH:
            raise BrokenOff(f"more than {DEPTH} archives lie within each other")
        if unpack is not None:
            inner = replace(source, stream=_unpack(source, unpack), depth=source.depth + 1)
            yield from _unpacked(inner, unread)
        elif archive:
            members = _of_tar(source) if _is_tar(head) else _of_zip(source, file)
            yield from _members(source, members, unread)
        else:
            yield source
    except BrokenOff as error:
        _report(source, str(error), unread)


def _report(source: Source, text: str, unread: Unread) -> None:
    if source.given:
        raise RunError(f"{source.name} cannot be unpacked ({text}): have it copied again")
    unread.sentences.append(f"{source.name} cannot be unpacked ({text})")


def _members(source: Source, members: Iterator[Source], unread: Unread) -> Iterator[Source]:
    """Yield the members that may be logs. If the archive breaks off, yield those before the break."""
    count, stream = 0, source.stream
    try:
        for member in _until_broken(members):
            stream = member.stream
            name = Path(member.name)
            if _is_hidden(name):
                continue
            if name.suffix.lower() in NO_LOGS:
                unread.no_logs.append(member.name)
                continue
            if count >= FILES:
                unread.sentences.append(
                    f"{source.name} holds more than {FILES:,} files: the rest is not read"
                )
                return
            count += 1
            shown = f"{source.name}:{member.name.removeprefix('./')}"[-1000:]
            yield from _unpacked(replace(member, name=shown, given=False, depth=source.depth + 1), unread)
    except BrokenOff as error:
        if not count:
            raise
        if stream.broken:  # the reader of the member has reported the error
            return
        unread.sentences.append(
            f"{source.name} breaks off in its file {count} ({error}): have it copied again"
        )
    if not count and source.given:
        raise RunError(f"no log files in {source.name}: name another archive")


def _is_hidden(name: Path) -> bool:
    return any(part.startswith(".") and part not in (".", "..") for part in name.parts)


def _until_broken(members: Iterator[Source]) -> Iterator[Source]:
    try:
        yield from members
    except Exception as error:  # noqa: BLE001 damaged archives raise anything
        raise BrokenOff(_words(error)) from None


class _Member(tarfile.TarInfo):
    """A tar header with a size limit for names and attributes, which are held in memory."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> _Member:
        member = super().frombuf(buf, encoding, errors)
        if member.type not in tarfile.REGULAR_TYPES and member.size > HEADER:
            raise BrokenOff(f"a name in it has {size_text(member.size)}")
        return member


def _is_tar(head: bytes) -> bool:
    try:
        tarfile.TarInfo.frombuf(head[:512], "utf-8", "surrogateescape")
    except (tarfile.TarError, ValueError):
        return False
    return True


def _of_tar(source: Source) -> Iterator[Source]:
    packed = _Ended(source.stream)
    with tarfile.open(fileobj=packed, mode="r|", tarinfo=_Member) as archive:  # type: ignore[call-overload]
        while (member := archive.next()) is not None:
            archive.members.clear()  # tarfile keeps all members
            if member.isreg() and not member.issparse():
                file: Any = archive.extractfile(member)
                yield Source(member.name, ByteStream(partial(_small_block, file.read1)))
    if packed.last.strip(b"\0"):  # tarfile takes a truncated header as the end
        raise BrokenOff("its end is missing")


class _Ended:
    """The bytes of a tar, and its last block, which is zero if the tar is complete."""

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream
        self.last = b""

    def read(self, size: int) -> bytes:
        block = self._stream.read(size)
        self.last = block[-512:] or self.last
        return block


def _small_block(read: Callable[[int], bytes], size: int) -> bytes:
    """Read small blocks: in a damaged archive the block of the last request is lost."""
    return read(min(size, 1 << 14))


_ZIP = (b"PK\x03\x04", b"PK\x05\x06")


def _of_zip(source: Source, file: _OpenFile | None) -> Iterator[Source]:
    """Yield a zip's members. The table is at the end, so a zip that cannot be read twice is held in memory."""
    if file is not None and stat.S_ISREG(os.fstat(file.descriptor).st_mode):
        data: Any = os.fdopen(os.dup(file.descriptor), "rb")
    else:
        data = io.BytesIO()
        while block := source.stream.read():
            data.write(block)
            if data.tell() > HELD:
                limit = size_text(HELD)
                raise BrokenOff(
                    f"a zip that is not a file of its own may have {limit}: unpack what it is in"
                )
    with data, zipfile.ZipFile(_few(data)) as archive:
        for info in sorted(archive.infolist(), key=lambda info: natural(info.filename)):
            if info.is_dir() or stat.S_ISLNK(info.external_attr >> 16):
                continue
            member: Any = archive.open(info)
            with member:
                yield Source(info.filename, ByteStream(member.read1, partial(max, 1, info.compress_size)))


def _few(data: Any) -> Any:
    """Return the data after a check that the zip's table is small enough for memory."""
    size = data.seek(0, os.SEEK_END)
    data.seek(max(0, size - (1 << 16) - 22))
    end = data.read()
    at = end.rfind(b"PK\x05\x06")
    count = int.from_bytes(end[at + 10 : at + 12], "little")
    listed = int.from_bytes(end[at + 12 : at + 16], "little")
    if at >= 0 and (count > 2 * FILES or listed > HELD):
        raise BrokenOff(f"it holds {count:,} files or more")
    data.seek(0)
    return data


def _zstd_file(stream: Any) -> Any:
    try:
        module = importlib.import_module("compression.zstd")  # since Python 3.14
    except ModuleNotFoundError:
        module = importlib.import_module("backports.zstd")
    return module.ZstdFile(stream)


_PACKINGS: tuple[tuple[bytes, Callable[[Any], Any]], ...] = (
    (b"\x1f\x8b", lambda stream: gzip.GzipFile(fileobj=stream)),
    (b"\xfd7zXZ\x00", lzma.LZMAFile),
    (b"BZh", bz2.BZ2File),
    (b"\x28\xb5\x2f\xfd", _zstd_file),
)
"""First bytes of compressed files, and the classes that read them."""


def _packing(head: bytes) -> Callable[[Any], Any] | None:
    return next((unpack for magic, unpack in _PACKINGS if head.startswith(magic)), None)


def _unpack(source: Source, file_class: Callable[[Any], Any]) -> ByteStream:
    packed = source.stream
    try:
        return ByteStream(file_class(packed).read1, lambda: packed.count)
    except ModuleNotFoundError:
        raise RunError(
            f"{source.name} is packed by zstd, which needs Python 3.14 or the package backports.zstd: "
            f"{install_extra('zstd')}, or unpack it with `zstd -d`"
        ) from None


def _words(error: BaseException) -> str:
    text = (str(error) or type(error).__name__).splitlines()[0].rstrip(".")[:200]
    return text if isinstance(error, BrokenOff) else text[:1].lower() + text[1:]
