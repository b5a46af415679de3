"""events, wait: what happened in a run, and its end. Also bundles in place of a run, for verbs that read."""

from __future__ import annotations

import argparse
import asyncio
import functools
import json
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec

from ...presets.sanitize import LONGEST, clean_text, escaped_json
from ...runners.diagnosis.status import DAMAGED
from ...runners.node.local_agent import with_link
from ...runners.node.run_following import follow_until, reached
from ...runners.reports.status_document import status_json
from ...runners.run import file_io, journal, run_directories
from ...runners.run.errors import UnreachableError
from ...runners.run.formatting import time_of_day
from ...runners.run.model import FindingRaised, RankTick, RunEnded, RunPhase, Stamped
from ...runners.run.state import RunState
from ...runners.run.wire.client import Link
from ..exit_codes import LOST, TIMED_OUT
from ..terminal import complain, piped_stdout, unread

Verb = Callable[[argparse.Namespace], int]


def run_or_bundle(verb: Verb) -> Verb:
    """Wrap a verb so that its RUN may be a bundle's file, which then means the bundle's run. Raises RunError."""

    @functools.wraps(verb)
    def of_bundle(options: argparse.Namespace) -> int:
        if options.run is None or not _is_packed(options.run):
            return verb(options)
        from ...runners.reports.bundle_reader import opened  # rarely needed

        with opened(Path(options.run)) as manifest:
            options.run = manifest.run
            return verb(options)

    return of_bundle


def _is_packed(name: str) -> bool:
    """Whether a name is that of a regular file with gzip's magic bytes, with any extension."""
    try:
        return file_io.head(Path(name), 2) == b"\x1f\x8b"
    except (file_io.FileError, ValueError):
        return False


@run_or_bundle
def events(options: argparse.Namespace) -> int:
    """Print the journal, once or continuously."""
    if not options.follow:
        entry = run_directories.resolve(options.run)
        for stamped in journal.read(entry.path):
            if not _of_opening(stamped):
                _print_event(stamped, options.json)
        for problem in entry.history().problems:
            complain(f"{entry.record.name}: {problem}")
        return 0

    async def use(entry: run_directories.Entry, link: Link) -> int:
        async for stamped in link.events():
            if stamped.seq and not _of_opening(stamped):
                _print_event(stamped, options.json)
            elif isinstance(stamped.event, FindingRaised) and stamped.event.finding.id == DAMAGED:
                complain(stamped.event.finding.text)
        return 0

    return asyncio.run(while_read(with_link(options.run, use)))


async def while_read(work: Awaitable[int]) -> int:
    """Return the result of `work`.

    Raises BrokenPipeError as soon as the reader of stdout closes it, even if nothing is being written.
    """
    number, loop, task, gone = piped_stdout(), asyncio.get_running_loop(), asyncio.current_task(), False

    def check() -> None:
        nonlocal gone
        assert number is not None
        loop.remove_reader(number)  # a pipe that is also open for reading is always ready
        gone = unread(number)
        if gone and task is not None:
            task.cancel()

    if number is not None:
        loop.add_reader(number, check)
    try:
        return await work
    except asyncio.CancelledError:
        if gone:
            raise BrokenPipeError from None
        raise
    finally:
        if number is not None:
            loop.remove_reader(number)


def _of_opening(stamped: Stamped) -> bool:
    """Whether an event only marks the extent of a bundle, and is no event of the run (see `export.opened`)."""
    event = stamped.event
    return isinstance(event, RankTick) or (isinstance(event, RunEnded) and event.phase is RunPhase.EXPORTED)


def _print_event(stamped: Stamped, as_json: bool) -> None:
    if as_json:
        line = escaped_json(msgspec.json.encode(stamped).decode())
    else:
        fields = {name: getattr(stamped.event, name) for name in stamped.event.__struct_fields__}
        values = " ".join(
            f"{name}={msgspec.json.encode(value).decode()}"
            for name, value in fields.items()
            if value not in (None, "", (), {}) and name != "last"  # samples: status shows them
        )
        clock = time_of_day(stamped.time)
        line = clean_text(
            f"{stamped.seq:>5}  {clock}  {type(stamped.event).__name__:<15} {values}", LONGEST
        )
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def wait(options: argparse.Namespace) -> int:
    """Wait until the run reaches a state; return 1 if it never will, TIMED_OUT if it has not yet."""
    state = RunState()

    async def use(entry: run_directories.Entry, link: Link) -> int:
        async with asyncio.timeout(options.timeout):
            return await _wait(link, options.until, state, options.json)

    try:
        status = asyncio.run(with_link(options.run, use))
    except TimeoutError:
        complain(f"not {options.until} after {options.timeout:g} s")
        status = TIMED_OUT
        if not state.live:  # the agent had not sent the whole state
            state = run_directories.resolve(options.run).state()
    if options.json:
        sys.stdout.write(json.dumps(status_json(state)) + "\n")
    return status


def ended_line(state: RunState) -> str:
    """Return name and outcome of a run that has ended, with the reason if there is one."""
    why = clean_text(state.end_text)
    return (
        f"{state.name} {state.phase}" if why == str(state.phase) else f"{state.name} {state.phase}: {why}"
    )


def _why_no_agent(state: RunState) -> str:
    return next((item.text for item in state.findings.values() if item.id == "no-agent"), "no agent")


async def _wait(link: Link, until: str, state: RunState, as_json: bool) -> int:
    await follow_until(link, until, state)
    if until != "done" and reached(state, until):
        return 0
    if state.phase is RunPhase.LOST:
        complain(state.end_text)
        return LOST
    if not state.phase.ended:
        raise UnreachableError(_why_no_agent(state))
    succeeded = state.phase is RunPhase.SUCCEEDED
    idle = bool(state.attempts and state.attempts[-1].idle)
    if not as_json and (idle or not succeeded):
        sys.stdout.write(f"{ended_line(state)}\n")
    return 0 if succeeded else 1
