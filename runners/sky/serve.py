"""`PYTHON serve.py`: SkyPilot's verbs, asked for on stdin, each in a thread, because SkyPilot's calls block.

A plain file for the interpreter that has SkyPilot and need not have distui. It speaks lines of JSON:

Asked:     {"id": 1, "verb": "launch", "args": {…}}    and    {"cancel": 1}
Reported:  {"id": 1, "said": "text of SkyPilot"}       {"id": 1, "request": "id at the API server"}
Answered:  {"id": 1, "data": …}    or    {"id": 1, "error": {"kind": "ResourcesUnavailableError", "text": …}}
"""

from __future__ import annotations

import importlib
import importlib.util
import io
import json
import os
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any


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
    """What SkyPilot takes for a terminal: whatever it prints is reported at once."""

    def __init__(self, call: SkyCall) -> None:
        self._call = call

    def write(self, text: str) -> int:
        self._call.report(text)
        return len(text)


class SkyServer:
    """Reads questions, starts threads, writes answers."""

    def __init__(
        self,
        questions: io.TextIOBase,
        answers: io.TextIOBase,
        verbs: Mapping[str, Callable[..., Any]],
        give_up: Callable[[str], None],
    ) -> None:
        """`verbs` get the call and what was asked with it; `give_up` ends the API server's work at a request."""
        self._questions, self._answers = questions, answers
        self._verbs, self._give_up = verbs, give_up
        self._lock = threading.Lock()
        self._calls: dict[int, SkyCall] = {}

    def serve(self) -> None:
        """Until stdin is closed."""
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
            answer = {"data": self._verbs[verb](call, **arguments)}
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
            self._give_up(call.request)

    def _write(self, what: dict[str, Any]) -> None:
        line = json.dumps(what, default=str) + "\n"
        with self._lock:
            self._answers.write(line)
            self._answers.flush()


def explain(error: Exception) -> dict[str, str]:
    """The kind of an error, its text, and the error of each place that SkyPilot tried."""
    history = getattr(error, "failover_history", None) or []
    tried = "\n".join(f"{type(failure).__name__}: {failure}" for failure in history)
    return {"kind": type(error).__name__, "text": str(error), "tried": tried}


def load() -> None:
    """Make this folder importable as `distui_sky`; nothing of distui's or of the user's may shadow SkyPilot."""
    here = os.path.dirname(os.path.abspath(__file__))
    spec = importlib.util.spec_from_file_location(
        "distui_sky", os.path.join(here, "__init__.py"), submodule_search_locations=[here]
    )
    if spec is None or spec.loader is None:
        raise SystemExit(f"distui: {here} is not whole: install distui again")
    package = importlib.util.module_from_spec(spec)
    sys.modules["distui_sky"] = package
    spec.loader.exec_module(package)
    sys.path[:] = [path for path in sys.path if path and os.path.abspath(path) != here]


if __name__ == "__main__":
    load()
    importlib.import_module("distui_sky.sdk").main()
