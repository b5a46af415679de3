"""Exit codes of verbs, other than 0 and 2."""

from __future__ import annotations

from ..runners.run.errors import NoSuchRunError, UnknownOutcomeError, UnreachableError

FAILED = 1
"""Exit code if the run, the command or the check failed."""
NO_RUN = NoSuchRunError.code
UNREACHABLE = UnreachableError.code
UNKNOWN_OUTCOME = UnknownOutcomeError.code
LOST = 6
"""Exit code of `wait` for a run whose agent and runner have died."""
TIMED_OUT = 124
"""Exit code of `wait` after its timeout, as of timeout(1): the run may still get there."""
