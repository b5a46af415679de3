"""JSON lines: asked on stdin, answered on stdout; each verb in a thread, because SkyPilot's calls block.

Asked:     {"id": 1, "verb": "launch", "args": {…}}    and    {"cancel": 1}
Told:      {"id": 1, "said": "text of SkyPilot"}       {"id": 1, "request": "id at the API server"}
Answered:  {"id": 1, "data": …}    or    {"id": 1, "error": {"kind": "ResourcesUnavailableError", "text": …}}
"""

from __future__ import annotations

import importlib
import io
import json
import os
import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any

VERBS = {
    "version": "about",
    "enabled": "about",
    "check": "about",
    "accelerators": "about",
    "candidates": "about",
    "read_task": "about",
    "launch": "clusters",
    "follow": "clusters",
    "describe": "clusters",
    "reach": "clusters",
    "jobs": "clusters",
    "job_state": "clusters",
    "tail": "clusters",
    "provision_log": "clusters",
    "cancel": "clusters",
    "autostop": "clusters",
    "down": "clusters",
    "cost": "clusters",
    "managed_launch": "managed",
    "managed_follow": "managed",
    "managed_jobs": "managed",
    "managed_cancel": "managed",
    "managed_tail": "managed",
}
"""Each verb and the module that has the function of its name."""


class SkyCall:
    """One question on its way. Verbs get it first."""

    def __init__(self, number: int, write: Callable[[dict[str, Any]], None]) -> None:
        self.number = number
        self._write = write
        self.request = ""
        self.cancelled = threading.Event()

    def report(self, text: str) -> None:
        """Pass text of SkyPilot on."""
        if text:
            self._write({"id": self.number, "said": text})

    def pass_on(self, lines: Iterable[str | None]) -> None:
        """A log of SkyPilot's, line by line, until it ends or the call is cancelled."""
        for line in lines:
            if self.cancelled.is_set():
                break
            if line is not None:  # None: the server shows that it is there
                self.report(line if line.endswith("\n") else line + "\n")

    def began(self, request: str) -> None:
        """SkyPilot's API server works at it under this id: what a later process can ask for, and `cancel` cancels."""
        self.request = str(request)
        self._write({"id": self.number, "request": self.request})


class LineStream(io.TextIOBase):
    """What SkyPilot takes for a terminal: whatever it prints is told at once."""

    def __init__(self, call: SkyCall) -> None:
        self._call = call

    def write(self, text: str) -> int:
        self._call.report(text)
        return len(text)


class SkyServer:
    """Reads questions, starts threads, writes answers."""

    def __init__(self, questions: io.TextIOBase, answers: io.TextIOBase) -> None:
        self._questions, self._answers = questions, answers
        self._lock = threading.Lock()
        self._calls: dict[int, SkyCall] = {}

    def serve(self) -> None:
        """Until whoever asked closes stdin."""
        for line in self._questions:
            asked = json.loads(line)
            if "cancel" in asked:
                threading.Thread(target=self._cancel, args=(asked["cancel"],), daemon=True).start()
            else:
                call = self._calls[asked["id"]] = SkyCall(asked["id"], self._write)
                arguments = (call, asked["verb"], asked.get("args") or {})
                threading.Thread(target=self._answer, args=arguments, daemon=True).start()

    def _answer(self, call: SkyCall, verb: str, arguments: dict[str, Any]) -> None:
        try:
            module = importlib.import_module(__name__.rpartition(".")[0] + "." + VERBS[verb])
            answer = {"data": getattr(module, verb)(call, **arguments)}
        except Exception as error:  # noqa: BLE001 - SkyPilot raises what it likes; it becomes an answer
            answer = {"error": explain(error)}
        self._calls.pop(call.number, None)
        self._write({"id": call.number, **answer})

    def _cancel(self, number: int) -> None:
        call = self._calls.get(number)
        if call is None:
            return
        call.cancelled.set()
        if call.request:
            from .clusters import give_up

            give_up(call.request)

    def _write(self, what: dict[str, Any]) -> None:
        line = json.dumps(what, default=str) + "\n"
        with self._lock:
            self._answers.write(line)
            self._answers.flush()


def explain(error: Exception) -> dict[str, str]:
    """The kind of an error, its text, and what each place said that SkyPilot tried."""
    history = getattr(error, "failover_history", None) or []
    tried = "\n".join(f"{type(failure).__name__}: {failure}" for failure in history)
    return {"kind": type(error).__name__, "text": str(error), "tried": tried}


def main() -> int:
    """Serve. What SkyPilot prints itself goes to stderr, and it can ask nothing: its stdin is empty."""
    questions = os.fdopen(os.dup(0), "r", encoding="utf-8")
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(2, 1)
    os.close(null)
    sys.stdout = sys.stderr
    SkyServer(questions, answers).serve()
    os._exit(0)  # threads that wait for SkyPilot are not waited for
