"""logs: what the ranks wrote, one or all, now or on and on.

Lines are cleaned (logs/clean.py) wherever they go, also into a pipe or a file: what a rank wrote is never a command to
a terminal, not even to the one where a saved copy is read later. The files themselves hold the bytes as written.
"""

from __future__ import annotations

import argparse
import asyncio
import sys

from ...runners import registry
from ...runners.errors import RunError
from ...runners.logs.files import LogError, LogFile, parse_file_id
from ...runners.logs.follow import Merge, choose
from ...runners.model import CaughtUp, LogGrew, RunEnded
from ...runners.state import RunState
from ...runners.wire.link import Link
from ..connect import with_link

LIMIT = 1 << 20


def logs(options: argparse.Namespace) -> int:
    """Print the logs of the newest attempt, or the one asked for."""

    async def use(entry: registry.Entry, link: Link) -> int:
        return await Reading(link, options).run()

    try:
        return asyncio.run(with_link(options.run, use))
    except LogError as error:
        raise RunError(str(error)) from None


class Reading:
    """Files chosen by the options, read as they grow."""

    def __init__(self, link: Link, options: argparse.Namespace) -> None:
        self._link, self._options = link, options
        self._state = RunState()
        self._merge: Merge | None = None
        self._known: set[str] = set()

    async def run(self) -> int:
        """Read what there is, and with --follow what comes, until the run has ended."""
        async for stamped in self._link.events():
            self._state.apply(stamped)
            if self._state.live and isinstance(stamped.event, CaughtUp | LogGrew | RunEnded):
                await self._read_new()
                if not self._options.follow:
                    break
        if self._merge is not None:
            _print(self._merge.flush())
        return 0

    def _chosen(self) -> list[LogFile]:
        files = [found for name in self._state.log_sizes if (found := parse_file_id(name)) is not None]
        streams = tuple(self._options.stream) or ("out", "err")
        return choose(files, self._options.rank, streams, self._options.attempt, self._options.node)

    async def _read_new(self) -> None:
        chosen = self._chosen()
        if self._merge is None:
            self._merge = Merge(chosen, self._options.grep)
            self._known = {file.id for file in chosen}
        for file in chosen:
            if file.id not in self._known:
                self._known.add(file.id)
                self._merge.add(file)
        for file in chosen:
            await self._read(self._merge, file.id)

    async def _read(self, merge: Merge, file: str) -> None:
        while (at := merge.wants(file)) < self._state.log_sizes.get(file, 0):
            window = await self._link.read_log(file, at, LIMIT)
            _print(merge.feed(window))
            if merge.wants(file) <= at:
                return


def _print(lines: list[str]) -> None:
    for line in lines:
        sys.stdout.write(line + "\n")
    sys.stdout.flush()
