"""Report the checkpoints that a rank saves: path, step, time, duration and size.

The functions that save are wrapped right after their library is loaded, and behave as before. At the start and end of
a save, one JSON line is appended to a file next to the rank's logs. So an interrupted save is visible, and no report is
lost while no agent is connected.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import json
import os
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from .checkpoint_paths import TARGETS, Find
from .control import private
from .import_watch import PATCH_ERRORS, untraced, wrap_imported

STEP_NAMES = ("step", "global_step", "iter_num", "iteration", "iter", "steps")
"""Keys of the step in a saved mapping, in order of precedence."""


class Saves:
    """Wraps the functions that save checkpoints, and reports their calls."""

    def __init__(self, path: str, steps: Callable[[], int]) -> None:
        """`path`: file for the reports, created with the first one. `steps`: returns this process's optimizer steps."""
        self._path, self._steps, self._rank = path, steps, os.getpid()
        self._within = threading.local()
        """True in a thread during a save: a nested save is not reported."""
        self._writing = threading.Lock()

    def move(self, path: str) -> None:
        """Report saves of this process, which may be a fork, to this file from now on."""
        self._path, self._rank, self._writing = path, os.getpid(), threading.Lock()

    def arm(self) -> None:
        """Wrap the functions in TARGETS, each once its module is imported."""
        for module, owner, name, source, find in TARGETS:
            wrap_imported(module, owner, name, functools.partial(self.saving, source=source, find=find))

    def saving(self, theirs: Callable[..., Any], source: str, find: Find) -> Callable[..., Any]:
        """Return a wrapper that reports the calls of `theirs`, with its results and exceptions unchanged."""
        signature = inspect.signature(theirs)

        @untraced
        @functools.wraps(theirs)
        def save(*args: Any, **named: Any) -> Any:
            report = self._begin(signature, args, named, source, find)
            if report is None:
                return theirs(*args, **named)
            self._within.save, state = True, "failed"
            try:
                done = theirs(*args, **named)
                state = "done"
            finally:
                self._within.save = False
                if state == "failed":
                    self._write(dict(report, state=state, end=time.time()))
            self._finish(report, done)
            return done

        return save

    def _begin(
        self,
        signature: inspect.Signature,
        args: tuple[Any, ...],
        named: dict[str, Any],
        source: str,
        find: Find,
    ) -> dict[str, Any] | None:
        if getattr(self._within, "save", False) or os.getpid() != self._rank:
            return None
        report = None
        with contextlib.suppress(*PATCH_ERRORS):
            bound = signature.bind(*args, **named)
            path = find(bound)
            if path is not None and not _is_device(path):
                report = {
                    "path": os.path.abspath(path),
                    "source": source,
                    "begin": time.time(),
                    "count": self._steps(),
                    "step": _step_in(bound.arguments),
                }
                self._write(dict(report, state="began"))
        return report

    def _finish(self, report: dict[str, Any], done: Any) -> None:
        """Report the end of a save; of an asynchronous one when its future is done."""
        add = getattr(done, "add_done_callback", None)
        if add is None:
            nested = getattr(done, "upload_completion", None)  # AsyncSaveResponse of torch's newer releases
            add = getattr(nested, "add_done_callback", None)
        if add is None:
            self._done(report)
            return
        with contextlib.suppress(*PATCH_ERRORS):
            add(lambda future: self._done(report, failed=future.exception() is not None))

    def _done(self, report: dict[str, Any], failed: bool = False) -> None:
        with contextlib.suppress(*PATCH_ERRORS):
            file = None
            if os.path.isfile(report["path"]):  # keep the inode: the file may be renamed later
                about = os.stat(report["path"])
                file = [about.st_dev, about.st_ino, about.st_size]
            self._write(dict(report, state="failed" if failed else "done", end=time.time(), file=file))

    def _write(self, report: Mapping[str, Any]) -> None:
        """Append a line. If the disk is full, the line is lost without an error."""
        line = json.dumps(report) + "\n"
        with contextlib.suppress(OSError), self._writing, open(self._path, "a", opener=private) as file:
            file.write(line)


def _is_device(path: str) -> bool:
    """Return whether a path is neither a file nor a folder but, for example, /dev/null or a pipe."""
    return os.path.exists(path) and not (os.path.isfile(path) or os.path.isdir(path))


def _step_in(arguments: Mapping[str, Any]) -> int | None:
    """Return the step in the saved mapping, or None."""
    saved = arguments.get("obj", arguments.get("state_dict"))
    if not isinstance(saved, Mapping):
        return None
    for name in STEP_NAMES:
        step = saved.get(name)
        if isinstance(step, int) and not isinstance(step, bool) and step >= 0:
            return step
    return None
