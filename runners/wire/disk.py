"""The link to a run that has ended: its directory answers what its agent would have."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path

from .. import journal
from ..logs.files import file_sizes
from ..logs.pieces import all_sizes, ask_anywhere
from ..logs.window import ask_window
from ..model import CaughtUp, Command, CommandDone, Hello, LogGrew, ReadLog, Stamped, Via
from .link import Window


class DiskLink:
    """Read-only, and complete at once."""

    readonly = True

    def __init__(self, run_dir: Path, merged: bool = False) -> None:
        """`merged`: the run was on several nodes, and this is the directory of its hub."""
        self._run_dir = run_dir
        self._ask, self._sizes = (ask_anywhere, all_sizes) if merged else (ask_window, file_sizes)

    async def events(self, after: int = 0) -> AsyncIterator[Stamped]:
        """See Link.events: the history, and then the end."""
        seq = after
        for stamped in journal.read(self._run_dir, after):
            seq = stamped.seq
            yield stamped
        now = time.time()
        yield Stamped(now, LogGrew(self._sizes(self._run_dir)))
        yield Stamped(now, CaughtUp(seq))

    async def send(self, command: Command) -> CommandDone:
        """Nothing can be changed any more."""
        assert not isinstance(command, Hello | Via | ReadLog)
        return CommandDone(command.id, False, "the run has ended: launch it again to change anything")

    async def read_log(self, file: str, offset: int, limit: int = 65536, grep: str = "") -> Window:
        """See Link.read_log."""
        return await self._ask(self._run_dir, file, offset, limit, grep)

    async def close(self) -> None:
        return
