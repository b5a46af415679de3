"""Errors that a user reads: each text is one sentence that says what was wrong, where, and what to do."""

from __future__ import annotations


class RunError(Exception):
    """Something a run needs is missing or wrong. The command line exits with `code`."""

    code = 2


class NoSuchRunError(RunError):
    """No run answers to that name."""

    code = 3


class UnreachableError(RunError):
    """The run exists, its agent or node cannot be reached."""

    code = 4
