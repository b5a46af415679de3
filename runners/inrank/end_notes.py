"""Notes about how a rank ends: its exception, or that its script reached its end."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import sys
import threading
import time
from types import TracebackType
from typing import Any, NoReturn

from . import tracebacks
from .control import private
from .import_watch import PATCH_ERRORS
from .optimizer_steps import Steps
from .training_signals import TrainingSignals


class EndNotes:
    """Writes how a rank ends: exit codes do not separate the culprit from its victims.

    A note has the time and place of an uncaught exception, or it records that the script reached its end, because the
    interpreter may still crash after it. It also has the last steps and training signals, because the agent cannot
    request them from a rank that has exited.
    """

    def __init__(self, steps: Steps, signals: TrainingSignals) -> None:
        self._steps, self._signals, self._pid, self._code = steps, signals, os.getpid(), 0
        self._previous_hook, self._python_exit = sys.excepthook, sys.exit
        self._is_noted = threading.Event()

    def arm(self) -> None:
        """Write notes for this process from now on, but not for its forks."""
        sys.excepthook = self._raised
        atexit.register(self._ended)
        if _has_joined():  # the runner is not the parent of this rank, so it cannot read the exit code
            sys.exit = self._exit
        processes, util = (sys.modules.get("multiprocessing." + name) for name in ("process", "util"))
        if processes is not None and util is not None and processes.parent_process() is not None:
            util.Finalize(None, self._child_ended, exitpriority=0)

    def _raised(self, kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
        try:
            self._note_exception(kind, value, trace)
        finally:
            self._previous_hook(kind, value, trace)

    def _note_exception(
        self, kind: type[BaseException], value: BaseException, trace: TracebackType | None
    ) -> None:
        if os.getpid() == self._pid:
            self._is_noted.set()
            with contextlib.suppress(*PATCH_ERRORS):
                noted = dict(tracebacks.note_of(kind, value, trace), **self._steps.note())
                _note("exc", dict(noted, signals=self._signals.since(0)))

    def _exit(self, code: str | int | None = None) -> NoReturn:
        """Keep the code given to sys.exit(): exit functions cannot read it otherwise."""
        if threading.current_thread() is threading.main_thread():
            self._remember_code(code)
        self._python_exit(code)

    def _remember_code(self, code: object) -> None:
        if isinstance(code, int):
            self._code = code
        else:
            self._code = 1 if code else 0

    def _ended(self) -> None:
        if os.getpid() == self._pid and not self._is_noted.is_set():
            self._is_noted.set()
            made: dict[str, Any] = {"step": self._steps.count}
            with contextlib.suppress(*PATCH_ERRORS):
                made = self._steps.at_end()
            with contextlib.suppress(*PATCH_ERRORS):
                made["signals"] = self._signals.since(0)
            _note("end", dict(made, code=self._code))

    def _child_ended(self) -> None:
        """Note the exception of a child process of multiprocessing, which calls no excepthook.

        torch's `spawn` catches it and calls sys.exit(), so the exception is the SystemExit's `__context__`.
        """
        value = sys.exc_info()[1]
        cause = value.__context__ if isinstance(value, SystemExit) and value.code else value
        if cause is not None and not isinstance(cause, SystemExit):
            self._note_exception(type(cause), cause, cause.__traceback__)
            return
        if isinstance(value, SystemExit):
            self._remember_code(value.code)
        self._ended()


def _note(ending: str, what: dict[str, Any]) -> None:
    with (
        contextlib.suppress(OSError, KeyError),
        open("%s.%s" % (_file_stem(), ending), "w", opener=private) as file,
    ):
        json.dump(dict(what, time=time.time()), file)


def _has_joined() -> bool:
    """Whether this process joined the run as a rank (`joining.join`): the runner did not start it itself."""
    return os.environ.get("DISTUI_JOINED") == str(os.getpid())


def _file_stem() -> str:
    """Return the stem of this rank's files; "…/command" for a command whose child processes became the ranks."""
    stem = os.environ["DISTUI_RANK_FILES"]
    if "DISTUI_RUNNER_PID" in os.environ or _has_joined():
        return stem
    command = os.path.join(os.path.dirname(stem), "command")
    return command if os.path.exists(command + ".out") else stem
