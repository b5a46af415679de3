"""Where the sockets of this user's runs are: the folder for new ones, and the folders in which older ones may be.

Standard library only, any Python 3: the bridge on a node uses it, too.
"""

from __future__ import annotations

import os
import stat

LONGEST = 80
"""Bytes of the path of a folder: that of a unix socket in it holds 108."""


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
        return _unsafe(os.path.dirname(folder))
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    if not stat.S_ISDIR(info.st_mode):
        return "is not a directory"
    if info.st_uid != os.getuid() or info.st_mode & 0o077:
        return f"is not a directory of yours alone (owner {info.st_uid}, mode {info.st_mode & 0o777:o})"
    return ""


def _unsafe(parent: str) -> str:
    """Why no folder is made in `parent`: there is none, it cannot be written to, or another account may rename in it."""
    try:
        info = os.stat(parent)
    except OSError as error:
        return f"cannot be created ({error.strerror})"
    shared = info.st_mode & 0o022 and not info.st_mode & stat.S_ISVTX
    if info.st_uid not in (0, os.getuid()) or shared or not os.access(parent, os.W_OK | os.X_OK):
        return "cannot be created in a folder of another account"
    return ""


def find(run8: str) -> str:
    """The folder in which the sockets of a run are; that for new ones where none is found."""
    usable = [folder for folder in candidates() if not unfit(folder)]
    for folder in usable:
        if any(os.path.lexists(os.path.join(folder, run8 + ending)) for ending in (".sock", ".run")):
            return folder
    return (usable or candidates())[0]
