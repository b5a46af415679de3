"""Report ranks whose script is done but that do not exit: a running thread, a worker process, an atexit function."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ...presets.finding import Finding
from ..run.formatting import agreeing, spans_text
from ..run.model import RankPhase
from ..run.pulse import Pulse
from . import activity, held_by, progress
from .view import View
from .waits import ended

SHUTS_DOWN = 8
"""Pulses of a rank whose interpreter shuts down until it is reported: one comes every two seconds."""
LEAVES_S = 20.0
"""Seconds from the last step until a rank that sleeps at its exit is reported. Uploads and logs end before."""
NEVER_S = 90.0
"""Seconds from the last step until the exit counts as endless."""
_EXITS = {
    "_shutdown": ("/threading.py", "a thread"),
    "_python_exit": ("/concurrent/futures/thread.py", "a thread of an executor"),
    "_exit_function": ("/multiprocessing/util.py", "a process of multiprocessing"),
}
"""File and awaited object of the library functions that the interpreter calls at its exit."""
_REMEDY = (
    "end it in the script before the last line, or start threads that may be cut off with daemon=True; "
    "`distui dump RUN stacks` shows all threads"
)


def find(view: View) -> Iterable[Finding]:
    """Report ranks that wait at their exit, one finding per reason."""
    waiting: dict[str, list[int]] = {}
    proof: dict[str, tuple[str, ...]] = {}
    for rank, pulses in view.history.items():
        if pulses and not ended(view, rank) and (why := _held(pulses)):
            waiting.setdefault(why, []).append(rank)
            proof.setdefault(why, tuple(_proof(rank, pulses[-1])))
    gone = sorted(rank for rank, entry in view.state.ranks.items() if entry.phase is RankPhase.SUCCEEDED)
    for why, ranks in waiting.items():
        others = f"; {spans_text('rank', gone)} {agreeing(gone, 'has', 'have')} exited" if gone else ""
        does = f"{agreeing(ranks, 'is', 'are')} done with the script and {agreeing(ranks, 'does', 'do')} not exit"
        text = f"{view.ranks_text(ranks)} {does}, waiting for {why}{others}"
        yield Finding(
            "hang-leaving",
            _severity(view, ranks, gone),
            text,
            **view.rank_fields(ranks),
            remedy=_REMEDY,
            since=view.raised_since(text) or activity.still_since(view.history[ranks[0]]),
            evidence=proof[why],
        )


def _severity(view: View, ranks: Iterable[int], gone: Iterable[int]) -> str:
    """Return an error once all other ranks have been gone for a while: the job then never ends."""
    steps = [view.history[rank][-1].last_step for rank in ranks]
    is_long = all(step is not None and view.now - step >= NEVER_S for step in steps)
    alone = {*ranks, *gone} >= view.state.ranks.keys()
    return "error" if list(gone) and alone and is_long else "warning"


def _proof(rank: int, pulse: Pulse) -> Iterable[str]:
    if pulse.stack:
        yield f"stack of rank {rank}: {activity.stack_text(pulse.stack[:4])}"
    yield from map(held_by.of_thread, pulse.threads[:4])


def _held(pulses: Sequence[Pulse]) -> str:
    """Return what a rank waits for at its exit; "" if it is not at its exit, works, or has just made a step."""
    newest = pulses[-1]
    if len(pulses) >= SHUTS_DOWN and all(pulse.leaving for pulse in pulses):
        return "the end of the interpreter: a destructor, or a thread of a library, takes long"
    what = _exit_call(newest)
    if not what or newest.at - (newest.last_step or 0.0) < LEAVES_S:
        return ""
    if activity.asleep_s(pulses) < activity.ASLEEP_S or progress.movement(pulses) is not None:
        return ""
    if newest.stack[-1].name == "_shutdown":
        for thread in newest.threads:
            own = () if thread.error else activity.telling_frames(thread.stack, 1)
            if own:
                return f"its thread {thread.name} at {activity.site_text(own[0])}"
    return what


def _exit_call(pulse: Pulse) -> str:
    """Return what the interpreter's call at its exit waits for; "" if the main thread is not in such a call."""
    stack = pulse.stack
    if not pulse.hook or not stack or len(stack) >= 24:  # a longer stack lacks its outermost frames
        return ""
    file, what = _EXITS.get(stack[-1].name, ("", ""))
    return what if stack[-1].file.endswith(file) else ""
