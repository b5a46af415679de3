"""A run followed as text, where there is no terminal: a line for each thing that happens, and one every few seconds."""

from __future__ import annotations

import asyncio
import json
import sys
import time

from ...presets.plan import Plan
from ...runners import registry
from ...runners.local import open_link
from ...runners.model import HostTick, RankTick
from ...runners.state import RunState
from ...runners.status import status
from ...runners.wire.link import Link, LinkError
from ..text import describe, headline

EVERY_S = 5.0
"""Seconds between two headlines while nothing happens."""


async def stay(entry: registry.Entry, plan: Plan, *, as_json: bool) -> int:
    """Follow until the run has ended; its outcome as 0 or 1. A lost link is taken up again."""
    if not as_json:
        for note in plan.notes:
            sys.stdout.write(f"note: {note}\n")
        sys.stdout.write(f"the run goes on if you leave: `distui attach {entry.record.name}` opens it\n")
    state = RunState()
    while not state.phase.ended:
        try:
            link = await open_link(entry)
            try:
                await _follow(link, state, quiet=as_json)
            finally:
                await link.close()
        except LinkError as error:
            sys.stderr.write(f"distui: {error}\n")
            await asyncio.sleep(1.0)
    sys.stdout.write((json.dumps(status(state)) if as_json else "\n" + describe(state)) + "\n")
    return 0 if state.phase == "succeeded" else 1


async def _follow(link: Link, state: RunState, *, quiet: bool) -> None:
    said, shown = len(state.notices), 0.0
    async for stamped in link.events(state.seq):
        state.apply(stamped)
        if quiet:
            continue
        for moment, text in state.notices[said:]:
            _say(moment, text)
        said = len(state.notices)
        if (
            isinstance(stamped.event, RankTick | HostTick)
            and state.live
            and time.monotonic() - shown >= EVERY_S
        ):
            shown = time.monotonic()
            _say(stamped.time, headline(state))


def _say(moment: float, text: str) -> None:
    sys.stdout.write(f"{time.strftime('%H:%M:%S', time.localtime(moment))}  {text}\n")
    sys.stdout.flush()
