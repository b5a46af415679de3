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
import select
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from ...presets.plurals import plural
from ..logs.gaps import Gap, stretches
from ..logs.gaps import read as read_gap
from ..run import file_io
from ..run.errors import RunError
from ..run.formatting import size_text
from .log_text import BLOCK, SAMPLE

Named = tuple[str, Path]
"""Name of a file in findings, and its path."""

FILES, DEPTH, FOLDERS = 20_000, 4, 24
"""Maximum files per directory or archive, nested archives and compressed files, and nested directories."""
SOON_MS = 1000
"""Milliseconds before the user sees that distui waits for a pipe."""
RATIO, FLOOR = 1000, 1 << 30
"""Reject archives above this compression ratio once FLOOR bytes are unpacked (zip-bomb guard)."""
MOST_UNPACKED = 256 << 30
"""Maximum unpacked bytes per compressed file."""
HELD = 64 << 20
"""Maximum bytes of a zip that must be held in memory (nested or from a pipe). An xz decoder may use twice as many."""
HEADER = 1 << 20
"""Maximum bytes of a name or of attributes in a tar header."""

_BROKEN = (
    OSError,
    EOFError,
    ValueError,
    NotImplementedError,
    struct.error,
    zlib.error,
    lzma.LZMAError,
    tarfile.TarError,
    zipfile.BadZipFile,
)
_NO_LOGS = frozenset(
    (
        ".py",
        ".pyc",
        ".ipynb",
        ".md",
        ".rst",
        ".toml",
        ".yaml",
        ".yml",
        ".ini",
        ".cfg",
        ".conf",
        ".sh",
        ".sbatch",
        ".slurm",
        ".bash",
        ".html",
        ".css",
        ".js",
        ".tsv",
        ".c",
        ".cc",
        ".cpp",
        ".cu",
        ".h",
        ".patch",
        ".diff",
        ".svg",
        ".lock",
        ".pid",
        ".prom",
    )
)
"""Extensions of files next to logs that mention errors without reporting any."""
_NUMBERS = re.compile(r"(\d{1,18})")


class BrokenOff(Exception):
    """A compressed file cannot be read further. The text is the reason."""


class ByteStream:
    """A stream of bytes that is read once, with a peek at its beginning."""

    def __init__(self, read: Callable[[int], bytes], spent: Callable[[], int] | None = None) -> None:
        """`spent` returns the number of compressed bytes consumed so far; None for uncompressed data."""
        self._read, self._spent = read, spent
        self._ahead = b""
        self._count = 0
        self.broken = False

    def peek(self, size: int = SAMPLE) -> bytes:
        """Return the next bytes. Fewer than `size` only if the stream ends or breaks off earlier."""
        while len(self._ahead) < size:
            try:
                block = self._next(BLOCK)
            except BrokenOff:
                if self._ahead:  # the next read breaks off again
                    break
                raise
            if not block:
                break
            self._ahead += block
        return self._ahead[:size]

    def read(self, size: int = BLOCK) -> bytes:
        """Return up to `size` bytes; b"" at the end. Raises BrokenOff."""
        if self._ahead:
            block, self._ahead = self._ahead[:size], self._ahead[size:]
            return block
        return self._next(size)

    def _next(self, size: int) -> bytes:
        try:
            block = self._read(size)
        except (BrokenOff, *_BROKEN) as error:
            self.broken = True
            raise BrokenOff(_words(error)) from None
        if self._spent is not None:
            self._count += len(block)
            if self._count > FLOOR and self._count > RATIO * self._spent():
                raise BrokenOff(f"more than {RATIO:,} bytes come out of each of its own")
            if self._count > MOST_UNPACKED:
                raise BrokenOff(f"more than {size_text(MOST_UNPACKED)} come out of it")
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
            some = ", ".join(self.no_logs[:4])
            if len(self.no_logs) > 4:
                some += ", …"
            are = "is no log" if len(self.no_logs) == 1 else "are no logs"
            yield f"{plural(len(self.no_logs), 'file')} {are}: {some}"
        if self.older:
            older = ", ".join(self.older[:2])
            if len(self.older) > 2:
                older += ", …"
            yield f"{plural(len(self.older), 'log')} of older attempts: {older}"
        if self.links:
            yield f"{plural(self.links, 'symbolic link')} {'is' if self.links == 1 else 'are'} not followed"


Waits = Callable[[str], None]
"""Called with the name of an empty pipe before distui waits for it."""


def silently(_name: str) -> None:
    """Wait without a message."""


def sources(files: Iterable[Named], unread: Unread, waits: Waits = silently) -> Iterator[Source]:
    """Yield all logs in reading order. Read each one before the next. Raises RunError."""
    for name, path in files:
        if os.path.isdir(path):
            yield from _in_folder(name, path, unread)
            continue
        is_pipe = _is_pipe(path)
        with closing(_open(name, path, os.O_RDONLY | (os.O_NONBLOCK if is_pipe else 0))) as file:
            if is_pipe:
                _wait_for_writer(file.descriptor, partial(waits, name))
            yield from _unpacked(Source(name, ByteStream(file.read)), unread, file)


def _is_pipe(path: Path) -> bool:
    try:
        return stat.S_ISFIFO(os.stat(path).st_mode)
    except OSError:
        return False  # opening the file reports the error


def _wait_for_writer(descriptor: int, waits: Callable[[], None]) -> None:
    """Wait until a pipe has data or its last writer closed it. A pipe without a writer has neither."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    if not poll.poll(SOON_MS):
        waits()
        poll.poll()
    os.set_blocking(descriptor, True)


@contextmanager
def plain_source(name: str, path: Path) -> Iterator[Source]:
    """Open a run's regular file without unpacking it. Never blocks on a pipe. Raises RunError."""
    with closing(_open(name, path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)) as file:
        if not stat.S_ISREG(os.fstat(file.descriptor).st_mode):
            raise RunError(f"file {name} is not a regular file: distui reads only plain log files")
        yield Source(name, ByteStream(file.read))


def is_flat(path: Path) -> bool:
    """Whether a path is one plain file or a pipe, not several files."""
    if os.path.isdir(path):
        return False
    if not os.path.isfile(path):
        return True
    try:
        with closing(_open(str(path), path, os.O_RDONLY)) as file:
            head = ByteStream(file.read).peek()
    except RunError:
        return True
    return _packing(head) is None and not _is_tar(head) and not head.startswith(_ZIP)


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


def why(name: str | Path, error: OSError) -> str:
    """Return the message for a file that cannot be opened or read."""
    if isinstance(error, FileNotFoundError):
        return f"{name} does not exist: name log files, or a run (`distui ls` lists them)"
    return f"file {name} cannot be read ({(error.strerror or str(error)).lower()}): name log files that you may read"


def natural(text: str) -> list[tuple[bool, int, str]]:
    """Return a sort key that puts rank-2 before rank-10."""
    return [(part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in _NUMBERS.split(text)]


def _in_folder(name: str, path: Path, unread: Unread) -> Iterator[Source]:
    base, count = ("" if name in (".", "./") else f"{name.rstrip('/')}/"), 0
    for folder, folders, files in os.walk(path):
        inner = os.path.relpath(folder, path)
        deep = inner.count(os.sep) + 1
        unread.links += sum(os.path.islink(os.path.join(folder, each)) for each in folders)
        kept = [
            each
            for each in folders
            if not each.startswith(".") and each != "__pycache__" and deep < FOLDERS
        ]
        folders[:] = sorted(kept, key=natural)
        for each in sorted(files, key=natural):
            within = os.path.normpath(os.path.join(inner, each))
            if each.startswith(".") or not _may_be_log(Path(folder, each), base + within, unread):
                continue
            if count >= FILES:
                unread.sentences.append(f"{name} holds more than {FILES:,} files: the rest is not read")
                return
            count += 1
            yield from _of_folder(base + within, Path(folder, each), unread)
    if not count:
        raise RunError(f"no log files in {name}: name another directory")


def _may_be_log(path: Path, name: str, unread: Unread) -> bool:
    try:
        mode = path.lstat().st_mode
    except OSError:
        return True  # opening the file reports the error
    if stat.S_ISLNK(mode):
        unread.links += 1
        return False
    if not stat.S_ISREG(mode) or path.suffix.lower() in _NO_LOGS:
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
            yield from _unpacked(replace(source, stream=unpack(source), depth=source.depth + 1), unread)
        elif archive:
            members = _of_tar(source) if _is_tar(head) else _of_zip(source, file)
            yield from _members(source, members, unread)
        else:
            yield source
    except BrokenOff as error:
        _report(source, str(error), unread)
    except OSError as error:
        if source.given:
            raise RunError(why(source.name, error)) from None
        unread.sentences.append(why(source.name, error).partition(": ")[0])


def _report(source: Source, text: str, unread: Unread) -> None:
    if source.given:
        raise RunError(f"{source.name} cannot be unpacked ({text}): have it copied again")
    unread.sentences.append(f"{source.name} cannot be unpacked ({text})")


def _members(source: Source, members: Iterator[Source], unread: Unread) -> Iterator[Source]:
    """Yield the members that may be logs. If the archive breaks off, yield those before the break."""
    count, stream = 0, source.stream
    try:
        for member in members:
            stream = member.stream
            name = Path(member.name)
            if any(part.startswith(".") and part not in (".", "..") for part in name.parts):
                continue
            if name.suffix.lower() in _NO_LOGS:
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
    except (BrokenOff, *_BROKEN) as error:
        if not count:
            raise BrokenOff(_words(error)) from None
        if stream.broken:  # the reader of the member has reported the error
            return
        unread.sentences.append(
            f"{source.name} breaks off in its file {count} ({_words(error)}): have it copied again"
        )
    if not count and source.given:
        raise RunError(f"no log files in {source.name}: name another archive")


class _Member(tarfile.TarInfo):
    """A tar header with a size limit for names and attributes, which are held in memory."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> _Member:
        member = super().frombuf(buf, encoding, errors)
        held = (
            tarfile.XHDTYPE,
            tarfile.XGLTYPE,
            tarfile.SOLARIS_XHDTYPE,
            tarfile.GNUTYPE_LONGNAME,
            tarfile.GNUTYPE_LONGLINK,
        )
        if member.type in held and member.size > HEADER:
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
                yield Source(member.name, ByteStream(partial(_some, file.read1)))
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


def _some(read: Callable[[int], bytes], size: int) -> bytes:
    """Read small blocks: in a damaged archive the block of the last request is lost."""
    return read(min(size, 1 << 14))


_ZIP = (b"PK\x03\x04", b"PK\x05\x06")


def _of_zip(source: Source, file: _OpenFile | None) -> Iterator[Source]:
    """Yield a zip's members. The table is at the end, so a zip that cannot be read twice is held in memory."""
    if file is not None and stat.S_ISREG(os.fstat(file.descriptor).st_mode):
        data: Any = os.fdopen(os.dup(file.descriptor), "rb")
    else:
        held = b"".join(iter(partial(_bounded, source.stream, [0]), b""))
        data = io.BytesIO(held)
    with data, zipfile.ZipFile(_few(data)) as archive:
        for info in sorted(archive.infolist(), key=lambda info: natural(info.filename)):
            if info.is_dir() or stat.S_ISLNK(info.external_attr >> 16):
                continue
            try:
                member: Any = archive.open(info)
            except (
                NotImplementedError,
                RuntimeError,
            ) as error:  # encrypted, or a compression method that Python lacks
                raise BrokenOff(str(error).lower()) from None
            with member:
                yield Source(info.filename, ByteStream(member.read1, partial(max, 1, info.compress_size)))


def _bounded(stream: ByteStream, held: list[int]) -> bytes:
    block = stream.read()
    held[0] += len(block)
    if held[0] > HELD:
        raise BrokenOff(
            f"a zip that is no file of its own may have {size_text(HELD)}: unpack what it is in"
        )
    return block


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


def _packing(head: bytes) -> Callable[[Source], ByteStream] | None:
    return next((unpack for magic, unpack in _PACKINGS if head.startswith(magic)), None)


class _PackedFile(io.RawIOBase):
    """A stream as a file object that counts the bytes read."""

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream
        self.count = 0

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        block = self._stream.read(min(size, 1 << 16) if size > 0 else 1 << 16)
        self.count += len(block)
        return block

    def readinto(self, buffer: Any) -> int:
        block = self.read(len(buffer))
        buffer[: len(block)] = block
        return len(block)


def _gzipped(source: Source) -> ByteStream:
    packed = _PackedFile(source.stream)
    file = gzip.GzipFile(fileobj=packed)
    return ByteStream(file.read1, lambda: packed.count)


def _streamed(make: Callable[[], Any], source: Source, size: int = 1 << 16) -> ByteStream:
    """Decompress bz2, lzma or zstd, `size` compressed bytes at a time. Streams may be concatenated."""
    packed, unpacker, rest = _PackedFile(source.stream), make(), b""

    def read(most: int) -> bytes:
        nonlocal unpacker, rest
        while True:
            if unpacker.eof:
                rest = unpacker.unused_data or packed.read(size)
                if not rest.strip(b"\0"):
                    return b""
                unpacker = make()
            elif unpacker.needs_input and not rest and not (rest := packed.read(size)):
                raise EOFError("it ended before its end marker was reached")
            block: bytes = unpacker.decompress(rest, most)
            rest = b""
            if block:
                return block

    return ByteStream(read, lambda: packed.count)


FRAMES = 512
"""Compressed bytes per call of zstd, which limits the output to 16 MiB."""


class _Frame:
    """A zstd frame from Python 3.14's module or the zstandard package, with the interface of bz2 and lzma."""

    def __init__(self, unpacker: Any, error: type[Exception]) -> None:
        self._unpacker, self._error = unpacker, error
        self.needs_input = True

    @property
    def eof(self) -> bool:
        return bool(self._unpacker.eof)

    @property
    def unused_data(self) -> bytes:
        return bytes(self._unpacker.unused_data)

    def decompress(self, data: bytes, _most: int) -> bytes:
        try:
            return bytes(self._unpacker.decompress(data))
        except self._error as error:
            raise BrokenOff(_words(error)) from None


def _zstandard(source: Source) -> ByteStream:
    try:
        own: Any = importlib.import_module("compression.zstd")
        return _streamed(lambda: _Frame(own.ZstdDecompressor(), own.ZstdError), source, FRAMES)
    except ModuleNotFoundError:
        pass
    try:
        package: Any = importlib.import_module("zstandard")
    except ModuleNotFoundError:
        raise RunError(
            f"{source.name} is packed by zstd, which needs Python 3.14 or the package zstandard: "
            "`pip install 'distui[zstd]'`, or unpack it with `zstd -d`"
        ) from None
    make = package.ZstdDecompressor().decompressobj
    return _streamed(lambda: _Frame(make(), package.ZstdError), source, FRAMES)


_PACKINGS: tuple[tuple[bytes, Callable[[Source], ByteStream]], ...] = (
    (b"\x1f\x8b", _gzipped),
    (b"\xfd7zXZ\x00", partial(_streamed, partial(lzma.LZMADecompressor, memlimit=HELD * 2))),
    (b"BZh", partial(_streamed, bz2.BZ2Decompressor)),
    (b"\x28\xb5\x2f\xfd", _zstandard),
)


def _words(error: BaseException) -> str:
    text = (str(error) or type(error).__name__).splitlines()[0].rstrip(".")[:200]
    return text if isinstance(error, BrokenOff) else text[:1].lower() + text[1:]
