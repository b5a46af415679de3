"""Files of distui: written atomically for their owner alone, read within limits; and which process a file
names."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import functools
import os
import platform
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, TypeVar

import msgspec
from msgspec import Struct

from ..presets.trusted_files import private_folder
from .errors import RunError
from .telemetry.proc import SYSTEM, read_stat

# --- folders and files that are this user's alone, whatever the umask: 0700 and 0600 ---

UMASK = "DISTUI_UMASK"
"""The umask of the shell that launched, in octal: the ranks have it, distui's own processes a strict one."""


def opener(path: str, flags: int) -> int:
    """For `open(..., opener=opener)`: what it creates is 0600."""
    return os.open(path, flags | os.O_CLOEXEC, 0o600)


def check_owner(path: Path) -> None:
    """Refuse a folder of another user, or behind another user's link, who could plant files in it,
    or have us write into any other folder of ours; none at all is fine. Raises RunError."""
    try:
        owner, linked_by = path.stat().st_uid, path.lstat().st_uid
    except OSError:
        return
    owner = linked_by if owner == os.geteuid() and linked_by != 0 else owner
    if owner != os.geteuid():
        raise RunError(
            f"{path} belongs to another user (uid {owner}): run distui as that user, or set XDG_STATE_HOME to a "
            "directory of your own"
        )


def make_own_folder(path: Path) -> None:
    """`private_folder` for distui alone: one that is there is closed to others. Raises RunError and OSError."""
    private_folder(path)
    check_owner(path)
    if stat.S_IMODE(path.stat().st_mode) & 0o077:
        path.chmod(0o700)


def users_umask() -> int:
    """What a run's ranks are to have: the launch's umask, else this process's own."""
    try:
        return int(os.environ[UMASK], 8) & 0o777
    except (KeyError, ValueError):
        return umask()


def strict() -> None:
    """Give this process a umask of 077; `users_umask` still has the other one."""
    os.environ[UMASK] = f"{users_umask():03o}"
    os.umask(0o077)


def umask() -> int:
    """The umask of this process, which asking does not change."""
    with contextlib.suppress(OSError), open("/proc/self/status") as file:
        for line in file:
            if line.startswith("Umask:"):
                return int(line.split()[1], 8)
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


# --- files that a crash, a power cut or another program may have spoilt, read within limits and without waiting ---
# Everything that distui keeps of a run is read here: what is no regular file is refused, whatever is in its place (a
# folder, a named pipe, a loop of links), and no content of a file raises anything but FileError.

MOST_DOCUMENT = 64 << 20
"""Bytes of a document; a plan with the texts of its files is the largest."""
MOST_LINE = 8 << 20
"""Bytes; a longer line is passed over and never in memory."""
APPENDED = os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY | os.O_NOFOLLOW
"""How a file of a run is opened to append to it. A run directory that was copied may hold links to any file."""
KEEP_SIZE = 1
"""fallocate(2): blocks behind a file's end, which stays where it is."""

T = TypeVar("T")


class FileError(Exception):
    """A file that cannot be read; the text names it and the reason."""

    def __init__(self, path: Path, why: str, missing: bool = False) -> None:
        super().__init__(f"{path} {why}")
        self.name, self.why, self.missing = path.name, why, missing


def opened(path: Path, streams: bool = False) -> BinaryIO:
    """A regular file, for reading; a pipe without a writer is not waited for. Raises FileError.

    `streams`: for a file that the user has named: a pipe or a terminal is opened, too, and waited for as by cat(1).
    """
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY
    try:
        descriptor = os.open(path, flags if streams else flags | os.O_NONBLOCK)
    except OSError as error:
        missing = isinstance(error, FileNotFoundError | NotADirectoryError)
        why = "is missing" if missing and not streams else f"cannot be read: {error.strerror}"
        raise FileError(path, why, missing) from None
    why = endless(descriptor, streams)
    if why:
        os.close(descriptor)
        raise FileError(path, why)
    return os.fdopen(descriptor, "rb")


KERNELS = ("/proc/", "/sys/")
"""Where files are made by the kernel as they are read: of no size, and some have no end."""


def endless(descriptor: int, streams: bool = False) -> str:
    """Why an open file is not read, as the end of a sentence: it is no regular file, or it may have no end; else "".

    `streams`: pipes and terminals are read, which somebody ends.
    """
    about = os.fstat(descriptor)
    if streams and stat.S_ISDIR(about.st_mode):
        return "cannot be read: Is a directory"
    if not stat.S_ISREG(about.st_mode):
        is_stream = stat.S_ISFIFO(about.st_mode) or os.isatty(descriptor)
        return "" if streams and is_stream else "is no regular file"
    is_kernels = about.st_blocks == 0 and _real_path(descriptor).startswith(KERNELS)
    return "is a file of the kernel, which may have no end" if is_kernels else ""


def _real_path(descriptor: int) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:
        return ""  # a system without /proc


def head(path: Path, size: int, streams: bool = False) -> bytes:
    """The first bytes of a file, at most `size`. Raises FileError. `streams`: see `opened`."""
    with opened(path, streams) as file:
        try:
            return file.read(size)
        except OSError as error:
            raise FileError(path, f"cannot be read: {error.strerror}") from None


def content(path: Path, most: int = MOST_DOCUMENT, streams: bool = False) -> bytes:
    """All of a file. Raises FileError, also for one of more than `most` bytes. `streams`: see `opened`."""
    data = head(path, most + 1, streams)
    if len(data) > most:
        raise FileError(path, f"has more than {most} bytes")
    return data


def piece(path: Path, offset: int, size: int) -> bytes:
    """At most `size` bytes from an offset on, which counts from the end where it is negative. Raises FileError."""
    with opened(path) as file:
        try:
            whole = os.fstat(file.fileno()).st_size
            file.seek(max(0, whole + offset) if offset < 0 else offset)
            return file.read(size)
        except OSError as error:
            raise FileError(path, f"cannot be read: {error.strerror}") from None


def written(descriptor: int, offset: int) -> tuple[int, int]:
    """Begin and end of the next bytes from an offset on that were written; both the file's size where none were.

    What was never written is a hole: it reads as zeros, and may be larger than the disk. Moves the file's position.
    """
    about = os.fstat(descriptor)
    size = max(about.st_size, offset)
    if about.st_blocks * 512 >= size:
        return offset, size
    try:
        begin = os.lseek(descriptor, offset, os.SEEK_DATA)
        return begin, os.lseek(descriptor, begin, os.SEEK_HOLE)
    except OSError as error:
        only_a_hole = error.errno == errno.ENXIO
        return size if only_a_hole else offset, size


def document(path: Path, kind: type[T]) -> T:
    """The one JSON value of a file. Raises FileError."""
    data = content(path)
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        why = "is empty" if not data.strip(b"\0 \r\n\t") else f"is damaged: {_why(error)}"
        raise FileError(path, why) from None


def _why(error: Exception) -> str:
    return "it is nested too deep" if isinstance(error, RecursionError) else str(error)


def document_or_none(path: Path, kind: type[T]) -> T | None:
    """The same; None where there is none that can be read."""
    try:
        return document(path, kind)
    except FileError:
        return None


def decoded(decoder: msgspec.json.Decoder[T], line: bytes) -> T | None:
    """One line; None for what is torn, garbage, too deep, or of a kind that this version does not have."""
    try:
        return decoder.decode(line)
    except (msgspec.MsgspecError, RecursionError, ValueError):
        return None


def lines(path: Path, offset: int = 0) -> Iterator[tuple[int, bytes]]:
    """Whole lines from a byte offset on, each with the offset behind it; b"" stands for one that is too long.

    What follows the last newline is still being written, or was torn. Raises FileError.
    """
    with opened(path) as file:
        try:
            file.seek(offset)
            while line := file.readline(MOST_LINE):
                offset += len(line)
                if line.endswith(b"\n"):
                    yield offset, line
                elif len(line) == MOST_LINE:
                    while line and not line.endswith(b"\n"):
                        offset = file.seek(written(file.fileno(), offset)[0])
                        line = file.readline(MOST_LINE)
                        offset += len(line)
                    yield offset, b""
        except OSError as error:
            raise FileError(path, f"cannot be read: {error.strerror}") from None


def appending(path: Path) -> BinaryIO:
    """A regular file to append to, made if there is none; for this user alone. Raises OSError."""
    descriptor = os.open(path, os.O_WRONLY | APPENDED, 0o600)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(22, "is no regular file", str(path))
    os.set_blocking(descriptor, True)
    return os.fdopen(descriptor, "ab")


def keep_room(descriptor: int, offset: int, size: int) -> None:
    """Reserve blocks for a file behind its end. Raises OSError: no room, or not supported."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.fallocate(descriptor, KEEP_SIZE, ctypes.c_long(offset), ctypes.c_long(size)):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


# --- which process a file names ---
# Host, boot, pid and start time together, so that neither a reused pid nor a shared home fools us.


class Identity(Struct, frozen=True):
    """A process, recognisable later and from another host that shares the file system."""

    pid: int
    start_ticks: int
    """Field 22 of /proc/<pid>/stat: clock ticks after boot."""
    boot_id: str
    host: str
    socket: str = ""
    kind: str = ""


def start_ticks(pid: int) -> int | None:
    """Start time of a process in clock ticks after boot; None when there is none, or it is a zombie."""
    stat = read_stat(pid)
    return None if stat is None or stat.state in ("Z", "X") else stat.started


@functools.cache
def boot_id() -> str:
    """Of this machine since it was booted; "" on a system that has none, on which no run can be. Raises OSError."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except FileNotFoundError:
        if SYSTEM == "linux":
            raise
        return ""


def identify(pid: int | None = None, socket: str = "", kind: str = "") -> Identity:
    """Identity of a living process, this one by default."""
    pid = os.getpid() if pid is None else pid
    return Identity(pid, start_ticks(pid) or 0, boot_id(), platform.node(), socket, kind)


def alive(who: Identity) -> bool:
    """Whether exactly that process still lives on this host."""
    return who.boot_id == boot_id() != "" and start_ticks(who.pid) == who.start_ticks


def elsewhere(who: Identity) -> bool:
    """Whether it belongs to another host (a shared home): its state is unknown here.

    A machine that was given another name meanwhile has still the same boot.
    """
    return who.host != platform.node() and who.boot_id != boot_id()


def read(path: Path) -> Identity | None:
    """The identity in a file; None when there is none or it is not whole."""
    return document_or_none(path, Identity)


def write(path: Path, who: Identity) -> None:
    """Write atomically. Raises OSError."""
    write_atomically(path, msgspec.json.encode(who))


def write_synced(path: Path, data: bytes) -> None:
    """The same, and it is on the disk itself, name and all, when this returns. Raises OSError."""
    write_atomically(path, data, sync=True)
    sync(path.parent)


def sync(path: Path) -> None:
    """Put a file's content, or the names in a folder, on the disk itself. Raises OSError."""
    number = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(number)
    finally:
        os.close(number)


async def keep(path: Path, who: Identity, again_s: float = 5.0) -> None:
    """Write it as soon as that is possible: a full disk does not keep a daemon from serving."""
    while True:
        try:
            write(path, who)
            return
        except OSError:
            await asyncio.sleep(again_s)


def write_atomically(path: Path, data: bytes, sync: bool = False, mode: int = 0o600) -> None:
    """Replace a file whole or not at all; several nodes may do so at once where they share a home. Raises OSError."""
    number, name = tempfile.mkstemp(".tmp", f".{path.name}.", path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(number, "wb") as file:
            file.write(data)
            if mode != 0o600:
                os.fchmod(file.fileno(), mode)
            if sync:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
