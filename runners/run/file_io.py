"""Files of distui: atomic writes with mode 0600, reads within limits; and identities of processes in files."""

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

from ...presets.base_dirs import private_folder
from .errors import RunError
from .proc import SYSTEM, read_stat

# --- folders and files only for this user, whatever the umask: 0700 and 0600 ---

UMASK = "DISTUI_UMASK"
"""Umask of the launching shell, in octal: ranks get it, while distui's own processes use a strict one."""


def opener(path: str, flags: int) -> int:
    """Open a file for `open(..., opener=opener)`; a new file gets mode 0600."""
    return os.open(path, flags | os.O_CLOEXEC, 0o600)


def check_owner(path: Path) -> None:
    """Raise RunError if a folder, or the link to it, belongs to another user; a missing folder is accepted.

    That user could plant files there, or make distui write into any other folder of this user.
    """
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
    """Create a folder with mode 0700, or close an existing one to other users. Raises RunError and OSError."""
    private_folder(path)
    check_owner(path)
    if stat.S_IMODE(path.stat().st_mode) & 0o077:
        path.chmod(0o700)


def users_umask() -> int:
    """Return the umask for a run's ranks: the launching shell's, else this process's."""
    try:
        return int(os.environ[UMASK], 8) & 0o777
    except (KeyError, ValueError):
        return umask()


def strict() -> None:
    """Set this process's umask to 077; `users_umask` still returns the earlier one."""
    os.environ[UMASK] = f"{users_umask():03o}"
    os.umask(0o077)


def umask() -> int:
    """Return the umask of this process without changing it."""
    with contextlib.suppress(OSError), open("/proc/self/status") as file:
        for line in file:
            if line.startswith("Umask:"):
                return int(line.split()[1], 8)
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


# --- files that a crash, a power cut or another program may have damaged, read within limits and without blocking ---
# All files of a run are read through these functions. They refuse everything that is not a regular file (a folder, a
# named pipe, a loop of links), and no content of a file raises anything but FileError.

MOST_DOCUMENT = 64 << 20
"""Maximum bytes of a document; the largest is a plan with the texts of its files."""
MOST_LINE = 8 << 20
"""Maximum bytes of a line; longer lines are skipped and never in memory."""
APPENDED = os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY | os.O_NOFOLLOW
"""Flags for appending to a file of a run. O_NOFOLLOW, because a copied run directory may have links to any file."""
KEEP_SIZE = 1
"""FALLOC_FL_KEEP_SIZE of fallocate(2): reserve blocks past the end without changing the file's size."""

T = TypeVar("T")


class FileError(Exception):
    """A file that cannot be read; the text has its path and the reason."""

    def __init__(self, path: Path, why: str, missing: bool = False) -> None:
        super().__init__(f"{path} {why}")
        self.name, self.why, self.missing = path.name, why, missing


def opened(path: Path, streams: bool = False) -> BinaryIO:
    """Open a regular file for reading, without waiting for a pipe's writer. Raises FileError.

    With `streams` (files that the user named), pipes and terminals are opened too, and block as with cat(1).
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
"""Folders of files that the kernel generates at reading: without a size, and some without an end."""


def endless(descriptor: int, streams: bool = False) -> str:
    """Why an open file must not be read (not a regular file, or endless), as the end of a sentence; else "".

    With `streams`, pipes and terminals may be read: their writer or the user ends them.
    """
    about = os.fstat(descriptor)
    if streams and stat.S_ISDIR(about.st_mode):
        return "cannot be read: Is a directory"
    if not stat.S_ISREG(about.st_mode):
        is_stream = stat.S_ISFIFO(about.st_mode) or os.isatty(descriptor)
        return "" if streams and is_stream else "is not a regular file"
    is_kernels = about.st_blocks == 0 and _real_path(descriptor).startswith(KERNELS)
    return "is a file of the kernel, which may have no end" if is_kernels else ""


def _real_path(descriptor: int) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:
        return ""  # a system without /proc


def head(path: Path, size: int, streams: bool = False) -> bytes:
    """Return at most the first `size` bytes of a file. Raises FileError. `streams`: see `opened`."""
    with opened(path, streams) as file:
        try:
            return file.read(size)
        except OSError as error:
            raise FileError(path, f"cannot be read: {error.strerror}") from None


def content(path: Path, most: int = MOST_DOCUMENT, streams: bool = False) -> bytes:
    """Return a whole file. Raises FileError, also for more than `most` bytes. `streams`: see `opened`."""
    data = head(path, most + 1, streams)
    if len(data) > most:
        raise FileError(path, f"has more than {most} bytes")
    return data


def piece(path: Path, offset: int, size: int) -> bytes:
    """Return at most `size` bytes from an offset; a negative offset counts from the end. Raises FileError."""
    with opened(path) as file:
        try:
            whole = os.fstat(file.fileno()).st_size
            file.seek(max(0, whole + offset) if offset < 0 else offset)
            return file.read(size)
        except OSError as error:
            raise FileError(path, f"cannot be read: {error.strerror}") from None


def written(descriptor: int, offset: int) -> tuple[int, int]:
    """Begin and end of the first written bytes at or after an offset; twice the file's size if there are none.

    Unwritten bytes are a hole: they read as zeros, and may be more than the disk has. Moves the file's position.
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
    """Decode the one JSON value of a file. Raises FileError."""
    data = content(path)
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        why = "is empty" if not data.strip(b"\0 \r\n\t") else f"is damaged: {_why(error)}"
        raise FileError(path, why) from None


def _why(error: Exception) -> str:
    return "it is nested too deep" if isinstance(error, RecursionError) else str(error)


def document_or_none(path: Path, kind: type[T]) -> T | None:
    """Decode the one JSON value of a file; None if it cannot be read."""
    try:
        return document(path, kind)
    except FileError:
        return None


def decoded(decoder: msgspec.json.Decoder[T], line: bytes) -> T | None:
    """Decode one line; None if it is torn, damaged, nested too deep, or of a kind unknown to this version."""
    try:
        return decoder.decode(line)
    except (msgspec.MsgspecError, RecursionError, ValueError):
        return None


def lines(path: Path, offset: int = 0) -> Iterator[tuple[int, bytes]]:
    """Yield each complete line from a byte offset on, as (offset after it, line); a too long line is b"".

    Bytes after the last newline are incomplete and not returned. Raises FileError.
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
    """Open a regular file for appending, and create it with mode 0600 if it is missing. Raises OSError."""
    descriptor = os.open(path, os.O_WRONLY | APPENDED, 0o600)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(22, "is not a regular file", str(path))
    os.set_blocking(descriptor, True)
    return os.fdopen(descriptor, "ab")


def keep_room(descriptor: int, offset: int, size: int) -> None:
    """Reserve blocks past the end of a file. Raises OSError without room or support."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.fallocate(descriptor, KEEP_SIZE, ctypes.c_long(offset), ctypes.c_long(size)):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


# --- identities of processes in files ---
# Host, boot, pid and start time together, so that a reused pid or a shared home causes no mistake.


class Identity(Struct, frozen=True):
    """Identity of a process, valid later and on other hosts that share the file system."""

    pid: int
    start_ticks: int
    """Field 22 of /proc/<pid>/stat: clock ticks after boot."""
    boot_id: str
    host: str
    socket: str = ""
    kind: str = ""


def start_ticks(pid: int) -> int | None:
    """Start time of a process in clock ticks after boot; None if it has ended or is a zombie."""
    stat = read_stat(pid)
    return None if stat is None or stat.state in ("Z", "X") else stat.started


@functools.cache
def boot_id() -> str:
    """Id of this boot of the machine; "" on a system other than Linux, which has no runs. Raises OSError."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except FileNotFoundError:
        if SYSTEM == "linux":
            raise
        return ""


def identify(pid: int | None = None, socket: str = "", kind: str = "") -> Identity:
    """Return the identity of a living process, by default of this one."""
    pid = os.getpid() if pid is None else pid
    return Identity(pid, start_ticks(pid) or 0, boot_id(), platform.node(), socket, kind)


def alive(who: Identity) -> bool:
    """Whether exactly this process still lives on this host."""
    return who.boot_id == boot_id() != "" and start_ticks(who.pid) == who.start_ticks


def elsewhere(who: Identity) -> bool:
    """Whether the process belongs to another host with this home: its state is unknown here.

    A machine whose host name has changed still has the same boot id.
    """
    return who.host != platform.node() and who.boot_id != boot_id()


def read(path: Path) -> Identity | None:
    """Read the identity in a file; None if it is missing or damaged."""
    return document_or_none(path, Identity)


def write(path: Path, who: Identity) -> None:
    """Write an identity atomically. Raises OSError."""
    write_atomically(path, msgspec.json.encode(who))


def write_synced(path: Path, data: bytes) -> None:
    """Write a file atomically, and sync it and its folder to disk. Raises OSError."""
    write_atomically(path, data, sync=True)
    sync(path.parent)


def sync(path: Path) -> None:
    """Sync a file's content, or a folder's names, to disk. Raises OSError."""
    number = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(number)
    finally:
        os.close(number)


async def keep(path: Path, who: Identity, again_s: float = 5.0) -> None:
    """Write an identity, with retries: a full disk must not keep a daemon from serving."""
    while True:
        try:
            write(path, who)
            return
        except OSError:
            await asyncio.sleep(again_s)


def write_atomically(path: Path, data: bytes, sync: bool = False, mode: int = 0o600) -> None:
    """Replace a file atomically; several nodes with one home may do so at the same time. Raises OSError."""
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
