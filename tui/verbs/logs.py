"""logs: what the ranks wrote, one or all, now or on and on.

Lines are cleaned (presets/sanitize.py) wherever they go, also into a pipe or a file: what a rank wrote is never a
command to a terminal, not even to the one where a saved copy is read later. The files hold the bytes as written.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import sys
from pathlib import Path

from ...runners import run_directories
from ...runners.errors import RunError
from ...runners.hub import launch_order
from ...runners.hub.merged_run import LOG_FILE
from ...runners.local_agent import read_on, with_link
from ...runners.logs.follow import Merge, check_there, choose
from ...runners.logs.log_files import LogError, LogFile, parse_file_id
from ...runners.model import CaughtUp, LogGrew, RunEnded
from ...runners.state import RunState
from ...runners.wire.client import Link
from ..terminal import complain
from .runs import run_or_bundle

POLL_SECONDS = 0.5
MOST_PROBLEMS = 8
"""Files that cannot be read which are named."""


@run_or_bundle
def logs(options: argparse.Namespace) -> int:
    """Print the logs of the newest attempt, or the one asked for."""

    async def use(entry: run_directories.Entry, link: Link) -> int:
        launched = launch_order.read(entry.path)
        if launched is not None and launched.managed:
            return await _managed(entry.path / LOG_FILE, link, options.follow)
        return await FollowedLogs(link, options, entry.path).run()

    try:
        return asyncio.run(with_link(options.run, use))
    except LogError as error:
        raise RunError(str(error)) from None


class FollowedLogs:
    """Files chosen by the options, read as they grow."""

    def __init__(self, link: Link, options: argparse.Namespace, path: Path) -> None:
        """`path`: the run's directory."""
        self._link, self._options, self._path = link, options, path
        self._state = RunState()
        self._merge: Merge | None = None
        self._file_ids: set[str] = set()
        self._problems: dict[str, str] = {}
        """By file: why it cannot be read."""

    async def run(self) -> int:
        """Read what there is, and with --follow what comes, until the run has ended."""
        async for stamped in self._link.events():
            self._state.apply(stamped)
            if self._state.live and isinstance(stamped.event, CaughtUp | LogGrew | RunEnded):
                asked = self._options
                check_there(self._state, self._files(), asked.rank, asked.attempt, asked.node)
                await self._read_new()
                if not self._options.follow:
                    break
        if self._merge is not None:
            _print(self._merge.flush())
        if self._state.attempts and not self._file_ids:
            _check_readable(self._path)
        for file, why in list(self._problems.items())[:MOST_PROBLEMS]:
            complain(f"{file}: {why}")
        return 1 if self._problems else 0

    def _files(self) -> list[LogFile]:
        return [file for name in self._state.log_sizes if (file := parse_file_id(name)) is not None]

    def _chosen(self) -> list[LogFile]:
        streams, asked = tuple(self._options.stream) or ("out", "err"), self._options
        return choose(self._files(), asked.rank, streams, asked.attempt, asked.node)

    async def _read_new(self) -> None:
        chosen = self._chosen()
        if self._merge is None:
            self._merge = Merge(chosen, self._options.grep)
            self._file_ids = {file.id for file in chosen}
        for file in chosen:
            if file.id not in self._file_ids:
                self._file_ids.add(file.id)
                self._merge.add(file)
        for file in chosen:
            await self._read(self._merge, file.id)

    async def _read(self, merge: Merge, file: str) -> None:
        async for lines, problem in read_on(self._link, merge, file, self._state.log_sizes.get(file, 0)):
            if problem:
                self._problems[file] = problem
            _print(lines)


def _check_readable(run_dir: Path) -> None:
    """Raises RunError where folders of logs are there that cannot be read: no output is not the same."""
    for folder in sorted(run_dir.glob("node-*")):
        if not os.access(folder, os.R_OK | os.X_OK):
            raise RunError(f"{folder} cannot be read: its permissions do not let you (`ls -ld` shows them)")


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
