"""Ways to request a checkpoint from a script: a signal, or a touched file. Pure."""

from __future__ import annotations

import signal
from pathlib import PurePosixPath
from typing import NamedTuple

from .finding import PlanError

FILE = "FILE:"
USUAL = "write a signal that the script handles, such as SIGUSR1, or FILE:PATH, a file that it polls"

TAKEN = {
    "SIGKILL": "no process can catch it",
    "SIGSTOP": "no process can catch it",
    "SIGTERM": "it asks the ranks to end",
    "SIGINT": "torchrun and terminals end the ranks with it",
    "SIGHUP": "torchrun ends the ranks with it",
    "SIGQUIT": "torchrun ends the ranks with it",
    "SIGUSR2": "distui's hook uses it",
    "SIGCHLD": "the kernel sends it when a child ends",
    "SIGCONT": "distui sends it to go on after a stop",
}
"""Signals that already have another meaning → that meaning."""


class SaveOn(NamedTuple):
    """How to request a checkpoint. Exactly one field is set."""

    signal: str = ""
    """With the prefix SIG, such as "SIGUSR1"."""
    file: str = ""
    """Absolute, or relative to the working directory of the ranks."""

    @property
    def words(self) -> str:
        """Return the action as the end of a sentence."""
        return f"{self.signal} to every rank" if self.signal else f"the file {self.file} is touched"


def checked(text: str, where: str = "--save-on") -> str:
    """Return the form that plans keep: "SIGUSR1", "FILE:save.now", or "". Raises PlanError."""
    text = text.strip()
    if not text:
        return ""
    if text[: len(FILE)].upper() == FILE:
        return FILE + _path(text[len(FILE) :].strip(), where)
    name = f"SIG{text.upper().removeprefix('SIG')}"
    if name not in signal.Signals.__members__:
        raise PlanError(f"{where} {text}: there is no such signal: {USUAL}")
    name = signal.Signals[name].name
    if name in TAKEN:
        raise PlanError(f"{where} {text}: {TAKEN[name]}: {USUAL}")
    return name


def _path(path: str, where: str) -> str:
    if not path or path.endswith(("/", "/.", "/..")) or path in (".", ".."):
        raise PlanError(f"{where} {FILE}{path}: names no file: {USUAL}")
    if not path.isprintable():
        raise PlanError(f"{where} {FILE}{path!r}: a path without control characters is needed")
    return str(PurePosixPath(path))


def parse(kept: str) -> SaveOn | None:
    """Parse the form that a plan keeps. Return None for "", and for a text of another version."""
    try:
        kept = checked(kept)
    except PlanError:
        return None
    if not kept:
        return None
    return SaveOn(file=kept.removeprefix(FILE)) if kept.startswith(FILE) else SaveOn(signal=kept)
