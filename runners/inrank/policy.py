"""The restart policy: decides purely, acts nowhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from .classes import Failure


class Verdict(NamedTuple):
    """What follows a failure."""

    restart: bool
    wait_s: float
    """Seconds before the next attempt."""
    failures: int
    """Counted so far, this one included."""


UNLIMITED: Mapping[str, float] = {
    "limit": 10**9,
    "backoff_s": 0.0,
    "backoff_max_s": 0.0,
    "reset_after_s": 10**9,
    "always": True,
}
"""For ranks whose own launcher decides how often they start again."""

_DOUBLINGS = 60
"""More of them change nothing, and would overflow."""


def after_failure(policy: Mapping[str, float], failures: int, healthy_s: float) -> Verdict:
    """Decide what follows when a rank failed.

    `policy` has limit, backoff_s, backoff_max_s, reset_after_s (see presets.model.RestartPolicy); `failures`
    were counted before this one; `healthy_s` is how long the group had run.
    """
    failures = 1 if healthy_s >= policy["reset_after_s"] else failures + 1
    if failures > policy["limit"]:
        return Verdict(False, 0.0, failures)
    wait_s = min(policy["backoff_s"] * 2 ** min(failures - 1, _DOUBLINGS), policy["backoff_max_s"])
    return Verdict(True, float(wait_s), failures)


def hopeless(
    policy: Mapping[str, float], failure: Failure | None, earlier: Failure | None, healthy_s: float
) -> str:
    """Why no restart can help after this failure; "" when it may, or when the policy restarts always.

    `earlier` is the first cause of the attempt before. Whoever failed in the same way at another step may have made
    progress from a checkpoint, and a group that was healthy for long has.
    """
    if failure is None or policy.get("always"):
        return ""
    if failure.retry == "no":
        return "a restart cannot help: %s" % failure.text
    again = earlier is not None and failure.key and failure.key == earlier.key
    if not again or failure.step is None or healthy_s >= policy["reset_after_s"]:
        return ""
    if earlier is None or failure.step != earlier.step:
        return ""
    when = "at the same step (%d)" % failure.step if failure.step else "before the first step"
    return "gave up: failed in the same way twice, %s: %s" % (when, failure.text)


def how_it_ended(exit_code: int | None, asked: bool, after_failure_of_another: bool) -> str:
    """Name the end of a rank: one of the RankPhase values of the event schema.

    `exit_code` as subprocess gives it (negative: signal; None: nobody saw it). SIGTERM and SIGKILL are the
    launcher's own when the group was being ended (`asked`), or when another rank had failed before.
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
