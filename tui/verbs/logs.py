"""logs: the output of one rank or of all, once or continuously.

Lines are sanitized (presets/sanitize.py) even for a pipe or a file, so that a rank's output never controls a terminal,
not even when a saved copy is read later. The files contain the original bytes.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
from datetime import datetime
from pathlib import Path

import msgspec

from ...presets.sanitize import escaped_json
from ...runners.logs.dating import Dated
from ...runners.logs.log_stream import LogRequest, LogStream, log_line
from ...runners.logs.merging import Line
from ...runners.node.local_agent import with_link
from ...runners.run import run_directories
from ...runners.run.errors import RunError
from ...runners.run.model import RunEnded
from ...runners.run.opened_logs import LogError
from ...runners.run.parts import in_background
from ...runners.run.wire.client import Link
from ..rows.attempt_rule import attempt_rule
from ..rows.log import LAUNCH_LOG
from ..terminal import complain
from .events import while_read
from .run_or_bundle import run_or_bundle

POLL_SECONDS = 0.5
MOST_PROBLEMS = 8
"""Maximum number of unreadable files that are named."""


@run_or_bundle
def logs(options: argparse.Namespace) -> int:
    """Print the logs of all attempts, or of the requested one."""

    async def use(entry: run_directories.Entry, link: Link) -> int:
        if entry.record.kind == "hub" and _is_managed(entry.path):
            return await _managed(entry.path / LAUNCH_LOG, link, options.follow)
        return await _print_all(LogStream(link, _requested(options), entry.path), options)

    try:
        return asyncio.run(while_read(with_link(options.run, use)))
    except LogError as error:
        raise RunError(str(error)) from None


def _requested(options: argparse.Namespace) -> LogRequest:
    return LogRequest(
        ranks=tuple(options.rank),
        node=options.node,
        streams=tuple(options.stream) or ("out", "err"),
        attempt=options.attempt,
        grep=options.grep,
        since=options.since,
        tail=options.tail,
        follow=options.follow,
        dated=options.timestamps or options.json,
    )


async def _print_all(stream: LogStream, options: argparse.Namespace) -> int:
    """Print existing lines, and with --follow new ones, until the run has ended."""
    rules = _Rules(stream)
    async for lines in stream.portions():
        for line in lines:
            if not options.json:
                sys.stdout.write(rules.before(line))
            sys.stdout.write(_shown(line, stream, options))
        sys.stdout.flush()
    for file, why in list(stream.problems.items())[:MOST_PROBLEMS]:
        complain(f"{file}: {why}")
    return 1 if stream.problems else 0


class _Rules:
    """A rule between the lines of two attempts."""

    def __init__(self, stream: LogStream) -> None:
        self._stream = stream
        self._attempt: int | None = None
        """The attempt of the last line."""

    def before(self, line: Line) -> str:
        """Return the rule to print before a line, or ""."""
        above, number = self._attempt, line.file.attempt
        if number is None or number == above:
            return ""
        self._attempt = number
        return "" if above is None else f"{attempt_rule(self._stream.attempts, number)}\n"


def _shown(line: Line, stream: LogStream, options: argparse.Namespace) -> str:
    if options.json:
        fields = msgspec.to_builtins(log_line(line))
        return escaped_json(json.dumps(fields, ensure_ascii=False)) + "\n"
    time = stamp(line.dated) if options.timestamps else ""
    return f"{time}{stream.prefix(line.file)}{line.dated.text}\n"


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
