"""The files of a read-only share: a directory outside of the run that one other user, or one group, can enter.

All sockets of a run are in a directory of mode 0700. A share has another directory and socket, so that nothing else of
the run comes within reach.
"""

from __future__ import annotations

import contextlib
import glob
import os
import socket
import struct
import tempfile
from pathlib import Path
from typing import NamedTuple

from ..inrank import own_folders
from .errors import RunError

FOLDER = "/tmp"
"""Parent of the directories: every account of a host can reach it."""
NAME = "run.sock"
UNMAPPED = 65534
"""Number of every user and group that a user namespace does not know."""

_OWNER, _USER, _OWNING_GROUP, _GROUP, _MASK, _OTHERS = 0x01, 0x02, 0x04, 0x08, 0x10, 0x20
"""Tags of the entries of an access list, in their order: see linux/posix_acl.h."""
_NO_ID = 0xFFFFFFFF
_ALL, _ENTER, _NOTHING = 7, 1, 0
_SO_PEERGROUPS = 59
"""Number of the socket option in Linux; Python has no name for it."""


class Peer(NamedTuple):
    """The process at the other end of a unix socket, by the kernel's record of its connect() or listen()."""

    pid: int
    """0 if it is in another pid namespace."""
    uid: int
    gid: int


def peer_of(connection: socket.socket) -> Peer:
    """Return the process at the other end."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return Peer(*struct.unpack("3i", raw))


def groups_of(connection: socket.socket) -> tuple[int, ...]:
    """Return the supplementary groups of the process at the other end; () if they are more than 256."""
    try:
        raw = connection.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, 1024)
    except OSError:
        return ()
    return struct.unpack(f"{len(raw) // 4}I", raw)


def make_folder(run8: str) -> Path:
    """Create the directory of a share, which only this user can enter yet. Raises RunError and OSError."""
    prefix = f"distui-share-{run8}-"
    if why := own_folders.unfit(f"{FOLDER}/{prefix}"):
        raise RunError(f"a directory in {FOLDER} {why}")
    return Path(tempfile.mkdtemp(prefix=prefix, dir=FOLDER))


def listen(folder: Path) -> socket.socket:
    """Bind the socket of a share; the directory decides who reaches it. Raises OSError."""
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        server.bind(str(folder / NAME))
        os.chmod(folder / NAME, 0o666)
        server.listen()
    except OSError:
        server.close()
        raise
    return server


def let_in(folder: Path, user: int | None, group: int | None) -> None:
    """Let one user or one group enter a directory, by an access list. Raises OSError.

    If the file system has no access lists, everybody can enter. The server then still rejects the others.
    """
    entries = [(_OWNER, _ALL, _NO_ID), (_OWNING_GROUP, _NOTHING, _NO_ID)]
    entries += [(_MASK, _ENTER, _NO_ID), (_OTHERS, _NOTHING, _NO_ID)]
    if user is not None:
        entries.append((_USER, _ENTER, user))
    if group is not None:
        entries.append((_GROUP, _ENTER, group))
    packed = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in sorted(entries))
    try:
        os.setxattr(folder, "system.posix_acl_access", packed)
    except OSError:
        os.chmod(folder, 0o711)


def remove(folder: Path) -> None:
    """Remove the directory of a share and its socket, if they exist."""
    with contextlib.suppress(OSError):
        (folder / NAME).unlink()
    with contextlib.suppress(OSError):
        folder.rmdir()


def is_folder(path: Path) -> bool:
    """Return whether a path is the directory of a share: it has nothing but the socket."""
    try:
        return not path.is_symlink() and {*os.listdir(path)} <= {NAME}
    except OSError:
        return False


def sweep(run8: str) -> None:
    """Remove the directories of an ended run's shares: a killed agent leaves them."""
    for folder in Path(FOLDER).glob(f"distui-share-{glob.escape(run8)}-*"):
        with contextlib.suppress(OSError):
            if folder.lstat().st_uid == os.getuid():
                remove(folder)


def owner_of(path: Path) -> int:
    """Return the uid of the user who shares at this path. Raises OSError, and RunError if others can replace it."""
    info = path.parent.stat()
    if info.st_mode & 0o022:
        raise RunError(
            f"{path.parent} can be changed by several users: a share is in a directory of its owner"
        )
    return info.st_uid
