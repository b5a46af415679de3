"""Errors that a user reads: each text is one sentence with what was wrong, where, and what to do."""

from __future__ import annotations

from collections.abc import Iterable


class RunError(Exception):
    """Something a run needs is missing or wrong. The command line exits with `code`."""

    code = 2

    def __init__(self, sentence: str, details: Iterable[str] = ()) -> None:
        """`details`: what follows the sentence, each on a line of its own."""
        super().__init__("".join((sentence, *(f"\n  {line}" for line in details))))
        self.sentence, self.details = sentence, tuple(details)


class NoTorchError(RunError):
    """An interpreter that ranks would run under has no torch."""

    def __init__(self, python: str, install: str) -> None:
        """`install`: the command that would mend it."""
        super().__init__(
            f"{python} has no torch: install it there ({install}), or give another interpreter with --python"
        )
        self.python, self.install = python, install


class LaunchError(RunError):
    """What the launch form means did not start."""


class NoSuchRunError(RunError):
    """No run answers to that name."""

    code = 3


class UnreachableError(RunError):
    """The run exists, its agent or node cannot be reached."""

    code = 4


class UnknownOutcomeError(RunError):
    """A command was sent and its receiver died before the answer: it was done, or not."""

    code = 5


OUTCOME_UNKNOWN = "not known whether that was done: the agent died before it answered"
"""The answer to a command whose receiver died."""
