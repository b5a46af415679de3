"""A profile of several ranks at the same steps: agree on the steps, start, and wait.

The server of the viewer coordinates: the agent of a run on one node, or the hub, which asks each node's agent.
"""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager

import msgspec
from msgspec import Struct, structs

from ..run.command_executor import CommandRefused, Reply
from ..run.commands import Profile
from ..run.model import Clause, Event, ProfileArmed
from ..run.wire.client import new_id

MOST_STEPS = 100
"""Equal to the limit in inrank/rank_profile.py, which runs in another Python."""
MOST_RANKS = 64
"""Maximum ranks of one profile: each writes megabytes."""
LEAD_S = 0.5
"""Minimum seconds between the foremost rank and the first recorded step: every rank must get the request before."""
LEAD_STEPS = 4
"""Minimum lead in steps; torch's profiler warms up during the last of them."""
MOST_LEAD = 100_000
TRIES = 3
LEAST_WAIT_S = 120.0
UNDER_WAY = "a profile of this run is under way: profile again once it is over"
FASTER = "the ranks make steps faster than they can be asked for a profile of the same steps: profile fewer ranks"


class _Armed(Struct):
    count: int = 0
    step_s: float | None = None
    late: int | None = None


Ask = Callable[[Profile], Awaitable[Reply]]
"""Request one part of a profile from all its ranks. Raises CommandRefused."""


class Turn:
    """Allows only one profile of a run at a time."""

    def __init__(self) -> None:
        self._taken = False

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Take the turn. Raises CommandRefused if another profile has it."""
        if self._taken:
            raise CommandRefused(UNDER_WAY)
        self._taken = True
        try:
            yield
        finally:
            self._taken = False


def refusal(command: Profile, ranks: int) -> str:
    """Why a profile of this number of ranks is refused; "" if it is not."""
    if not 1 <= command.steps <= MOST_STEPS:
        return f"a profile has 1 to {MOST_STEPS} steps, not {command.steps}"
    if ranks > MOST_RANKS:
        return f"a profile of {ranks} ranks is too much: name up to {MOST_RANKS} of them"
    return ""


async def coordinated(command: Profile, ranks: int, ask: Ask, emit: Callable[[Event], None]) -> Reply:
    """Let `ranks` ranks record the same steps, and wait for their traces. Raises CommandRefused."""
    if why := refusal(command, ranks):
        raise CommandRefused(why)
    # equal on every node, and unique to this profile
    folder = f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{new_id()[:6]}"
    ready = _armed((await ask(structs.replace(command, part="ready"))).data)
    pace = max((each.step_s or 0.0 for each in ready), default=0.0)
    foremost, lead_s = max((each.count for each in ready), default=0), LEAD_S
    for _ in range(TRIES):
        ahead = _lead_steps(lead_s, pace)
        part = structs.replace(command, part="arm", first=foremost + ahead, folder=folder)
        armed = await _arm(part, ask)
        if all(each.late is None for each in armed):
            emit(ProfileArmed(command.id, command.ranks, part.first, command.steps))
            seconds = command.seconds
            if seconds is None:
                seconds = max(LEAST_WAIT_S, 10.0 * pace * (ahead + command.steps))
            return await _traces(structs.replace(part, part="wait", seconds=seconds), ask)
        await _cancelled(part, ask)
        foremost, lead_s = max(max(each.count, each.late or 0) for each in armed), lead_s * 4
    raise CommandRefused(FASTER)


def _lead_steps(lead_s: float, pace: float) -> int:
    """Return the steps between the foremost rank and the first recorded one. `pace`: seconds per step; 0: unknown."""
    return LEAD_STEPS if pace <= 0 else LEAD_STEPS + min(MOST_LEAD, math.ceil(lead_s / pace))


async def _arm(part: Profile, ask: Ask) -> list[_Armed]:
    """Ask the ranks to record. Raises CommandRefused if one refuses; then none records."""
    try:
        return _armed((await ask(part)).data)
    except CommandRefused:
        await _cancelled(part, ask)
        raise


async def _traces(part: Profile, ask: Ask) -> Reply:
    """Wait for the traces. Raises CommandRefused if no rank has written one."""
    try:
        return await ask(part)
    except CommandRefused as error:
        raise CommandRefused(
            f"profile failed: {error}", [Clause("profile failed"), *error.clauses]
        ) from None


async def _cancelled(part: Profile, ask: Ask) -> None:
    try:
        await ask(structs.replace(part, part="cancel"))
    except CommandRefused:
        pass  # a rank that has ended records nothing


def _armed(data: Mapping[str, str]) -> list[_Armed]:
    """Decode the ranks' answers. Raises CommandRefused."""
    try:
        return [msgspec.json.decode(text, type=_Armed) for text in data.values()]
    except msgspec.MsgspecError as error:
        raise CommandRefused(f"what a rank answered cannot be read: {error}") from None
