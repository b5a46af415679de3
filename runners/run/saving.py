"""Save on demand: which ranks accept the request, how to send it, and which checkpoint results from it."""

from __future__ import annotations

import os
import signal
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ...presets.sanitize import clean_text
from ...presets.save_on import SaveOn, parse
from . import clock
from .commands import Command, Restart, Save
from .formatting import agreeing, spans_text
from .model import Checkpoint, CommandDone, RankPhase
from .state import RunState
from .wire.client import new_id

if TYPE_CHECKING:
    from .daemon_run import DaemonRun

SECONDS = 120.0
"""Maximum seconds of a save before a restart is given up."""
MOST_SECONDS = 86400.0
SLACK_S = 0.05
"""Tolerance in seconds for file times that are older than an earlier clock reading."""
NO_WAY = (
    "the plan does not define how its script saves: launch it with --save-on SIGUSR1 or --save-on FILE:PATH"
)

Disposition = Callable[[int, int], str | None]
"""Action of a process (by pid) for a signal; see `agent.processes.disposition`."""
Send = Callable[[Command], Awaitable[CommandDone]]


def way(state: RunState) -> SaveOn | None:
    """How to ask the script of a run to save; None if the plan has no request."""
    return None if state.plan is None else parse(state.plan.save_on)


def words(asked: SaveOn) -> str:
    """Text about the request, for a terminal."""
    return clean_text(asked.words)


def refusal(state: RunState, asked: SaveOn, disposition: Disposition) -> str:
    """Why ranks of this node would not save, or would end on the request; "" if they accept it."""
    if not state.ranks:
        return "no rank is running: nothing was asked"
    away = [rank for rank, at in state.ranks.items() if at.pid is None or at.phase is not RankPhase.RUNNING]
    if away:
        return f"{spans_text('rank', away)} {agreeing(away, 'is', 'are')} not running: nothing was asked"
    return _unhandled(state, asked.signal, disposition) if asked.signal else ""


def _unhandled(state: RunState, name: str, disposition: Disposition) -> str:
    """Why ranks would not save on a signal; "" if all handle it."""
    number = signal.Signals[name]
    does = {rank: disposition(at.pid or 0, number) for rank, at in state.ranks.items()}
    ends = [rank for rank, what in does.items() if what == "default"]
    deaf = [rank for rank, what in does.items() if what in ("ignores", None)]
    if ends:
        has = agreeing(ends, "has", "have")
        return (
            f"{name} would end {spans_text('rank', ends)}, which {has} no handler for it: nothing was asked"
        )
    if deaf:
        verb = agreeing(deaf, "ignores", "ignore")
        return f"{spans_text('rank', deaf)} {verb} {name}: nothing was asked"
    return ""


def touch(cwd: str, file: str) -> str:
    """Create the file that the script polls, or update its time; return an error or ""."""
    path = Path(cwd, file)
    try:
        path.touch()
        os.utime(path)
    except OSError as error:
        return f"{clean_text(str(path))} was not touched: {error.strerror or error}"
    return ""


def answer_to(asked: Mapping[int, float], attempt: int, state: RunState) -> Checkpoint | None:
    """Return the first complete checkpoint that began after its request (rank → unix time); None if not yet."""
    first = min(asked.values(), default=0.0)
    for each in state.checkpoints:
        since = asked.get(each.rank, first) if each.rank is not None else first
        begun = each.at - (each.duration_s or 0.0)
        if each.complete and each.attempt in (0, attempt) and begun >= since - SLACK_S:
            return each
    return None


def outcome(
    asked: Mapping[int, float], attempt: int, state: RunState, asked_by: SaveOn, seconds: float
) -> tuple[bool, str]:
    saved = answer_to(asked, attempt, state)
    if saved is not None:
        step = "" if saved.step is None else f" at step {saved.step:,}"
        later = max(0.0, saved.at - min(asked.values()))
        return True, f"saved{step}: {clean_text(saved.path)}, {later:.1f} s after it was asked for"
    if state.phase.ended:
        return False, f"the run ended before a save came: {state.end_text}"
    if state.attempt != attempt:
        return False, f"attempt {state.attempt} began before a save came"
    newest = state.checkpoints[-1] if state.checkpoints else None
    torn = newest is not None and not newest.complete and newest.at >= min(asked.values()) - SLACK_S
    what = "the save is not complete" if torn else "no save came"
    return False, f"{what} within {seconds:g} s ({words(asked_by)})"


def settled(asked: Mapping[int, float], attempt: int, state: RunState) -> bool:
    """Whether waiting is over."""
    return state.phase.ended or state.attempt != attempt or answer_to(asked, attempt, state) is not None


def patience(seconds: float) -> float:
    """Return the requested seconds, at least 0 and at most MOST_SECONDS; SECONDS for NaN."""
    return min(max(0.0, seconds), MOST_SECONDS) if seconds == seconds else SECONDS


def now_of(ranks: Mapping[int, object]) -> dict[int, float]:
    """Map each rank to the current unix time."""
    return dict.fromkeys(ranks, clock.now())


async def awaited(
    run: DaemonRun, asked_by: SaveOn, asked: Mapping[int, float], attempt: int, seconds: float
) -> tuple[bool, str]:
    """Wait for the requested checkpoint (rank → unix time), and return whether it came, with a sentence."""
    state, seconds = run.state, patience(seconds)
    await run.until(lambda: settled(asked, attempt, state), seconds)
    return outcome(asked, attempt, state, asked_by, seconds)


async def saved_then(command: Restart, seconds: float, send: Send) -> CommandDone:
    """Ask the ranks to save, and restart them after a new complete checkpoint; without one restart nothing.

    Raises the exceptions of `send`.
    """
    saved = await send(Save(new_id(), seconds))
    if not saved.ok:
        return CommandDone(command.id, False, f"{saved.text}; nothing was restarted")
    done = await send(command)
    return CommandDone(done.id, done.ok, f"{saved.text}; {done.text}", done.data)
