"""Exit codes of verbs in addition to those of all programs."""

LOST = 6
"""Exit code of `wait` for a run whose agent and runner have died."""
TIMED_OUT = 124
"""Exit code of `wait` after its timeout, as of timeout(1): the run may still get there."""
