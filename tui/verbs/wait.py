"""wait: the end of a run, or another state of it."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys

from ...presets.sanitize import clean_text
from ...runners.node.local_agent import with_link
from ...runners.node.run_following import follow_until, reached
from ...runners.reports.status_document import status_json
from ...runners.run import run_directories
from ...runners.run.errors import UnreachableError
from ...runners.run.model import RunPhase
from ...runners.run.state import RunState
from ...runners.run.wire.client import Link
from ..exit_codes import LOST, TIMED_OUT
from ..terminal import complain


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
        _print(f"{state.name} is {until}", as_json)
        return 0
    if state.phase is RunPhase.LOST:
        complain(state.end_text)
        return LOST
    if not state.phase.ended:
        raise UnreachableError(_why_no_agent(state))
    _print(ended_line(state), as_json)
    return 0 if state.phase is RunPhase.SUCCEEDED else 1


def _print(line: str, as_json: bool) -> None:
    """Print the outcome, unless the whole status is printed as JSON."""
    if not as_json:
        sys.stdout.write(f"{line}\n")
