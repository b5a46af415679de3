"""A launch without a terminal: the ranks' output as it arrives, and a line per event.

Stdout gets the ranks' stdout, stderr their stderr, as with `torchrun --tee 3`; events go to stderr. A reader that is
slow, or closes its end, blocks neither the ranks nor the task that follows the run.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TextIO

from ...presets.sanitize import LONGEST, clean_text
from ...runners.logs.kept_pieces import all_sizes
from ...runners.logs.merging import Line, MergedLogs
from ...runners.node.local_agent import open_link
from ...runners.node.run_following import snapshot
from ...runners.reports.status_document import status_json
from ...runners.run import clock, run_directories
from ...runners.run.formatting import time_of_day
from ...runners.run.log_files import LogFile, parse_file_id
from ...runners.run.model import AttemptEnded, Event, FindingRaised, HostTick, RankTick, RunEnded, Stamped
from ...runners.run.state import RunState
from ...runners.run.wire.client import Link, LinkError
from ..due_alerts import TerminalAlerts, ring
from ..terminal import typeable
from .status import describe, headline, unsaid

if TYPE_CHECKING:
    from ...presets.plan import Plan

EVERY_S = 5.0
"""Seconds between two headlines while there are no events."""
PIPE_PIECE = 4096
"""Bytes that a writable pipe accepts at once (PIPE_BUF)."""

_OF_ATTEMPT = re.compile(r"attempt (\d+): ")
"""Prefix of a finding about an attempt that is not the newest."""
MOST_PROBLEMS = 8
"""Maximum number of unreadable files that are named."""


class Stream:
    """Stdout or stderr, written to without blocking; after the reader has closed it, output is dropped."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._turn = asyncio.Lock()
        self.problem = ""
        """Why output is dropped, e.g. "No space left on device"."""

    async def write(self, text: str) -> None:
        """Write a text; return after it is written."""
        if self.problem or not text:
            return
        async with self._turn:
            try:
                await self._write(text)
            except OSError as error:
                self.problem = error.strerror or str(error)
                _throw_away(self._stream)

    async def _write(self, text: str) -> None:
        self._stream.flush()
        try:
            number = self._stream.fileno()
        except OSError:  # a file in memory
            self._stream.write(text)
            return
        left = memoryview(text.encode(self._stream.encoding or "utf-8", "backslashreplace"))
        while left:
            await _writable(number)
            left = left[os.write(number, left[:PIPE_PIECE]) :]


async def _writable(number: int) -> None:
    """Wait until a pipe or a terminal is writable; a file always is."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    try:
        loop.add_writer(number, _settle, ready)
    except PermissionError:
        return
    try:
        await ready
    finally:
        loop.remove_writer(number)


def _settle(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)


def _throw_away(stream: TextIO) -> None:
    """Redirect a stream to /dev/null, so that later writes, also at the interpreter's exit, cannot fail."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, stream.fileno())
    os.close(devnull)


class RanksOutput:
    """The output of the ranks of all attempts, on stdout and stderr."""

    def __init__(self, out: Stream, err: Stream, prefixes: bool) -> None:
        """Create the output; `prefixes` puts the global rank before each line, in torchrun's notation."""
        self._prefixes = prefixes
        self._streams = {"out": out, "err": err}
        self._logs = MergedLogs(width=LONGEST)
        self._newest: dict[int, int] = {}
        """The newest attempt with output, by node."""
        self._finished: set[str] = set()
        self._grown, self._over = asyncio.Event(), False
        self.wrote = 0.0
        """Monotonic time when the last line was printed."""

    @property
    def problems(self) -> dict[str, str]:
        """Why files cannot be read, by file."""
        return self._logs.problems

    def grow(self, sizes: Mapping[str, int]) -> None:
        """Update the sizes of the run's logs, by file id."""
        files = {name: parse_file_id(name) for name in sizes}
        self._logs.take_new_names(file for file in files.values() if file is not None)
        for name, file in files.items():
            if file is None or file.stream not in self._streams or name in self._finished:
                continue
            if file not in self._logs:
                self._logs.add(file)
                self._newest[file.node] = max(self._newest.get(file.node, 0), file.attempt or 0)
            self._logs.grow(file, sizes[name])
        self._grown.set()

    def resume(self) -> None:
        """Let the next `follow` run."""
        self._over = False

    def pause(self) -> None:
        """Make `follow` return after it has printed all known output."""
        self._over = True
        self._grown.set()

    async def follow(self, link: Link) -> None:
        """Print output as it arrives, until `pause`. Raises LinkError."""
        while not self._over:
            await self._grown.wait()
            self._grown.clear()
            await self._print_new(link)
            earlier = [file for file in self._open_files() if self._is_of_earlier_attempt(file)]
            await self._finish_files(link, earlier)

    async def finish(self, link: Link, sizes: Mapping[str, int]) -> None:
        """Print the rest of a run that has ended. Raises LinkError."""
        self.grow(sizes)
        await self._finish_files(link, self._open_files())

    def _open_files(self) -> list[LogFile]:
        return [file for file in self._logs.files if file.id not in self._finished]

    def _is_of_earlier_attempt(self, file: LogFile) -> bool:
        return (file.attempt or 0) < self._newest[file.node]

    async def _finish_files(self, link: Link, files: Sequence[LogFile]) -> None:
        if not files:
            return
        self._logs.to_the_end(files)
        await self._print_new(link)
        await self._print(self._logs.last_words(files))
        self._finished |= {file.id for file in files}

    async def _print_new(self, link: Link) -> None:
        self._logs.problems.clear()  # a node may answer again
        async for lines in self._logs.read(link):
            await self._print(lines)

    async def _print(self, lines: Sequence[Line]) -> None:
        """Print lines; consecutive lines of one stream are one write."""
        held, last = list[str](), ""
        for dated, file in lines:
            if file.stream != last and held:
                await self._streams[last].write("".join(held))
                held.clear()
            last = file.stream
            prefix = f"[default{file.rank}]:" if self._prefixes else ""
            held.append(f"{prefix}{dated.text}\n")
        if held:
            await self._streams[last].write("".join(held))
            self.wrote = clock.monotonic()


async def stay(entry: run_directories.Entry, plan: Plan, *, as_json: bool, quiet: bool) -> int:
    """Follow the run until it has ended; return its outcome as 0 or 1. A lost link is reopened.

    `quiet` hides the ranks' output. `as_json` prints only the status at the end.
    """
    out, err = Stream(sys.stdout), Stream(sys.stderr)
    output = None if quiet or as_json else RanksOutput(out, err, plan.launcher != "command")
    event_lines = None if as_json else EventLines(err, output)
    state, name, alerts = RunState(), entry.record.name, TerminalAlerts(fresh=True)
    if not as_json:
        await _introduce(err, plan, name)
    while not state.phase.ended:
        try:
            await _follow_link(entry, state, event_lines, output, alerts)
        except LinkError as error:
            await err.write(f"distui: {clean_text(str(error), LONGEST)}\n")
            await asyncio.sleep(1.0)
    if output is not None:
        await _rest(entry, output, err)
    if as_json:
        await out.write(json.dumps(status_json(state)) + "\n")
    else:
        await err.write("\n" + describe(state) + "\n")
    if await _lost_output(out, err, name):
        return 1
    return 0 if state.phase == "succeeded" else 1


async def _introduce(err: Stream, plan: Plan, name: str) -> None:
    """Print the notes of the plan, and how to come back."""
    for note in plan.notes:
        await err.write(f"note: {clean_text(note, LONGEST)}\n")
    hint = f"the run goes on if you leave: `distui attach {name}` opens it\n"
    await err.write(typeable(hint, sys.stderr))


async def _lost_output(out: Stream, err: Stream, name: str) -> bool:
    """Print why output was dropped, and return whether it was; a closed pipe does not count."""
    if out.problem in ("", os.strerror(errno.EPIPE)):
        return False
    lost = f"distui: cannot write to standard output: {out.problem}; `distui logs {name}` has it\n"
    await err.write(typeable(lost, sys.stderr))
    return True


async def _follow_link(
    entry: run_directories.Entry,
    state: RunState,
    event_lines: EventLines | None,
    output: RanksOutput | None,
    alerts: TerminalAlerts,
) -> None:
    """Follow the run through one link, until the link or the run ends. Raises LinkError."""
    link = await open_link(entry)
    following = asyncio.create_task(_follow_events(link, state, event_lines, output, alerts))
    tasks = [following]
    if output is not None:
        output.resume()
        tasks.append(asyncio.create_task(output.follow(link)))
    try:
        await asyncio.gather(*tasks)  # Ctrl-C cancels both, even if one waits for the reader of its pipe
    finally:
        following.cancel()
        await asyncio.wait(tasks)
        await link.close()


async def _follow_events(
    link: Link,
    state: RunState,
    event_lines: EventLines | None,
    output: RanksOutput | None,
    alerts: TerminalAlerts,
) -> None:
    """Fold and print the events of one link, and let the output's `follow` return after the last. Raises LinkError."""
    try:
        async for stamped in link.events(state.seq):
            state.apply(stamped)
            if written := "".join(alerts.due(state, clock.now())):
                ring(written)
            if output is not None and state.live:
                output.grow(state.log_sizes)
            if event_lines is not None:
                await event_lines.print_new(state, stamped)
    finally:
        if output is not None:
            output.pause()


class Causes:
    """Printed causes of failed attempts. An attempt's end, a finding and the run's end report each cause only once."""

    def __init__(self) -> None:
        self._printed: dict[int, list[str]] = {}

    def add(self, attempt: int, text: str) -> None:
        """Record a cause as printed."""
        self._printed.setdefault(attempt, []).append(text)

    def record(self, event: Event) -> None:
        """Count an ended attempt's cause as printed: its notice named it."""
        if isinstance(event, AttemptEnded):
            self.add(event.attempt, event.idle if event.first_cause is None else event.first_cause.text)

    def unprinted(self, event: Event, attempt: int, text: str) -> str:
        """Return what to print of an event's notification; only some events have causes."""
        has_cause = isinstance(event, AttemptEnded | FindingRaised | RunEnded)
        return self.new(attempt, text) if has_cause else text

    def new(self, attempt: int, text: str) -> str:
        """Return the unprinted part of a sentence; "" if there is none.

        `attempt` applies if the sentence names no attempt.
        """
        named = _OF_ATTEMPT.match(text)
        number, sentence = (attempt, text) if named is None else (int(named[1]), text[named.end() :])
        rest = unsaid(sentence, self._printed.get(number, ()))
        if not rest:
            return ""
        self.add(number, rest)
        return f"{text[: len(text) - len(sentence)]}{rest}"


class EventLines:
    """A line per event on stderr, and a headline every few seconds while nothing else is printed."""

    def __init__(self, err: Stream, output: RanksOutput | None) -> None:
        self._err, self._output = err, output
        self._causes = Causes()
        self._printed_count = 0
        """Number of the run's notices that were printed."""
        self._headline_at = 0.0
        """Monotonic time of the last headline."""
        self._latest_time = 0.0
        """Unix time of the last line. Nodes report their own times, some of them late."""

    async def print_new(self, state: RunState, stamped: Stamped) -> None:
        """Print what a folded event adds."""
        unprinted = state.notice_count - self._printed_count
        for moment, text in state.notices[-unprinted:] if unprinted else ():
            await self._print(moment, self._causes.unprinted(stamped.event, state.attempt, text))
        self._printed_count = state.notice_count
        self._causes.record(stamped.event)
        silent_since = max(self._headline_at, self._output.wrote if self._output is not None else 0.0)
        due = state.live and clock.monotonic() - silent_since >= EVERY_S
        if due and isinstance(stamped.event, RankTick | HostTick):
            self._headline_at = clock.monotonic()
            await self._print(stamped.time, headline(state))

    async def _print(self, moment: float, text: str) -> None:
        self._latest_time = max(self._latest_time, moment)
        if text:
            await self._err.write(f"{time_of_day(self._latest_time)}  {clean_text(text)}\n")


async def _rest(entry: run_directories.Entry, output: RanksOutput, err: Stream) -> None:
    """Print the ranks' last output from the files of the run that has ended."""
    try:
        link = await open_link(entry)
        try:
            sizes = (await snapshot(link)).log_sizes
            await output.finish(link, all_sizes(entry.path) | sizes)
            for file, why in list(output.problems.items())[:MOST_PROBLEMS]:
                await err.write(f"distui: {file}: {clean_text(why, LONGEST)}\n")
        finally:
            await link.close()
    except LinkError as error:
        await err.write(
            f"distui: the end of the output cannot be read: {clean_text(str(error), LONGEST)}\n"
        )
