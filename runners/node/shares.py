"""Shares of a live run: read-only sockets for other users of this host."""

from __future__ import annotations

import grp
import pwd
from typing import TypedDict

from ..run import run_directories
from ..run.commands import Share, Unshare
from ..run.errors import RunError
from ..run.wire.client import new_id
from .local_agent import with_link

MOST_ID = (1 << 32) - 2
"""Largest number of a user or a group in Linux."""


class Shared(TypedDict):
    """`share`."""

    ok: bool
    text: str
    socket: str
    """Path that the guest attaches to; "" if none was opened."""


async def shared(entry: run_directories.Entry, command: Share | Unshare) -> Shared:
    """Open or end shares of a run. Raises RunError if it has ended."""
    name = entry.record.name
    if run_directories.ended(entry):
        export = f"`distui export {name} FILE` writes it to a file, which `distui replay FILE` opens"
        raise RunError(f"{name} has ended, and only live runs are shared: {export}")
    done = await with_link(entry.record.run, lambda _, link: link.send(command))
    return Shared(ok=done.ok, text=done.text, socket=done.data.get("socket", ""))


def share_command(user: str | None, group: str | None, seconds: float | None) -> Share:
    """Return the request to share a run with a user or a group, by name or number. Raises RunError."""
    if (user is None) is (group is None):
        raise RunError("a share is for one user or one group: add --user NAME or --group NAME")
    if user is not None:
        return Share(new_id(), f"user {user}", user=_uid(user), seconds=seconds)
    assert group is not None
    return Share(new_id(), f"group {group}", group=_gid(group), seconds=seconds)


def _uid(name: str) -> int:
    """Return the number of a user. Raises RunError."""
    try:
        return pwd.getpwnam(name).pw_uid
    except KeyError:
        return _number("user", name)


def _gid(name: str) -> int:
    """Return the number of a group. Raises RunError."""
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        return _number("group", name)


def _number(kind: str, text: str) -> int:
    """Return a number that was typed instead of a name. Raises RunError."""
    if not text.isdecimal() or len(text) > 10 or int(text) > MOST_ID:
        raise RunError(f"unknown {kind} {text!r}: check the name, or write its number")
    return int(text)
