"""logs: the output of one rank or of all, once or continuously.

Lines are sanitized (presets/sanitize.py) even for a pipe or a file, so that a rank's output never controls a terminal,
not even when a saved copy is read later. The files contain the original bytes.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import sys
from collections import deque
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TypedDict

from ...presets.sanitize import escaped_json
from ...runners.logs.choice import check_there, choose
from ...runners.logs.dating import Dated
from ...runners.logs.merging import Line, MergedLogs, prefixes
from ...runners.logs.search import compile_grep
from ...runners.node.local_agent import with_link
from ...runners.run import run_directories
from ...runners.run.errors import RunError
from ...runners.run.log_files import LogFile, parse_file_id
from ...runners.run.model import CaughtUp, LogGrew, ReadLog, RunEnded
from ...runners.run.opened_logs import LogError
from ...runners.run.parts import in_background
from ...runners.run.state import RunState
from ...runners.run.wire.client import Link
from ..rows.log import LAUNCH_LOG
from ..terminal import complain
from .events import while_read
from .run_or_bundle import run_or_bundle

POLL_SECONDS = 0.5
MOST_PROBLEMS = 8
"""Maximum number of unreadable files that are named."""


@run_or_bundle
def logs(options: argparse.Namespace) -> int:
    """Print the logs of the newest attempt, or of the requested one."""

    async def use(entry: run_directories.Entry, link: Link) -> int:
        if entry.record.kind == "hub" and _is_managed(entry.path):
            return await _managed(entry.path / LAUNCH_LOG, link, options.follow)
        return await FollowedLogs(link, options, entry.path).run()

    try:
        return asyncio.run(while_read(with_link(options.run, use)))
    except LogError as error:
        raise RunError(str(error)) from None


class FollowedLogs:
    """The files that the options choose, merged by time as in the cockpit, read as they grow."""

    def __init__(self, link: Link, options: argparse.Namespace, path: Path) -> None:
        """Create the reader for the run in directory `path`. Raises LogError for an invalid pattern."""
        self._link, self._options, self._path = link, options, path
        compile_grep(options.grep)
        self._state = RunState()
        self._merged = MergedLogs(options.grep)
        self._print = Printer(options)

    async def run(self) -> int:
        """Print existing lines, and with --follow new ones, until the run has ended."""
        async for stamped in self._link.events():
            self._state.apply(stamped)
            if self._state.live and isinstance(stamped.event, CaughtUp | LogGrew | RunEnded):
                asked = self._options
                check_there(self._state, self._files(), asked.rank, asked.attempt, asked.node)
                await self._read_new()
                self._print.done()
                if not self._options.follow:
                    break
        if not self._options.grep:
            self._print(self._merged.last_words(self._merged.files))
            self._print.done()
        if self._state.attempts and not self._merged:
            _check_readable(self._path)
        problems = self._merged.problems
        for file, why in list(problems.items())[:MOST_PROBLEMS]:
            complain(f"{file}: {why}")
        return 1 if problems else 0

    def _files(self) -> list[LogFile]:
        return [file for name in self._state.log_sizes if (file := parse_file_id(name)) is not None]

    def _chosen(self) -> list[LogFile]:
        streams, asked = tuple(self._options.stream) or ("out", "err"), self._options
        return choose(self._files(), asked.rank, streams, asked.attempt, asked.node)

    async def _read_new(self) -> None:
        chosen = self._chosen()
        self._merged.take_new_names(self._files())
        fresh = [file for file in chosen if file not in self._merged]
        if not self._merged:
            self._print.about(chosen)
            begins = await asyncio.gather(*(self._begin(file) for file in fresh))
        else:
            begins = [0] * len(fresh)
        for file, begin in zip(fresh, begins, strict=True):
            self._merged.add(file, begin, self._print.dated)
        for file in chosen:
            self._merged.grow(file, self._state.log_sizes.get(file.id, 0))
        async for lines in self._merged.read(self._link):
            self._print(lines)

    async def _begin(self, file: LogFile) -> int:
        """Return the offset of the first line to print."""
        asked, size = self._options, self._state.log_sizes.get(file.id, 0)
        if asked.since is not None:
            window = await self._link.read_log(ReadLog(file.id, limit=1, at=asked.since))
            return 0 if window.error else window.offset
        if asked.tail is not None and not asked.grep:
            return await self._tail(file.id, size, asked.tail)
        return 0

    async def _tail(self, file: str, size: int, count: int) -> int:
        """Return the offset of the last `count` lines of a file, or an earlier one."""
        back = 1 << 14
        while back < size:
            window = await self._link.read_log(ReadLog(file, size - back, min(back, 1 << 20)))
            if window.error or window.data.count(b"\n") > count:
                return window.offset
            back *= 8
        return 0


class LogLine(TypedDict):
    """A line of `logs --json`."""

    time: float | None
    own: bool
    """Whether the line itself has the time."""
    rank: int | None
    node: int
    stream: str
    source: str
    text: str


class Printer:
    """Prints lines in the format of the options."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._prefix = prefixes(())
        self._held: deque[str] | None = deque(maxlen=options.tail) if options.tail is not None else None
        self.dated = bool(options.timestamps or options.json or options.since is not None)
        """Whether lines need times."""

    def about(self, files: Sequence[LogFile]) -> None:
        """Choose prefixes: with several files each line has its rank."""
        self._prefix = prefixes(files)
        self.dated = self.dated or len(files) > 1

    def __call__(self, lines: Sequence[Line]) -> None:
        since = self._options.since
        shown = [self._shown(line, file) for line, file in lines if since is None or line.key[0] >= since]
        if self._held is not None:
            self._held.extend(shown)
        else:
            sys.stdout.writelines(shown)

    def done(self) -> None:
        """Print held lines after all lines were passed."""
        if self._held is not None:
            sys.stdout.writelines(self._held)
            self._held = None
        sys.stdout.flush()

    def _shown(self, line: Dated, file: LogFile) -> str:
        if self._options.json:
            fields: LogLine = {
                "time": None if line.at is None else round(line.at, 6),
                "own": line.own,
                "rank": file.rank,
                "node": file.node,
                "stream": file.stream,
                "source": file.source,
                "text": line.text,
            }
            return escaped_json(json.dumps(fields, ensure_ascii=False)) + "\n"
        return f"{stamp(line) if self._options.timestamps else ''}{self._prefix(file)}{line.text}\n"


def stamp(line: Dated) -> str:
    """Return `2026-11-24T10:06:29.123 `, with a `~` if the line itself has no time; `-` if none is known. Pure."""
    unknown = f"{'-':<25}"
    if line.at is None:
        return unknown
    try:
        text = datetime.fromtimestamp(line.at).isoformat(timespec="milliseconds")
    except (OverflowError, OSError, ValueError):
        return unknown  # a damaged record of times
    return f"{text}{' ' if line.own else '~'} "


def _check_readable(run_dir: Path) -> None:
    """Raise RunError if log directories exist that cannot be read, which must not look like missing output."""
    for folder in sorted(run_dir.glob("node-*")):
        if not os.access(folder, os.R_OK | os.X_OK):
            raise RunError(f"{folder} cannot be read: its permissions do not let you (`ls -ld` shows them)")


def _is_managed(run_dir: Path) -> bool:
    from ...runners.hub import launch_order  # a quarter of the start-up time

    launched = launch_order.read(run_dir)
    return launched is not None and launched.managed


async def _managed(path: Path, link: Link, follow: bool) -> int:
    """Print the log that SkyPilot forwards for a managed job, whose nodes are not reachable by ssh.

    The hub keeps it, sanitized. Raises LinkError.
    """
    async with in_background(_until_ended(link)) as ended:
        with contextlib.suppress(FileNotFoundError), path.open(encoding="utf-8") as file:
            while True:
                last = ended.done() or not follow
                sys.stdout.write(file.read())
                sys.stdout.flush()
                if last:
                    break
                await asyncio.wait({ended}, timeout=POLL_SECONDS)
        if ended.done():
            ended.result()
    return 0


async def _until_ended(link: Link) -> None:
    async for stamped in link.events():
        if isinstance(stamped.event, RunEnded):
            return
