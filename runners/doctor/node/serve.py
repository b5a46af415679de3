"""One node's end: requests on stdin, a line of JSON each; answers on stdout. Whatever was started ends with stdin."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
import time
from typing import Any

from . import children, facts, network

LIFE_SECONDS = 3600
"""If the connection breaks and nobody notices, no longer than this."""

_lock = threading.Lock()
_listeners: list[socket.socket] = []
_workers: dict[int, children.Child] = {}


def say(value: dict[str, Any]) -> None:
    """A line to the one who asks; where that one has gone, everything ends."""
    with _lock:
        try:
            sys.stdout.write(children.MAGIC + json.dumps(value) + "\n")
            sys.stdout.flush()
        except OSError:
            leave()


def leave() -> None:
    """End, and everything that was started with it."""
    children.end_all()
    os._exit(0)


def serve(texts: dict[str, str]) -> None:
    """Answer until stdin ends. `texts`: sources that children execute, by name."""
    signal.alarm(LIFE_SECONDS)
    say({"ready": True})
    for line in sys.stdin.buffer:
        asked = json.loads(line)
        if asked["op"] == "clock":
            say({"id": asked["id"], "clock": time.time()})
        elif asked["op"] == "run":
            _run(asked, texts)
        elif asked["op"] == "tell":
            _forward(asked)
        else:
            threading.Thread(target=_answer, args=(asked, texts), daemon=True).start()
    leave()


def _answer(asked: dict[str, Any], texts: dict[str, str]) -> None:
    if asked["op"] == "facts":
        answer = facts.gather(asked, texts)
    elif asked["op"] == "listen":
        answer = _listen(asked["port"])
    else:
        answer = network.connect(asked["host"], asked["port"], asked["within"])
        answer["resolved"] = network.resolve(asked["name"]) if asked["name"] else None
    say({"id": asked["id"], **answer})


def _listen(port: int) -> dict[str, Any]:
    """Listen until the end; nobody need accept for a connection to come about."""
    try:
        _listeners.append(network.listener(port))
    except OSError as error:
        return {"ok": False, "problem": error.strerror or str(error)}
    return {"ok": True, "problem": ""}


def _run(asked: dict[str, Any], texts: dict[str, str]) -> None:
    number = asked["id"]

    def reply(value: dict[str, Any]) -> None:
        say({"id": number, **value})

    try:
        _workers[number] = children.Child(
            [asked["python"]], texts["checking"], asked["spec"], asked["seconds"], reply
        )
    except OSError as error:
        reply({"exit": None, "late": False, "said": [f"{asked['python']}: {error.strerror}"]})


def _forward(asked: dict[str, Any]) -> None:
    worker = _workers.get(asked["to"])
    if worker is None:
        return
    if asked["value"] is None:
        worker.end()
    else:
        worker.send(asked["value"])
