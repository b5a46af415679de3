"""events: the journal of a run."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Awaitable

import msgspec

from ...presets.sanitize import LONGEST, clean_text, escaped_json
from ...runners.diagnosis.status import DAMAGED
from ...runners.node.local_agent import with_link
from ...runners.run import journal, run_directories
from ...runners.run.formatting import time_of_day
from ...runners.run.model import FindingRaised, Stamped
from ...runners.run.wire.client import Link
from ..terminal import complain, piped_stdout, unread
from .run_or_bundle import run_or_bundle


@run_or_bundle
def events(options: argparse.Namespace) -> int:
    """Print the journal, once or continuously."""
    if not options.follow:
        entry = run_directories.resolve(options.run)
        for stamped in journal.read(entry.path):
            if journal.is_of_run(stamped):
                _print_event(stamped, options.json)
        for problem in entry.history().problems:
            complain(f"{entry.record.name}: {problem}")
        return 0

    async def use(entry: run_directories.Entry, link: Link) -> int:
        async for stamped in link.events():
            if stamped.seq and journal.is_of_run(stamped):
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
