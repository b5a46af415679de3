"""The first cause of a failed attempt, and the AttemptEnded record for the journal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from ...presets.finding import Finding
from ...presets.sanitize import clean_line, clean_text
from ..diagnosis import activity
from ..diagnosis.died import blame_hung_rank
from ..inrank.failure_causes import Failure, left_early
from ..run.model import AttemptEnded, FirstCause, Outcome, RankChanged, RankPhase
from ..run.pulse import Site
from ..run.state import is_earlier
from .ended_ranks import LAST_LINES, LONGEST, Ended, Raised


def first_cause(
    failed: list[Ended], exited_ok: Iterable[RankChanged], gather: Callable[[RankChanged], Ended]
) -> FirstCause | None:
    """Return the rank whose failure made the others fail. All other failed ranks are its victims.

    It is the rank that failed earliest on its own. If all failed ranks only lost their connections, it is the rank of
    `exited_ok` (exit code 0) that exited earliest. Both are in the order of the reports. `gather` reads the files of
    that rank.
    """
    if not failed:
        return None
    failures = {end.change.rank: end.failure for end in failed}
    own = [failure for failure in failures.values() if not failure.symptom] or list(failures.values())
    first = _earliest({failure.rank: failure.at or None for failure in own})
    exits = {change.rank: change for change in exited_ok}
    early_exit = _early_exit(failures[first], exits)
    if early_exit is not None:
        return _exited_early(gather(exits[early_exit.rank]), early_exit, tuple(sorted(failures)))
    culprit = next(end for end in failed if end.change.rank == first)
    return _failed(culprit, failures[first], tuple(sorted(failures.keys() - {first})))


def _early_exit(failure: Failure, exits: Mapping[int, RankChanged]) -> Failure | None:
    """Return the earliest of the exits with code 0 as the failure, if `failure` only follows from it."""
    if not exits:
        return None
    first = _earliest({rank: change.at for rank, change in exits.items()})
    return left_early(failure, {first: (exits[first].at or 0.0, None)})


def _earliest(times: Mapping[int, float | None]) -> int:
    """Return the rank with the earliest of the times, which are in the order of the reports."""
    first, *later = times
    for rank in later:
        if is_earlier(times[rank], times[first]):
            first = rank
    return first


def _exited_early(culprit: Ended, early_exit: Failure, victims: tuple[int, ...]) -> FirstCause:
    return FirstCause(
        rank=culprit.change.rank,
        local_rank=culprit.change.local_rank,
        node=culprit.node,
        pid=culprit.change.pid,
        exit_code=0,
        text=early_exit.text,
        victims=victims,
        at=culprit.change.at,
        kind=early_exit.kind,
        remedy=early_exit.remedy,
        retry=early_exit.retry,
        last_lines=culprit.last_lines[-LAST_LINES:],
    )


def _failed(culprit: Ended, failure: Failure, victims: tuple[int, ...]) -> FirstCause:
    change = culprit.change
    return FirstCause(
        rank=change.rank,
        local_rank=change.local_rank,
        node=culprit.node,
        pid=change.pid,
        exit_code=change.exit_code if change.signal is None else None,
        signal=change.signal,
        oom=culprit.evidence.oom,
        text=describe(failure),
        last_lines=culprit.last_lines[-LAST_LINES:],
        victims=victims,
        at=failure.at or None,
        symptom=failure.symptom,
        kind=failure.kind,
        remedy=clean_text(failure.remedy),
        retry=failure.retry,
        where=clean_text(failure.where or _own_line(culprit.crash)),
        evidence=(*_stack_at(culprit.crash), *_led_to(culprit.raised), *culprit.evidence.lines),
    )


def _led_to(raised: Raised | None) -> tuple[str, ...]:
    """Return the exception that led to the last one, and that may explain it."""
    if raised is None or not raised.before:
        return ()
    return (f"caused by {clean_text(raised.before[0].strip())}",)


def _own_line(crash: tuple[Site, ...]) -> str:
    """Return the file and line of the innermost frame in the user's code; "" without one."""
    own = next((site for site in crash if activity.own_code(site.file)), None)
    return "" if own is None else f"{own.file}:{own.line}"


def _stack_at(crash: tuple[Site, ...]) -> tuple[str, ...]:
    return (clean_text(f"its stack at that moment: {activity.stack_text(crash[:6])}"),) if crash else ()


def succeeded(changes: Mapping[int, RankChanged]) -> list[RankChanged]:
    """Return the changes of ranks that exited with code 0."""
    return [change for change in changes.values() if change.state is RankPhase.SUCCEEDED]


def describe(failure: Failure) -> str:
    """Return one printable sentence on how and why a rank ended."""
    return clean_line(failure.text.encode("utf-8", "replace"), LONGEST)


def close_attempt(
    attempt: int,
    changes: Mapping[int, RankChanged],
    *,
    requested: Outcome | None,
    gather: Callable[[RankChanged], Ended],
    reported: str = "",
    hangs: Iterable[Finding] = (),
) -> AttemptEnded:
    """Return the AttemptEnded record of an attempt whose ranks have all ended, or will end now.

    `changes`: last change of each rank, in the order of the reports. `requested`: RESTARTED or STOPPED if a viewer
    requested the end. `gather`: reads the files of an ended rank. `reported`: the launcher's reason to give up, if it
    reported one. `hangs`: findings about hangs at the time of the first rank's failure.
    """
    failed = [change for change in changes.values() if change.state in (RankPhase.FAILED, RankPhase.KILLED)]
    if requested is not None:
        return AttemptEnded(attempt, requested, None, f"attempt {attempt} {requested}")
    cause = first_cause([gather(change) for change in failed], succeeded(changes), gather)
    if cause is not None:
        cause = blame_hung_rank(cause, hangs, changes)
        more = f"; {len(cause.victims)} more followed" if cause.victims else ""
        return AttemptEnded(attempt, Outcome.FAILED, cause, f"attempt {attempt} failed: {cause.text}{more}")
    if reported:
        return AttemptEnded(attempt, Outcome.FAILED, None, f"attempt {attempt} failed: {reported}")
    if changes and all(change.state is RankPhase.SUCCEEDED for change in changes.values()):
        return AttemptEnded(attempt, Outcome.SUCCEEDED, None, f"attempt {attempt} succeeded")
    return AttemptEnded(attempt, Outcome.LOST, None, f"attempt {attempt} ended; exit status unknown")
