"""Report how ranks ended: exit code, signal, exception, kernel log, and whether a restart can help."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from ...presets.finding import Finding
from ..inrank.failure_causes import PEERS, UNEVEN
from ..run.formatting import size_text, spans_text
from ..run.model import Checkpoint, FirstCause, Outcome, RankChanged, RankPhase, RunPhase
from ..run.state import Attempt, RunState
from . import out_of_memory
from .view import View

LINES = 8
"""Maximum number of stderr's last lines in the evidence."""
OTHERS_S = 10.0
"""Seconds that victims are held back while other nodes still run, which may report the cause."""
CLOSES_S = 4.0
"""Seconds after the first rank's failure before it is reported although the attempt has not ended."""
TRAINS_S, STARTS_S = 120.0, 300.0
"""Seconds that the previous attempt's failure stays visible: if the new attempt makes steps, and if it makes none."""
TORN_S = 10.0
"""Seconds that a torn checkpoint is held back while its attempt runs: its cause may be about to end the attempt."""
FAILED = (Outcome.FAILED, Outcome.LOST)
MEMORY = ("cuda-oom", "host-oom", "killed")
"""Classes that out_of_memory.py may explain better."""
LOST = "see runner.log and the kernel's log there: the kernel usually ends a runner when memory runs out"
LAUNCHER = "the launcher itself reported it, and no rank failed before: see runner.log there"
CAN_HELP = {"no": "a restart cannot help before that", "maybe": "", "yes": "a restart can help"}


def find(view: View) -> Iterable[Finding]:
    """Report the first cause of the current attempt if it failed without a requested stop."""
    state = view.state
    attempt = _at_hand(view)
    if attempt is None or state.phase in (RunPhase.STOPPING, RunPhase.STOPPED):
        return
    cause = attempt.first_cause
    if attempt.ended is None:
        yield from _of_open(view, attempt, cause)
        return
    if cause is None:
        yield from _without_rank(attempt)
    elif cause.kind:
        yield from _of_ended(view, attempt, cause, attempt.ended)


def _without_rank(attempt: Attempt) -> Iterable[Finding]:
    """Report the end of an attempt that no rank's failure explains."""
    if attempt.outcome is Outcome.LOST and attempt.text:
        yield Finding("died-lost", "error", attempt.text, remedy=LOST, since=attempt.ended)
    if attempt.outcome is Outcome.FAILED and attempt.text:
        yield Finding("died-launcher", "error", attempt.text, remedy=LAUNCHER, since=attempt.ended)


def _of_ended(view: View, attempt: Attempt, cause: FirstCause, ended: float) -> Iterable[Finding]:
    """Report a failed rank after the end of its attempt: one finding per failure."""
    if cause.symptom and view.now < ended + OTHERS_S and _others(view.state, cause):
        return
    early = _left_early(view.state, attempt, cause) if _gone(cause) else []
    if not early and attempt is view.attempt:
        early = _done_early(view.state, cause)
    if early:
        yield _left(view, attempt, cause, early)
    elif not _is_explained_by_memory(view, cause):
        yield _finding(view, attempt, cause)


def _is_explained_by_memory(view: View, cause: FirstCause) -> bool:
    return cause.kind in MEMORY and any(each.id.startswith("oom-") for each in out_of_memory.find(view))


def blame_hung_rank(
    cause: FirstCause, hangs: Iterable[Finding], changes: Mapping[int, RankChanged]
) -> FirstCause:
    """Return the rank that the others waited for if a timeout ended their wait; else `cause`.

    `hangs`: findings that were raised when the first rank ended. `changes`: the last change of each rank.
    """
    if not cause.symptom or cause.kind != "timeout":
        return cause
    hang = next((each for each in hangs if each.rank in changes), None)  # torch also ends that rank
    if hang is None or hang.rank is None:
        return cause
    late = changes[hang.rank]
    waited = {cause.rank, *cause.victims, *changes} - {late.rank}
    return FirstCause(
        rank=late.rank,
        local_rank=late.local_rank,
        node=cause.node,
        pid=late.pid,
        text=f"{hang.text}, until the time limit of the collective",
        victims=tuple(sorted(waited)),
        at=cause.at,
        kind=cause.kind,
        remedy=hang.remedy,
        retry=cause.retry,
        evidence=(cause.text, *hang.evidence),
    )


def _at_hand(view: View) -> Attempt | None:
    """Return the newest attempt if it or one of its ranks failed. Until it makes progress, the one before counts."""
    newest = view.attempt
    if (
        newest is None
        or newest.outcome in FAILED
        or (newest.ended is None and newest.first_cause is not None)
    ):
        return newest
    before = view.state.attempts[-2] if len(view.state.attempts) > 1 else None
    if newest.ended is not None or before is None or before.outcome not in FAILED:
        return None
    return None if _further(view, newest, before) else before


def _further(view: View, newest: Attempt, before: Attempt) -> bool:
    """Whether the attempt passed the step where the one before failed, or has run long enough to have passed it."""
    counts = [rank.sample.step or 0 if rank.sample else 0 for rank in view.state.ranks.values()]
    least, age = min(counts, default=0), view.now - newest.began
    return least > before.steps or age > (TRAINS_S if least else STARTS_S)


def _of_open(view: View, attempt: Attempt, cause: FirstCause | None) -> Iterable[Finding]:
    """Report a failed rank before the others end: torchrun waits for ranks that ignore its SIGTERM."""
    since = None if cause is None else cause.at
    if cause is None or since is None or not cause.kind or cause.symptom or view.now < since + CLOSES_S:
        return
    early = _left_early(view.state, attempt, cause) if _gone(cause) else []
    yield _left(view, attempt, cause, early) if early else _finding(view, attempt, cause)


def reported(view: View) -> int | None:
    """Return the rank of a living attempt whose death `find` reports; None without one."""
    attempt = view.attempt
    if attempt is None or attempt.ended is not None or attempt.first_cause is None:
        return None
    return attempt.first_cause.rank if list(_of_open(view, attempt, attempt.first_cause)) else None


def _left_early(state: RunState, attempt: Attempt, cause: FirstCause) -> list[int]:
    """Return all ranks that ended with exit code 0, the first one included: of several none is the only cause."""
    done = {number for number, rank in state.ranks.items() if rank.phase is RankPhase.SUCCEEDED}
    return sorted({cause.rank, *done}) if attempt is state.newest else [cause.rank]


def _gone(cause: FirstCause) -> bool:
    """Whether the rank ended with exit code 0 before the others were done."""
    return cause.kind == "left-early"


def _finding(view: View, attempt: Attempt, cause: FirstCause) -> Finding:
    state = view.state
    return Finding(
        id=f"died-{cause.kind}",
        severity="warning" if cause.kind == "exit-abort" else "error",
        role="symptom" if cause.symptom else "cause",
        text=_of(view, attempt) + _text(view, cause),
        rank=cause.rank,
        ranks=tuple(sorted((cause.rank, *cause.victims))) if cause.victims else (),
        node=cause.node,
        remedy="; ".join(part for part in (cause.remedy, CAN_HELP.get(cause.retry, "")) if part),
        evidence=(*_evidence(state, attempt, cause), *_memory(view, attempt, cause)),
        since=cause.at if cause.at is not None else attempt.ended,
    )


def _memory(view: View, attempt: Attempt, cause: FirstCause) -> Iterable[str]:
    """Return the memory growth of a killed rank, which may be the reason for the kill."""
    return out_of_memory.grew(view, attempt, cause.rank) if cause.kind == "killed" else ()


def find_torn_checkpoint(view: View) -> Iterable[Finding]:
    """Report that the newest checkpoint was cut off while it was saved. A load fails or has incomplete data.

    A save without data on disk leaves no such file. If the same attempt failed, this is a consequence.
    """
    torn = next(reversed(view.state.checkpoints), None)
    if torn is None or torn.complete or torn.size is None:
        return
    attempt = next((each for each in view.state.attempts if each.number == torn.attempt), None)
    is_running = attempt is not None and attempt.ended is None
    if not is_running or view.now >= torn.at + TORN_S:
        yield _torn(torn, view.state.checkpoint, attempt is not None and attempt.first_cause is not None)


def _torn(torn: Checkpoint, whole: Checkpoint | None, has_failed: bool) -> Finding:
    """Return the finding of a torn checkpoint. `has_failed`: a rank of its attempt failed, which explains it."""
    who = "" if torn.rank is None else f" of rank {torn.rank}"
    return Finding(
        id="checkpoint-torn",
        severity="note" if has_failed else "warning",
        role="fact" if has_failed else "cause",
        text=f"the checkpoint {torn.path} is incomplete: the save{who} ({torn.source}) was cut off",
        rank=torn.rank,
        remedy=f"resume from {'an earlier checkpoint' if whole is None else whole.path}",
        evidence=(f"{torn.path} holds {size_text(torn.size or 0)}",),
        since=torn.at,
    )


def _others(state: RunState, cause: FirstCause) -> bool:
    """Whether ranks of other nodes still run."""
    return any(
        rank.phase is RankPhase.RUNNING and rank.place.node != cause.node for rank in state.ranks.values()
    )


def _done_early(state: RunState, cause: FirstCause) -> list[int]:
    """Return the ranks that had finished the script when others lost their connections to them."""
    if not cause.symptom or cause.kind not in PEERS:
        return []
    return sorted(number for number, rank in state.ranks.items() if rank.phase is RankPhase.SUCCEEDED)


def _left(view: View, attempt: Attempt, cause: FirstCause, early: list[int]) -> Finding:
    """Report a rank that exited normally, which looks like a crash on the others."""
    return Finding(
        id="died-peer-gone",
        severity="error",
        text=f"{_of(view, attempt)}{view.ranks_text(early)} ended with exit code 0 before the others were done",
        rank=early[0] if len(early) == 1 else None,
        ranks=tuple(sorted({*early, cause.rank, *cause.victims})),
        node=view.state.ranks[early[0]].place.node if early[0] in view.state.ranks else cause.node,
        remedy=UNEVEN,
        evidence=(
            *(() if cause.rank in early else (f"because of it {cause.text}",)),
            *_evidence(view.state, attempt, cause),
        ),
        since=cause.at if cause.at is not None else attempt.ended,
    )


def _of(view: View, attempt: Attempt) -> str:
    """Name the attempt if a newer one runs."""
    return "" if attempt is view.attempt else f"attempt {attempt.number}: "


def _text(view: View, cause: FirstCause) -> str:
    """Return the ledger's sentence, with the node if the run has several."""
    plain = f"rank {cause.rank}"
    if not view.has_several_nodes() or not cause.text.startswith(plain + " "):
        return cause.text
    return f"{plain} on {view.host(cause.node)}{cause.text[len(plain) :]}"


def _evidence(state: RunState, attempt: Attempt, cause: FirstCause) -> Iterator[str]:
    ended = cause.signal or (None if cause.exit_code is None else f"exit code {cause.exit_code}")
    if ended is not None:
        yield f"attempt {attempt.number}: rank {cause.rank} (pid {cause.pid}) ended with {ended}"
    before = _before(state, attempt, cause)
    if before:
        yield f"{spans_text('attempt', before)} ended in the same way"
    if cause.victims:
        yield f"after it: {spans_text('rank', cause.victims)}"
    if cause.where:
        yield f"{'raised' if cause.signal is None else 'crashed'} at {cause.where}"
    if cause.oom:
        yield cause.oom
    yield from cause.evidence
    yield from _xids(state, cause)
    yield from cause.last_lines[-LINES:]


def _before(state: RunState, attempt: Attempt, cause: FirstCause) -> list[int]:
    """Return the consecutive earlier attempts that ended with the same class at the same place."""
    numbers: list[int] = []
    for earlier in reversed([each for each in state.attempts if each.number < attempt.number]):
        other = earlier.first_cause
        if other is None or (other.kind, other.where) != (cause.kind, cause.where):
            break
        numbers.append(earlier.number)
    return numbers


def _xids(state: RunState, cause: FirstCause) -> Iterator[str]:
    """Yield Xid errors of that node's GPUs during the run."""
    for finding in state.findings.values():
        if finding.id.startswith("xid-") and finding.node in (None, cause.node):
            yield finding.text
