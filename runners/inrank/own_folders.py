"""Folders that only this user can write to: check them, and find the one with the sockets of a run.

Standard library only, any Python 3: ranks use it, and a node executes it before a bundle is unpacked.
"""

from __future__ import annotations

import os
import stat

LONGEST = 80
"""Longest path of a folder in bytes; the path of a unix socket in it has at most 108."""


def doubt(folder: str) -> str:
    """Return why another account may change or replace an existing folder; "" if none can. Raises OSError."""
    info = os.stat(folder)
    owners = {info.st_uid, os.lstat(folder).st_uid}
    if owners != {os.getuid()} or info.st_mode & 0o022 or _is_shared(os.path.dirname(folder)):
        return "is not a folder that only you can write"
    return ""


def _is_shared(folder: str) -> bool:
    """Return whether another account may rename entries of a folder. Raises OSError."""
    info = os.stat(folder)
    is_open = info.st_mode & 0o022 and not info.st_mode & stat.S_ISVTX
    return bool(is_open) or info.st_uid not in (0, os.getuid())


# --- folders for sockets: with mode 0700 ---


def candidates() -> list[str]:
    """Return the folders for this user's sockets, best first. With DISTUI_SOCKET_DIR it is the only one."""
    named = os.environ.get("DISTUI_SOCKET_DIR")
    if named:
        return [named]
    session = f"/run/user/{os.getuid()}"  # also if XDG_RUNTIME_DIR is not set
    runtime = dict.fromkeys((os.environ.get("XDG_RUNTIME_DIR") or session, session))
    return [
        *(os.path.join(folder, "distui") for folder in runtime),
        f"/tmp/distui-{os.getuid()}",
        os.path.join(os.path.expanduser("~"), ".distui-sockets"),
    ]


def unfit(folder: str) -> str:
    """Return why a folder, which need not exist yet, cannot hold sockets; "" if it can."""
    if len(os.fsencode(folder)) > LONGEST:
        return "is too long for a unix socket"
    try:
        info = os.lstat(folder)
    except FileNotFoundError:
        return _uncreatable(os.path.dirname(folder))
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    if not stat.S_ISDIR(info.st_mode):
        return "is not a directory"
    if info.st_uid != os.getuid() or info.st_mode & 0o777 != 0o700:
        return f"is not a directory that only you can write (owner {info.st_uid}, mode {info.st_mode & 0o777:o})"
    return ""


def _uncreatable(parent: str) -> str:
    """Return why no folder can safely be created in `parent`: missing, not writable, or shared; else ""."""
    try:
        if _is_shared(parent) or not os.access(parent, os.W_OK | os.X_OK):
            return "cannot be created in a folder of another account"
    except OSError as error:
        return f"cannot be created ({error.strerror})"
    return ""


def make(folder: str) -> str:
    """Create a folder for sockets unless it exists. Return why it cannot hold sockets; "" if it can."""
    try:
        os.mkdir(folder, 0o700)
    except FileExistsError:
        pass
    except OSError as error:
        return f"cannot be created ({error.strerror})"
    return unfit(folder)


def find(run8: str, first: str = "") -> str:
    """Return the folder with the sockets of a run. If there is none, return a folder for new ones, `first` if usable."""
    usable = [folder for folder in candidates() if not unfit(folder)]
    for folder in usable:
        if any(os.path.lexists(os.path.join(folder, run8 + ending)) for ending in (".sock", ".run")):
            return folder
    if first in usable:
        return first
    return (usable or candidates())[0]


def place_of(socket: str) -> str:
    """Return the path of a socket or, if it was deleted, the path that its owner will bind again.

    A socket in a folder that is not in `candidates` (a user chose it) keeps its path.
    """
    folder, name = os.path.split(socket)
    if os.path.lexists(socket) or folder not in candidates():
        return socket
    return os.path.join(find(name.partition(".")[0], folder), name)
