"""Preset and its parts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class RestartPolicy:
    """When the worker group starts again after a rank failed."""

    limit: int = 3
    """Failures after which the run is given up. 0: never restart."""
    backoff_s: float = 1.0
    """Seconds before the first restart; doubled with each further failure."""
    backoff_max_s: float = 60.0
    """Upper bound of that wait, seconds."""
    reset_after_s: float = 600.0
    """Seconds without failure after which the count starts again at 0."""
