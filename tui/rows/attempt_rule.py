"""The line between the logs of two attempts: which attempt begins, and why. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from ...presets.secrets import mask
from ...runners.run.state import Attempt

_CAUSES = {
    "restart": "restarted on request",
    "failure": "restarted after a failure",
    "membership": "restarted because nodes joined or left",
}


def attempt_rule(attempts: Sequence[Attempt], number: int) -> str:
    """Return `── attempt 2 · restarted after rank 1 failed ──`."""
    index = next((index for index, attempt in enumerate(attempts) if attempt.number == number), None)
    parts = [f"attempt {number}"]
    if index is not None:
        parts += _reasons(attempts[index], attempts[index - 1] if index else None)
    return f"── {' · '.join(filter(None, parts))} ──"


def _reasons(attempt: Attempt, before: Attempt | None) -> list[str]:
    """Return why an attempt began, and the variables that changed."""
    why = _CAUSES.get(attempt.cause, "")
    if attempt.cause == "failure" and before is not None and before.first_cause is not None:
        why = f"restarted after rank {before.first_cause.rank} failed"
    return [why, environment_changes(attempt)]


def environment_changes(attempt: Attempt) -> str:
    """Return the variables that changed since the attempt before, secrets masked: `-A B=1`."""
    return " ".join(
        f"-{name}" if value is None else f"{name}={mask(name, value)}"
        for name, value in sorted(attempt.env_diff.items())
    )
