"""The link to a run that has ended: its directory answers what its agent would have."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path

from .. import journal
from ..logs.files import list_files
from ..logs.window import ask_window
from ..model import CaughtUp, Command, CommandDone, Hello, LogGrew, ReadLog, Stamped
from .link import Window


class DiskLink:
    """Read-only, and complete at once."""

    readonly = True

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir

    async def events(self, after: int = 0) -> AsyncIterator[Stamped]:
        """See Link.events: the history, and then the end."""
        seq = after
        for stamped in journal.read(self._run_dir, after):
            seq = stamped.seq
            yield stamped
        now = time.time()
        sizes = {file.id: (self._run_dir / file.id).stat().st_size for file in list_files(self._run_dir)}
        yield Stamped(now, LogGrew(sizes))
        yield Stamped(now, CaughtUp(seq))

    async def send(self, command: Command) -> CommandDone:
        """Nothing can be changed any more."""
        assert not isinstance(command, Hello | ReadLog)
        return CommandDone(command.id, False, "the run has ended: launch it again to change anything")

    async def read_log(self, file: str, offset: int, limit: int = 65536, grep: str = "") -> Window:
        """See Link.read_log."""
        return await ask_window(self._run_dir, file, offset, limit, grep)

    async def close(self) -> None:
        return
