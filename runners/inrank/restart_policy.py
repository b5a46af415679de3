"""The restart policy: decide whether another attempt follows, from the exits and the files of the ranks."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from .failure_causes import Death, Failure, classify, first_of, left_early


class Decision(NamedTuple):
    """Whether and when another attempt follows a failure."""

    restart: bool
    wait_s: float
    """Seconds before the next attempt."""
    failures: int
    """Failures counted so far, including this one."""


UNLIMITED: Mapping[str, float] = {
    "limit": 10**9,
    "backoff_s": 0.0,
    "backoff_max_s": 0.0,
    "reset_after_s": 10**9,
    "always": True,
}
"""The policy for ranks that another launcher restarts: that launcher decides how often."""

_DOUBLINGS = 60
"""Limit of the exponent of the backoff, to prevent an overflow."""


def after_failure(policy: Mapping[str, float], failures: int, healthy_s: float) -> Decision:
    """Decide whether the group restarts after a rank failed.

    `policy` has limit, backoff_s, backoff_max_s, reset_after_s (see presets.model.RestartPolicy); `failures`
    is the count before this one; `healthy_s` is how long the group had run.
    """
    failures = 1 if healthy_s >= policy["reset_after_s"] else failures + 1
    if failures > policy["limit"]:
        return Decision(False, 0.0, failures)
    wait_s = min(policy["backoff_s"] * 2 ** min(failures - 1, _DOUBLINGS), policy["backoff_max_s"])
    return Decision(True, float(wait_s), failures)


def hopeless(
    policy: Mapping[str, float],
    failure: Failure | None,
    earlier: Failure | None,
    healthy_s: float,
    earlier_s: float = 0.0,
) -> str:
    """Return why no restart can help after this failure; "" if it may help, or if the policy always restarts.

    `earlier` is the first cause of the previous attempt, which ran for `earlier_s`. If the same failure comes at another
    step, the group may have progressed from a checkpoint. If the group ran for reset_after_s, it has progressed.
    """
    if failure is None or policy.get("always"):
        return ""
    if failure.retry == "no":
        return "a restart cannot help: %s" % failure.text
    if earlier is None or healthy_s >= policy["reset_after_s"]:
        return ""
    again = _repeated(failure, earlier, healthy_s, earlier_s)
    return "" if again is None else "gave up: failed in the same way twice%s: %s" % (again, failure.text)


def _repeated(failure: Failure, earlier: Failure, healthy_s: float, earlier_s: float) -> str | None:
    """Return when the same failure came twice, as words (maybe ""); None if it did not, or if it came elsewhere."""
    if not failure.key or failure.key != earlier.key:
        return None
    if failure.step is None or earlier.step is None:
        is_equal = max(healthy_s, earlier_s) <= 2 * min(healthy_s, earlier_s)
        known = failure.key.startswith(_BY_SIGNAL) and is_equal
        return ", after %.0f and %.0f s" % (earlier_s, healthy_s) if known else None
    if not 0 <= earlier.step - failure.step <= STEPS_APART:
        return None
    if failure.untrained:
        return ", before the first step"  # else 0 may mean that steps are not counted
    return ", at the same step (%d)" % failure.step if failure.step else ""


STEPS_APART = 2
"""The failed step may be this much lower than before and still counts as the same. A higher step is progress."""
_BY_SIGNAL = "signal "
"""Beginning of the keys of deaths without a noted step: for them the durations of the attempts are compared."""


def how_it_ended(exit_code: int | None, asked: bool, after_failure_of_another: bool) -> str:
    """Name the exit of a rank: one of the RankPhase values of the event schema.

    `exit_code` is as in subprocess (negative: signal), or None if it is unknown. `asked`: the launcher was ending the
    group. If another rank had failed before, SIGTERM and SIGKILL came from the launcher, too.
    """
    if asked:
        return "stopped"
    if exit_code is None:
        return "lost"
    if exit_code == 0:
        return "succeeded"
    if after_failure_of_another and exit_code in (-15, -9):
        return "stopped"
    return "killed" if exit_code < 0 else "failed"


TAIL_BYTES = 16384
"""Bytes read from the end of a rank's stderr."""


class RankExit(NamedTuple):
    """How a rank's process ended."""

    rank: int
    pid: int
    exit_code: int | None
    at: float
    """Unix time."""
    failed: bool
    """False if it exited because the group was ended."""


def first_failure(directory: str, ends: Iterable[RankExit]) -> Failure | None:
    """Return the first cause among the ranks of a node, whose files are in `directory`, or None.

    If the exit of a rank was not observed (too quick, or below a managed command), the exception that it noted counts.
    """
    ended = list(ends)
    first = first_of([classify(death) for death in _deaths(directory, ended)])
    through = {end.rank: (end.at, _steps_of(directory, end)) for end in ended if end.exit_code == 0}
    first = left_early(first, through) or first
    if first is None or first.kind != "exit-abort":
        return first
    if all(_finished(directory, end) for end in ended):
        return first
    return first._replace(retry="maybe")  # another rank was still at work


def _deaths(directory: str, ended: list[RankExit]) -> list[Death]:
    """Return the failed ranks whose exit was observed, or that noted an exception."""
    failed = [end for end in [*ended, *_unobserved(directory, ended)] if end.failed]
    deaths = [_death(directory, end) for end in failed]
    return [death for death in deaths if death.at or death.raised]


def _unobserved(directory: str, ended: Iterable[RankExit]) -> list[RankExit]:
    """Return exits of the other ranks that noted an exception."""
    seen = {end.rank for end in ended}
    return [RankExit(rank, 0, 1, 0.0, True) for rank in _raisers(directory) if rank not in seen]


class Deaths:
    """How the ranks of an attempt exited, and whether that allows another attempt."""

    def __init__(self) -> None:
        self.ends: dict[int, RankExit] = {}
        """Local rank → exit."""
        self.refusal = ""
        """Reason against a further attempt; "" if it is allowed."""
        self._earlier: Failure | None = None
        self._earlier_s = 0.0

    def allow(
        self, policy: Mapping[str, float], verdict: Decision, directory: str, healthy_s: float
    ) -> bool:
        """Return whether another attempt may follow this one, whose files are in `directory`."""
        failure = first_failure(directory, list(self.ends.values()))
        before = (self._earlier, healthy_s, self._earlier_s)
        self.refusal = hopeless(policy, failure, *before) if policy["limit"] else ""
        self._earlier, self._earlier_s = failure, healthy_s
        if not verdict.restart and not self.refusal:
            numbers = policy["limit"], verdict.failures
            self.refusal = "gave up: the restart policy allows %d failures, this was number %d" % numbers
        return not self.refusal


def _death(directory: str, end: RankExit) -> Death:
    stem = _stem(directory, end.rank)
    return Death(
        rank=end.rank,
        exit_code=end.exit_code,
        raised=noted(stem + ".exc"),
        lines=tail(stem + ".err"),
        pid=end.pid or None,
        at=end.at,
        finished=os.path.exists(stem + ".end"),
    )


def _steps_of(directory: str, end: RankExit) -> int | None:
    """Return the steps of a rank whose script reached its end; None if they were not counted."""
    return noted(_stem(directory, end.rank) + ".end").get("step") or None


def _finished(directory: str, end: RankExit) -> bool:
    return end.exit_code == 0 or os.path.exists(_stem(directory, end.rank) + ".end")


def _stem(directory: str, rank: int) -> str:
    return os.path.join(directory, "rank-%d" % rank)


def _raisers(directory: str) -> list[int]:
    try:
        names = os.listdir(directory)
    except OSError:
        return []
    ranks = [name[5:-4] for name in names if name.startswith("rank-") and name.endswith(".exc")]
    return sorted(int(rank) for rank in ranks if rank.isdigit())


def noted(path: str) -> dict[str, Any]:
    """Read a JSON object that the hook wrote; {} if it is missing or incomplete (full disk)."""
    try:
        with open(path) as file:
            note = json.load(file)
    except (OSError, ValueError):
        return {}
    return note if isinstance(note, dict) else {}


def tail(path: str) -> tuple[str, ...]:
    """Return the last lines of a log without empty ones; () if there is no log."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL_BYTES))
            data = file.read(TAIL_BYTES)
    except OSError:
        return ()
    return tuple(line for line in data.decode("utf-8", "replace").splitlines() if line.strip())
