"""Where the sockets are: /tmp/distui-<uid>/, because a home may be on NFS and a socket path holds 108 bytes."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import struct
from pathlib import Path

from ..errors import RunError


def socket_dir() -> Path:
    """The directory of this user's sockets; DISTUI_SOCKET_DIR puts it elsewhere."""
    return Path(os.environ.get("DISTUI_SOCKET_DIR") or f"/tmp/distui-{os.getuid()}")


def ensure_socket_dir() -> Path:
    """Create it, or refuse one that somebody else may have planted. Raises RunError."""
    path = socket_dir()
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        found = path.lstat()
    except FileExistsError:
        raise RunError(
            f"{path} is not a directory: remove it, or set DISTUI_SOCKET_DIR to another path"
        ) from None
    except OSError as error:
        raise RunError(
            f"cannot create {path} ({error.strerror}): set DISTUI_SOCKET_DIR to a path you own"
        ) from None
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise RunError(
            f"{path} is not a directory of yours alone (owner {found.st_uid}, mode {found.st_mode & 0o777:o}): "
            "remove it, or set DISTUI_SOCKET_DIR to another path"
        )
    if len(str(path)) > 80:
        raise RunError(f"{path} is too long for a unix socket: set DISTUI_SOCKET_DIR to a shorter path")
    return path


def stem(run8: str) -> str:
    """Path prefix of all sockets of one run: `.sock` agent, `.run` runner, `.r<n>` hook of local rank n."""
    return str(socket_dir() / run8)


def peer_uid(connection: socket.socket) -> int:
    """Uid of the process at the other end (SO_PEERCRED)."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", raw)[1])


def remove_stale(path: Path) -> None:
    """Unlink a socket of ours that nobody listens on. Raises RunError for anything that is not ours."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode) or found.st_uid != os.getuid():
        raise RunError(f"{path} is in the way and is no socket of yours: remove it")
    path.unlink()


def sweep_sockets(run8: str) -> None:
    """Take away what a run that has ended left: launchers and ranks do not tidy up when they are killed."""
    for path in socket_dir().glob(f"{run8}.*"):
        with contextlib.suppress(OSError):
            if stat.S_ISSOCK(path.lstat().st_mode):
                path.unlink()
