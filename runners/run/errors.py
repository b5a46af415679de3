"""Errors for the user: each text is one sentence with the problem, its place, and a remedy."""

from __future__ import annotations

from collections.abc import Iterable


class RunError(Exception):
    """A requirement of a run is missing or wrong. The command line exits with `code`."""

    code = 2

    def __init__(self, sentence: str, details: Iterable[str] = ()) -> None:
        """`details`: lines after the sentence."""
        super().__init__("".join((sentence, *(f"\n  {line}" for line in details))))
        self.sentence, self.details = sentence, tuple(details)


class NoTorchError(RunError):
    """The ranks' interpreter has no torch."""

    def __init__(self, python: str, install: str) -> None:
        """`install`: command that installs torch."""
        super().__init__(
            f"{python} has no torch: install it there ({install}), or give another with --python"
        )
        self.python, self.install = python, install


class LaunchError(RunError):
    """A launch from the launch form did not start."""


class NoSuchRunError(RunError):
    """No run has this name."""

    code = 3


class UnreachableError(RunError):
    """The run exists, but its agent or node cannot be reached."""

    code = 4


class UnknownOutcomeError(RunError):
    """The receiver of a command ended before its answer: the command may have been executed or not."""

    code = 5


class RefusedError(RunError):
    """The run refused the command or could not execute it; the text is its answer."""

    code = 1


OUTCOME_UNKNOWN = "it is unknown if that was done: the agent died before it answered"
"""Answer for a command whose receiver ended."""
