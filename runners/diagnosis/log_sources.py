"""The logs that names on a command line mean: files, packed ones, archives, directories; each as a stream of its bytes.

What a file is shows in its bytes, not in its name. Nothing is unpacked to disk, and memory stays flat.
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
from .. import file_io
from ..errors import RunError
from ..formatting import size_text
from ..logs.gaps import Gap, stretches
from ..logs.gaps import read as read_gap
from .log_text import BLOCK, SAMPLE

Named = tuple[str, Path]
"""What a file is called in findings, and where it is."""

FILES, DEPTH, FOLDERS = 20_000, 4, 24
"""Files of one directory or archive that are read; archives and packed files within each other; directories likewise."""
SOON_MS = 1000
"""Milliseconds after which somebody is told that a pipe is waited for."""
RATIO, FLOOR = 1000, 1 << 30
"""A packed file of which more than so many bytes come for each of its own, once so many bytes have come, is no log."""
MOST_UNPACKED = 256 << 30
"""Bytes that are read of one packed file."""
HELD = 64 << 20
"""Bytes of a zip within another archive or a pipe, which is held in memory, and of an xz file's dictionary."""
HEADER = 1 << 20
"""Bytes of a name or of attributes in a tar."""

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
"""What stands beside logs in their directories, and speaks of errors without having any."""
_NUMBERS = re.compile(r"(\d{1,18})")


class BrokenOff(Exception):
    """A packed file cannot be read further; the text says why."""


class ByteStream:
    """Bytes that come once, whose beginning may be seen before they are read."""

    def __init__(self, read: Callable[[int], bytes], spent: Callable[[], int] | None = None) -> None:
        """`spent`: how many packed bytes were taken for what was read; None for what is not packed."""
        self._read, self._spent = read, spent
        self._ahead = b""
        self._count = 0
        self.broken = False

    def peek(self, size: int = SAMPLE) -> bytes:
        """The next bytes: fewer only where the stream ends, or breaks off, before."""
        while len(self._ahead) < size:
            try:
                block = self._next(BLOCK)
            except BrokenOff:
                if self._ahead:  # it breaks off again once that is read
                    break
                raise
            if not block:
                break
            self._ahead += block
        return self._ahead[:size]

    def read(self, size: int = BLOCK) -> bytes:
        """Some bytes; b"" at the end. Raises BrokenOff."""
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
    """Whether the user named it, so that it has to be a log; else it was found in a directory or an archive."""
    depth: int = 0
    """Of archives and packed files around it."""


@dataclass
class Unread:
    """What was left out, for the user."""

    sentences: list[str] = field(default_factory=list)
    no_logs: list[str] = field(default_factory=list)
    """Files of directories and archives that are none."""
    links: int = 0
    older: list[str] = field(default_factory=list)
    """Logs of attempts of which there is a newer one."""

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
"""Called with the name of a pipe to which nothing has been written yet, before it is waited for."""


def silently(_name: str) -> None:
    """Wait without a word."""


def sources(files: Iterable[Named], unread: Unread, waits: Waits = silently) -> Iterator[Source]:
    """All logs, in the order in which they are to be read, each to be read before the next. Raises RunError."""
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
        return False  # opening it says why


def _wait_for_writer(descriptor: int, waits: Callable[[], None]) -> None:
    """Wait until a pipe holds something or its last writer has closed it; without a writer it is neither."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    if not poll.poll(SOON_MS):
        waits()
        poll.poll()
    os.set_blocking(descriptor, True)


@contextmanager
def plain_source(name: str, path: Path) -> Iterator[Source]:
    """A file of a run that is read as it is, packed or not; nothing waits for a pipe in its place. Raises RunError."""
    with closing(_open(name, path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)) as file:
        if not stat.S_ISREG(os.fstat(file.descriptor).st_mode):
            raise RunError(f"file {name} is not a regular file: distui reads only plain log files")
        yield Source(name, ByteStream(file.read))


def is_flat(path: Path) -> bool:
    """Whether a name means one plain file or a pipe, not several files."""
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
    """A file of the operating system: io's own would read ahead, which takes what was not asked for out of a pipe."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def read(self, size: int) -> bytes:
        return os.read(self.descriptor, size)

    def close(self) -> None:
        os.close(self.descriptor)


class _RegularFile(_OpenFile):
    """A file as it was when it was opened: holes in it are passed over, and what its cap left out are empty lines."""

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
    """Raises RunError, also for a device and for a file of the kernel."""
    try:
        descriptor = os.open(path, flags | os.O_CLOEXEC)
    except OSError as error:
        raise RunError(why(name, error)) from None
    refusal = file_io.endless(descriptor, streams=True)
    if refusal:
        os.close(descriptor)
        raise RunError(
            f"file {name} {refusal}: copy what is wanted of it, as in `dmesg | distui diagnose -`"
        )
    about = os.fstat(descriptor)
    if not stat.S_ISREG(about.st_mode):
        return _OpenFile(descriptor)
    return _RegularFile(descriptor, about.st_size, read_gap(path, about.st_size))


def why(name: str | Path, error: OSError) -> str:
    """Why a file cannot be opened or read, as a message."""
    if isinstance(error, FileNotFoundError):
        return f"{name} does not exist: name log files, or a run (`distui ls` lists them)"
    return f"file {name} cannot be read ({(error.strerror or str(error)).lower()}): name log files that you may read"


def natural(text: str) -> list[tuple[bool, int, str]]:
    """A key for sorting in which rank-2 comes before rank-10."""
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
        raise RunError(f"no log files in {name}: name the directory that has them")


def _may_be_log(path: Path, name: str, unread: Unread) -> bool:
    try:
        mode = path.lstat().st_mode
    except OSError:
        return True  # opening it says why
    if stat.S_ISLNK(mode):
        unread.links += 1
        return False
    if not stat.S_ISREG(mode) or path.suffix.lower() in _NO_LOGS:
        unread.no_logs.append(name)
        return False
    return True


def _of_folder(name: str, path: Path, unread: Unread) -> Iterator[Source]:
    """O_NONBLOCK: nothing waits where somebody has put a pipe there meanwhile."""
    try:
        file = _open(name, path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except RunError as error:
        unread.sentences.append(str(error).partition(": ")[0])
        return
    with closing(file):
        yield from _unpacked(Source(name, ByteStream(file.read), given=False), unread, file)


def _unpacked(source: Source, unread: Unread, file: _OpenFile | None = None) -> Iterator[Source]:
    """The log itself, or those that are packed in it; `file`: where the whole source is one file. Raises RunError."""
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
    """Those that may be logs; of an archive that breaks off those before."""
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
        if stream.broken:  # whoever read it has reported that
            return
        unread.sentences.append(
            f"{source.name} breaks off in its file {count} ({_words(error)}): have it copied again"
        )
    if not count and source.given:
        raise RunError(f"no log files in {source.name}: name the archive that has them")


class _Member(tarfile.TarInfo):
    """A header of a tar, whose names and attributes are of a size that fits into memory."""

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
            archive.members.clear()  # it keeps all that it has seen
            if member.isreg() and not member.issparse():
                file: Any = archive.extractfile(member)
                yield Source(member.name, ByteStream(partial(_some, file.read1)))
    if packed.last.strip(b"\0"):  # Python takes a header that is cut for the end
        raise BrokenOff("its end is missing")


class _Ended:
    """The bytes of a tar, and the last of them: zeros where it is whole."""

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream
        self.last = b""

    def read(self, size: int) -> bytes:
        block = self._stream.read(size)
        self.last = block[-512:] or self.last
        return block


def _some(read: Callable[[int], bytes], size: int) -> bytes:
    """Little at a time: where an archive is torn, what was asked for last is lost."""
    return read(min(size, 1 << 14))


_ZIP = (b"PK\x03\x04", b"PK\x05\x06")


def _of_zip(source: Source, file: _OpenFile | None) -> Iterator[Source]:
    """Its table is at its end: one that cannot be read twice is held in memory."""
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
            ) as error:  # encrypted, or packed in a way that Python has not
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
    """The same, after its last record says that it lists so many files as fit into memory."""
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
    """A stream as a file, for what wants one, and how much was read of it."""

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
    """Of bz2, lzma and zstd, `size` packed bytes at a time: several packed texts may follow one another."""
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
"""Bytes that are given to zstd at a time: not more than 16 MiB come out of them."""


class _Frame:
    """A frame of zstd, by Python 3.14's own module or the package; both in the form of bz2's and lzma's."""

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
