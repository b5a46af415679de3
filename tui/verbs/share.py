"""share: let another user, or a group, of this host read a run."""

from __future__ import annotations

import argparse
import asyncio
import grp
import pwd
from typing import TypedDict

from ...runners.node.local_agent import with_link
from ...runners.run import run_directories
from ...runners.run.commands import Share, Unshare
from ...runners.run.errors import RunError
from ...runners.run.wire.client import new_id
from ..terminal import answer, complain

MOST_ID = (1 << 32) - 2
"""Largest number of a user or a group in Linux."""


class Shared(TypedDict):
    """`share`."""

    ok: bool
    text: str
    socket: str
    """Path that the guest attaches to; "" if none was opened."""


def share(options: argparse.Namespace) -> int:
    """Open a read-only socket for a guest, or close all of them. Raises RunError."""
    command = _command(options)
    entry = run_directories.resolve(options.run)
    name = entry.record.name
    if run_directories.ended(entry):
        export = f"`distui export {name} FILE` writes it to a file, which `distui replay FILE` opens"
        raise RunError(f"{name} has ended, and only live runs are shared: {export}")
    done = asyncio.run(with_link(entry.record.run, lambda _, link: link.send(command)))
    path = done.data.get("socket", "")
    if not done.ok:
        complain(done.text)
    if done.ok or options.json:
        lines = [f"{done.text}. To attach, type:", f"distui attach {path}"] if path else [done.text]
        answer(options.json, Shared(ok=done.ok, text=done.text, socket=path), lines)
    return 0 if done.ok else 1


def _command(options: argparse.Namespace) -> Share | Unshare:
    """Return the request to the server of the run. Raises RunError."""
    if options.off:
        return Unshare(new_id())
    if options.user is not None:
        return Share(new_id(), f"user {options.user}", user=_uid(options.user), seconds=options.seconds)
    if options.group is not None:
        return Share(new_id(), f"group {options.group}", group=_gid(options.group), seconds=options.seconds)
    raise RunError("a share is for one user or one group: add --user NAME or --group NAME")


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
    if not text.isdecimal() or int(text) > MOST_ID:
        raise RunError(f"unknown {kind} {text!r}: check the name, or write its number")
    return int(text)
