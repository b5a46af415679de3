"""share: let another user, or a group, of this host read a run."""

from __future__ import annotations

import argparse
import asyncio
import shlex

from ...runners.node.shares import share_command, shared
from ...runners.run import run_directories
from ...runners.run.commands import Share, Unshare
from ...runners.run.wire.client import new_id
from ..terminal import answer, complain


def share(options: argparse.Namespace) -> int:
    """Open a read-only socket for a guest, or close all of them. Raises RunError."""
    if options.off:
        command: Share | Unshare = Unshare(new_id())
    else:
        command = share_command(options.user, options.group, options.seconds)
    done = asyncio.run(shared(run_directories.resolve(options.run), command))
    text, path = done["text"], done["socket"]
    if not done["ok"]:
        complain(text)
    if done["ok"] or options.json:
        lines = [f"{text}. To attach, type:", f"distui attach {shlex.quote(path)}"] if path else [text]
        answer(options.json, done, lines)
    return 0 if done["ok"] else 1
