"""Folders of this user alone: which are safe to use, and in which of them the sockets of a run are.

Standard library only, any Python 3: ranks use it, and so does what a node executes before a bundle is unpacked.
"""

from __future__ import annotations

import os
import stat

LONGEST = 80
"""Bytes of the path of a folder: that of a unix socket in it holds 108."""


def doubt(folder: str) -> str:
    """Why another account may put something into a folder that is there, or in its place; "" if none can.

    Raises OSError.
    """
    info = os.stat(folder)
    owners = {info.st_uid, os.lstat(folder).st_uid}
    if owners != {os.getuid()} or info.st_mode & 0o022 or _is_shared(os.path.dirname(folder)):
        return "is not a folder of yours alone"
    return ""


def _is_shared(folder: str) -> bool:
    """Whether another account may rename what is in a folder. Raises OSError."""
    info = os.stat(folder)
    is_open = info.st_mode & 0o022 and not info.st_mode & stat.S_ISVTX
    return bool(is_open) or info.st_uid not in (0, os.getuid())


# --- sockets: nobody else may even read their folder ---


def candidates() -> list[str]:
    """Folders of this user's sockets, best first. DISTUI_SOCKET_DIR leaves no other one."""
    named = os.environ.get("DISTUI_SOCKET_DIR")
    if named:
        return [named]
    session = f"/run/user/{os.getuid()}"  # also of a process that was started without the variable
    runtime = dict.fromkeys((os.environ.get("XDG_RUNTIME_DIR") or session, session))
    return [
        *(os.path.join(folder, "distui") for folder in runtime),
        f"/tmp/distui-{os.getuid()}",
        os.path.join(os.path.expanduser("~"), ".distui-sockets"),
    ]


def unfit(folder: str) -> str:
    """Why sockets cannot be in a folder that is there or is to be made; "" where they can."""
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
        return f"is not a directory of yours alone (owner {info.st_uid}, mode {info.st_mode & 0o777:o})"
    return ""


def _uncreatable(parent: str) -> str:
    """Why no folder is made in `parent`: there is none, it cannot be written to, or another account may rename in it."""
    try:
        if _is_shared(parent) or not os.access(parent, os.W_OK | os.X_OK):
            return "cannot be created in a folder of another account"
    except OSError as error:
        return f"cannot be created ({error.strerror})"
    return ""


def make(folder: str) -> str:
    """Make a folder for sockets unless it is there; why sockets cannot be in it, "" where they can."""
    try:
        os.mkdir(folder, 0o700)
    except FileExistsError:
        pass
    except OSError as error:
        return f"cannot be created ({error.strerror})"
    return unfit(folder)


def find(run8: str, first: str = "") -> str:
    """The folder in which the sockets of a run are; where none is found that for new ones, `first` if it is usable."""
    usable = [folder for folder in candidates() if not unfit(folder)]
    for folder in usable:
        if any(os.path.lexists(os.path.join(folder, run8 + ending)) for ending in (".sock", ".run")):
            return folder
    if first in usable:
        return first
    return (usable or candidates())[0]


def place_of(socket: str) -> str:
    """The path of a socket, or where its owner binds it again and everybody finds it: the folder may be gone.

    A folder that is none of `candidates` was named by somebody: its sockets stay there.
    """
    folder, name = os.path.split(socket)
    if os.path.lexists(socket) or folder not in candidates():
        return socket
    return os.path.join(find(name.partition(".")[0], folder), name)
