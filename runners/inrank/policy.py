"""The restart policy: decides purely, acts nowhere."""

from collections import namedtuple

Verdict = namedtuple("Verdict", "restart wait_s failures")
"""restart: bool; wait_s: seconds before the next attempt; failures: counted so far, this one included."""


def after_failure(policy, failures, healthy_s):
    """Decide what follows when a rank failed.

    `policy` has limit, backoff_s, backoff_max_s, reset_after_s (see presets.model.RestartPolicy); `failures`
    were counted before this one; `healthy_s` is how long the group had run.
    """
    failures = 1 if healthy_s >= policy["reset_after_s"] else failures + 1
    if failures > policy["limit"]:
        return Verdict(False, 0.0, failures)
    wait_s = min(policy["backoff_s"] * 2 ** (failures - 1), policy["backoff_max_s"])
    return Verdict(True, float(wait_s), failures)


def how_it_ended(exit_code, asked, after_failure_of_another):
    """Name the end of a rank: one of the RankPhase values of the event schema.

    `exit_code` as subprocess gives it (negative: signal). SIGTERM and SIGKILL are the launcher's own when the
    group was being ended (`asked`), or when another rank had failed before.
    """
    if asked:
        return "stopped"
    if exit_code == 0:
        return "succeeded"
    if after_failure_of_another and exit_code in (-15, -9):
        return "stopped"
    return "killed" if exit_code < 0 else "failed"
