"""The first cause of a failed attempt, and the ledger's entry for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from ...presets.finding import Finding
from ...presets.sanitize import clean_line, clean_text
from ..diagnosis import activity
from ..diagnosis.died import behind
from ..inrank.failure_causes import Failure, first_of, left_early
from ..run.model import AttemptEnded, FirstCause, Outcome, RankChanged, RankPhase, Site
from .ended_ranks import LAST_LINES, LONGEST, Ended, Raised


def first_cause(
    ended: list[Ended], done: Iterable[RankChanged], gathered: Callable[[RankChanged], Ended]
) -> FirstCause | None:
    """Return the earliest rank that failed on its own. Ranks that failed because of it are its victims.

    `done`: ranks that ended with exit code 0. If the other ranks only lost their connections, the first of these is the
    cause, and `gathered` reads its last lines.
    """
    if not ended:
        return None
    failures = {end.change.rank: end.failure for end in ended}
    failure = first_of(list(failures.values()))
    assert failure is not None
    through = {change.rank: change for change in done}
    leaver = left_early(failure, {rank: (change.at or 0.0, None) for rank, change in through.items()})
    if leaver is not None:
        left = gathered(through[leaver.rank])
        return _left_early(left, leaver, ended[0].node, tuple(sorted(failures)))
    first = next(end for end in ended if end.change.rank == failure.rank)
    return _failed(first, failure, tuple(sorted(failures.keys() - {failure.rank})))


def _left_early(left: Ended, failure: Failure, node: int, victims: tuple[int, ...]) -> FirstCause:
    return FirstCause(
        rank=left.change.rank,
        local_rank=left.change.local_rank,
        node=node,
        pid=left.change.pid,
        exit_code=0,
        text=failure.text,
        victims=victims,
        at=left.change.at,
        kind=failure.kind,
        remedy=failure.remedy,
        retry=failure.retry,
        last_lines=left.last_lines[-LAST_LINES:],
    )


def _failed(first: Ended, failure: Failure, victims: tuple[int, ...]) -> FirstCause:
    change = first.change
    return FirstCause(
        rank=change.rank,
        local_rank=change.local_rank,
        node=first.node,
        pid=change.pid,
        exit_code=change.exit_code if change.signal is None else None,
        signal=change.signal,
        oom=first.evidence.oom,
        text=describe(failure),
        last_lines=first.last_lines[-LAST_LINES:],
        victims=victims,
        at=failure.at or None,
        symptom=failure.symptom,
        kind=failure.kind,
        remedy=clean_text(failure.remedy),
        retry=failure.retry,
        where=clean_text(failure.where or _own_line(first.crash)),
        evidence=(*_stack_at(first.crash), *_led_to(first.raised), *first.evidence.lines),
    )


def _led_to(raised: Raised | None) -> tuple[str, ...]:
    """Return the exception that led to the last one, and that may explain it."""
    before = raised.before if raised is not None else ()
    return tuple(f"it came of {clean_text(earlier.strip())}" for earlier in before[:1])


def _own_line(crash: tuple[Site, ...]) -> str:
    own = next((site for site in crash if activity.own_code(site)), None)
    return "" if own is None else f"{own.file}:{own.line}"


def _stack_at(crash: tuple[Site, ...]) -> tuple[str, ...]:
    return (clean_text(f"its stack at that moment: {activity.stack_text(crash[:6])}"),) if crash else ()


def succeeded(changes: Mapping[int, RankChanged]) -> list[RankChanged]:
    return [change for change in changes.values() if change.state is RankPhase.SUCCEEDED]


def describe(failure: Failure) -> str:
    """Return one printable sentence on how and why a rank ended."""
    return clean_line(failure.text.encode("utf-8", "replace"), LONGEST)


def close_attempt(
    attempt: int,
    changes: Mapping[int, RankChanged],
    *,
    asked: Outcome | None,
    gathered: Callable[[RankChanged], Ended],
    reported: str = "",
    hangs: Iterable[Finding] = (),
) -> AttemptEnded:
    """Return the ledger's entry for an attempt whose ranks have all ended, or will end now.

    `asked` is RESTARTED or STOPPED on request. `changes`: last change of each rank. `reported`: the launcher's reason
    to give up, if it reported one. `hangs`: findings at the first rank's failure.
    """
    failed = [change for change in changes.values() if change.state in (RankPhase.FAILED, RankPhase.KILLED)]
    cause = first_cause([gathered(change) for change in failed], succeeded(changes), gathered)
    if asked is not None:
        return AttemptEnded(attempt, asked, None, f"attempt {attempt} {asked}")
    if cause is not None:
        cause = behind(cause, hangs, changes)
        more = f"; {len(cause.victims)} more followed" if cause.victims else ""
        return AttemptEnded(attempt, Outcome.FAILED, cause, f"attempt {attempt} failed: {cause.text}{more}")
    if reported:
        return AttemptEnded(attempt, Outcome.FAILED, None, f"attempt {attempt} failed: {reported}")
    if changes and all(change.state is RankPhase.SUCCEEDED for change in changes.values()):
        return AttemptEnded(attempt, Outcome.SUCCEEDED, None, f"attempt {attempt} succeeded")
    return AttemptEnded(attempt, Outcome.LOST, None, f"attempt {attempt} ended; exit status unknown")
