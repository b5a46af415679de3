"""logs: what the ranks wrote, one or all, now or on and on.

Lines are cleaned (logs/clean.py) wherever they go, also into a pipe or a file: what a rank wrote is never a command to
a terminal, not even to the one where a saved copy is read later. The files themselves hold the bytes as written.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
from pathlib import Path

from ...runners import registry
from ...runners.errors import RunError
from ...runners.hub import order
from ...runners.hub.telling import LOG_FILE
from ...runners.logs.files import LogError, LogFile, parse_file_id
from ...runners.logs.follow import Merge, choose
from ...runners.model import CaughtUp, LogGrew, RunEnded
from ...runners.state import RunState
from ...runners.wire.link import Link
from ..connect import with_link

LIMIT = 1 << 20
POLL_SECONDS = 0.5


def logs(options: argparse.Namespace) -> int:
    """Print the logs of the newest attempt, or the one asked for."""

    async def use(entry: registry.Entry, link: Link) -> int:
        launched = order.read(entry.path)
        if launched is not None and launched.managed:
            return await _managed(entry.path / LOG_FILE, link, options.follow)
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


async def _managed(path: Path, link: Link, follow: bool) -> int:
    """What SkyPilot passes on of a managed job, to whose nodes no ssh leads; the hub keeps it, cleaned."""
    ended = asyncio.create_task(_until_ended(link))
    try:
        with contextlib.suppress(FileNotFoundError), path.open(encoding="utf-8") as file:
            while True:
                last = ended.done() or not follow
                sys.stdout.write(file.read())
                sys.stdout.flush()
                if last:
                    break
                await asyncio.wait({ended}, timeout=POLL_SECONDS)
    finally:
        ended.cancel()
        await asyncio.gather(ended, return_exceptions=True)
    return 0


async def _until_ended(link: Link) -> None:
    async for stamped in link.events():
        if isinstance(stamped.event, RunEnded):
            return


def _print(lines: list[str]) -> None:
    for line in lines:
        sys.stdout.write(line + "\n")
    sys.stdout.flush()
