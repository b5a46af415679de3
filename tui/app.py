"""The cockpit: one Textual app over one RunSource."""

from __future__ import annotations

from .follow import RunSource


def run_cockpit(source: RunSource, run_id: str | None, readonly: bool = False, ascii: bool = False) -> int:
    """Show the cockpit until the user leaves it and return the process's exit status.

    `run_id` None shows the run list, or the only live run. Refuses without a terminal, in one sentence.
    """
    raise NotImplementedError
