"""ls, status, events, wait: looking at runs from the command line."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from typing import Any

import msgspec

from ...runners import journal, registry
from ...runners.model import RunPhase, Stamped
from ...runners.state import RunState
from ...runners.status import status as status_of
from ...runners.wire.link import Link
from ..connect import snapshot, with_link
from ..text import describe, span, table


def ls(options: argparse.Namespace) -> int:
    """The runs there are, newest first."""
    if options.host:
        from .elsewhere import ls as ls_elsewhere

        return ls_elsewhere(options)
    found = [(entry, entry.state(), registry.phase(entry)) for entry in registry.entries()]
    if options.json:
        sys.stdout.write(json.dumps([_brief(*one) for one in found]) + "\n")
        return 0
    if not found:
        sys.stdout.write(
            "no runs yet: `distui launch PRESET -- SCRIPT` starts one, `distui demo` shows one\n"
        )
        return 0
    rows = [("name", "state", "preset", "attempt", "ranks", "began", "id")]
    for entry, state, phase in found:
        rows.append(
            (
                entry.record.name, str(phase), state.plan.preset or state.plan.launcher if state.plan else "",
                str(state.attempt), str(len(state.ranks)), f"{span(time.time() - entry.record.created)} ago",
                entry.record.run,
            )
        )  # fmt: skip
    sys.stdout.write("\n".join(table(rows, frozenset({3, 4}))) + "\n")
    return 0


def _brief(entry: registry.Entry, state: RunState, phase: RunPhase) -> dict[str, Any]:
    return {
        "run": entry.record.run, "name": entry.record.name, "state": str(phase), "attempt": state.attempt,
        "created": entry.record.created, "host": entry.record.host, "path": str(entry.path),
        "preset": state.plan.preset if state.plan else None, "ranks": len(state.ranks),
    }  # fmt: skip


def status(options: argparse.Namespace) -> int:
    """Everything that is true of one run now."""

    async def use(entry: registry.Entry, link: Link) -> RunState:
        return await snapshot(link)

    state = asyncio.run(with_link(options.run, use))
    sys.stdout.write((json.dumps(status_of(state)) if options.json else describe(state)) + "\n")
    return 0


def events(options: argparse.Namespace) -> int:
    """The journal, as it stands, or on and on."""
    if not options.follow:
        for stamped in journal.read(registry.resolve(options.run).path):
            _print_event(stamped, options.json)
        return 0

    async def use(entry: registry.Entry, link: Link) -> int:
        async for stamped in link.events():
            if stamped.seq:
                _print_event(stamped, options.json)
        return 0

    return asyncio.run(with_link(options.run, use))


def _print_event(stamped: Stamped, as_json: bool) -> None:
    if as_json:
        line = msgspec.json.encode(stamped).decode()
    else:
        fields = {name: getattr(stamped.event, name) for name in stamped.event.__struct_fields__}
        told = " ".join(
            f"{name}={msgspec.json.encode(value).decode()}"
            for name, value in fields.items()
            if value not in (None, "", (), {})
        )
        clock = time.strftime("%H:%M:%S", time.localtime(stamped.time))
        line = f"{stamped.seq:>5}  {clock}  {type(stamped.event).__name__:<15} {told}"
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def wait(options: argparse.Namespace) -> int:
    """Wait until the run is as far as asked; 1 when it never will be."""

    async def use(entry: registry.Entry, link: Link) -> int:
        async with asyncio.timeout(options.timeout):
            return await _wait(link, options.until)

    try:
        return asyncio.run(with_link(options.run, use))
    except TimeoutError:
        sys.stderr.write(f"distui: not {options.until} after {options.timeout:g} s\n")
        return 1


async def _wait(link: Link, until: str) -> int:
    state = RunState()
    async for stamped in link.events():
        state.apply(stamped)
        if state.live and until != "done" and reached(state, until):
            return 0
    if until == "done":
        return 0 if state.phase is RunPhase.SUCCEEDED else 1
    return 0 if state.phase is RunPhase.SUCCEEDED else 1


def reached(state: RunState, until: str) -> bool:
    """running: every rank has a process. healthy: every rank with a hook made a step, the others run."""
    if state.phase is not RunPhase.RUNNING or until == "running":
        return state.phase is RunPhase.RUNNING
    hooked = [rank for rank in state.ranks.values() if rank.hook is not None]
    wanted = state.plan is not None and state.plan.launcher == "torchrun"
    if wanted and len(hooked) < len(state.ranks):
        return False
    return all(rank.sample is not None and (rank.sample.step or 0) > 0 for rank in hooked)
