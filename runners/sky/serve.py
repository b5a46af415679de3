"""`PYTHON serve.py`: run SkyPilot's verbs from stdin, each in a thread, because SkyPilot's calls block.

A plain file for SkyPilot's interpreter, which may not have distui. The protocol is JSON lines:

Request:  {"id": 1, "verb": "launch", "args": {…}}    and    {"cancel": 1}
Report:   {"id": 1, "said": "text of SkyPilot"}       {"id": 1, "request": "id at the API server"}
Answer:   {"id": 1, "data": …}    or    {"id": 1, "error": {"kind": "ResourcesUnavailableError", "text": …}}
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
    """One running request, the first argument of a verb."""

    def __init__(self, number: int, write: Callable[[dict[str, Any]], None]) -> None:
        self.number = number
        self._write = write
        self.request = ""
        self.cancelled = threading.Event()

    def report(self, text: str) -> None:
        """Report text from SkyPilot."""
        if text:
            self._write({"id": self.number, "said": text})

    def pass_on(self, lines: Iterable[str | None]) -> None:
        """Report a log of SkyPilot line by line, until it ends or the call is cancelled."""
        for line in lines:
            if self.cancelled.is_set():
                break
            if line is not None:  # None: a heartbeat of the server
                self.report(line if line.endswith("\n") else line + "\n")

    def began(self, request: str) -> None:
        """Report the ID of a request at SkyPilot's API server.

        Later processes can follow it, and `cancel` cancels it.
        """
        self.request = str(request)
        self._write({"id": self.number, "request": self.request})


class LineStream(io.TextIOBase):
    """A stream for SkyPilot's output, which it takes for a terminal. Every write is reported immediately."""

    def __init__(self, call: SkyCall) -> None:
        self._call = call

    def write(self, text: str) -> int:
        self._call.report(text)
        return len(text)


class SkyServer:
    """Reads requests, starts threads, writes answers."""

    def __init__(
        self,
        questions: io.TextIOBase,
        answers: io.TextIOBase,
        verbs: Mapping[str, Callable[..., Any]],
        give_up: Callable[[str], None],
    ) -> None:
        """`verbs` take the call and the request's arguments. `give_up` cancels a request at the API server."""
        self._questions, self._answers = questions, answers
        self._verbs, self._give_up = verbs, give_up
        self._lock = threading.Lock()
        self._calls: dict[int, SkyCall] = {}

    def serve(self) -> None:
        """Serve until stdin is closed."""
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
    """Return the kind of an error, its text, and the errors of all places that SkyPilot tried."""
    history = getattr(error, "failover_history", None) or []
    tried = "\n".join(f"{type(failure).__name__}: {failure}" for failure in history)
    return {"kind": type(error).__name__, "text": str(error), "tried": tried}


def load() -> None:
    """Make this folder importable as `distui_sky`, without paths of distui or of the user that may shadow SkyPilot."""
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
