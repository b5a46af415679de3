"""Processes in which what may hang or break is done: a driver call, an import of torch, a rank of a pair."""

from __future__ import annotations

import collections
import json
import os
import queue
import signal
import subprocess
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Report = Callable[[dict[str, Any]], None]

BOOT = (
    "import sys;sys.path[:]=[p for p in sys.path if p];i=sys.stdin.buffer;exec(i.read(int(i.readline())))"
)
"""Executes what comes on stdin behind its length, and no module of the working directory; without anything that a login
shell would read in quotes."""
MAGIC = "DISTUI-DOCTOR "
"""Begins each line that is meant: libraries and login shells write lines, too."""
KEPT_LINES = 12


class Child:
    """One such process, in a session of its own; what it says goes to `report`, at last {"exit": …, "said": […]}."""

    every: dict[int, Child] = {}

    def __init__(
        self,
        python: Sequence[str],
        text: str,
        spec: dict[str, Any],
        seconds: float,
        report: Report,
    ) -> None:
        self._report, self._late = report, False
        self._stderr: collections.deque[str] = collections.deque(maxlen=KEPT_LINES)
        environ = dict(os.environ, **spec.get("env", {}))
        self._process = subprocess.Popen(
            [*python, "-c", BOOT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            start_new_session=True, env=environ,
        )  # fmt: skip
        Child.every[self._process.pid] = self
        self._timer = threading.Timer(seconds, self._too_late)
        self._timer.daemon = True
        self._timer.start()
        self._hearing = threading.Thread(target=self._hear_errors, daemon=True)
        self._hearing.start()
        threading.Thread(target=self._hear, daemon=True).start()
        source = text.encode()
        self._write(b"%d\n" % len(source) + source)
        self.send(spec)

    @property
    def pid(self) -> int:
        """Also the id of its session and process group."""
        return self._process.pid

    def send(self, value: dict[str, Any]) -> None:
        """A line on its stdin; one that has ended hears nothing."""
        self._write(json.dumps(value).encode() + b"\n")

    def _write(self, data: bytes) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(data)
            self._process.stdin.flush()
        except (OSError, ValueError):
            return

    def end(self) -> None:
        """Kill it, and what it started."""
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            return

    def _too_late(self) -> None:
        self._late = True
        self.end()
        # A call that hangs in the kernel outlives SIGKILL: nobody waits for it.
        self._finished(None)

    def _hear(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            text = line.decode("utf-8", "replace")
            if text.startswith(MAGIC):
                self._report(json.loads(text[len(MAGIC) :]))
        code = self._process.wait()
        self._hearing.join(1.0)
        self.end()  # what it may have left in its group
        self._finished(code)

    def _hear_errors(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            text = line.decode("utf-8", "replace").strip()
            if text:
                self._stderr.append(text[:500])

    def _finished(self, code: int | None) -> None:
        self._timer.cancel()
        if Child.every.pop(self._process.pid, None) is not None:
            self._report({"exit": code, "said": list(self._stderr), "late": self._late})


def end_all() -> None:
    """Kill every child."""
    for child in list(Child.every.values()):
        child.end()


def once(
    python: Sequence[str], text: str, spec: dict[str, Any], seconds: float
) -> tuple[dict[str, Any] | None, str]:
    """The first thing that a child says, or None and why it said nothing."""
    heard: queue.Queue[dict[str, Any]] = queue.Queue()
    try:
        child = Child(python, text, spec, seconds, heard.put)
    except OSError as error:
        return None, f"{python[0]} cannot be executed ({error.strerror})"
    answer = heard.get()
    child.end()
    if "exit" not in answer:
        return answer, ""
    if answer["late"]:
        return None, f"no answer within {seconds:.0f} s"
    lines = answer["said"]
    return None, lines[-1] if lines else f"ended with code {answer['exit']} and said nothing"
