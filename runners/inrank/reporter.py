"""The runner's report, runner.jsonl, with one JSON line per event.

An agent reads that file, so a disconnected agent misses no event.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable
from typing import Any

from .control import FULL, private
from .presets_modules import presets_module

RESERVE_BYTES = 1 << 16
"""Size of a file that is deleted on a full file system, to make room for the report of the run's end."""


def masked(text: str) -> str:
    """Mask secrets in a text with the rules of presets.secrets; torchrun's errors quote arguments."""
    return str(presets_module("secrets").mask_text(text))


class Reporter:
    """Appends events (see runners/run/model.py, type Stamped) to a file and calls `poke` after each.

    `name` distinguishes reporters that write to one file at the same time.
    """

    def __init__(self, path: str, poke: Callable[[], None], name: str = "") -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._lock = threading.Lock()
        self._late: list[bytes] = []
        self._poke = poke
        self._reserve = path + ".reserve" + name
        with contextlib.suppress(OSError), open(self._reserve, "wb", opener=private) as file:
            file.write(bytes(RESERVE_BYTES))

    def __call__(self, event_type: str, /, **fields: Any) -> None:
        """Write one event. Never blocks, and keeps the event in memory if the disk is full."""
        if fields.get("text"):
            fields["text"] = masked(str(fields["text"]))
        event = dict(fields, type=event_type)
        line = json.dumps({"time": time.time(), "event": event}).encode() + b"\n"
        with self._lock:
            self._late.append(line)
            self._write()
        self._poke()

    def close(self, seconds: float = 5.0) -> bool:
        """Wait until all events are written or the time is over; return whether all are."""
        deadline = time.monotonic() + seconds
        while True:
            with self._lock:
                self._write()
                if not self._late or time.monotonic() > deadline:
                    break
            time.sleep(0.1)
        with contextlib.suppress(OSError):
            os.unlink(self._reserve)
        self._poke()
        return not self._late

    def _write(self) -> None:
        """Write the waiting lines in order; keep the rest in memory if the disk is full."""
        while self._late:
            try:
                done = os.write(self._fd, self._late[0])
            except OSError as error:
                if error.errno in FULL and self._make_room():
                    continue
                return
            if done < len(self._late[0]):
                self._late[0] = self._late[0][done:]
                continue
            self._late.pop(0)

    def _make_room(self) -> bool:
        """Delete the reserve file; False if it does not exist."""
        try:
            os.unlink(self._reserve)
        except OSError:
            return False
        return True


OWN_THREADS = "distui-"
"""Prefix of the names of the runner's threads."""


def report_faults(report: Reporter, node: int) -> None:
    """Report a finding if a thread of the runner raises; its traceback is printed as before."""
    chained = threading.excepthook

    def raised(ended: threading.ExceptHookArgs) -> None:
        chained(ended)
        name = "" if ended.thread is None else ended.thread.name
        if not name.startswith(OWN_THREADS):
            return
        part = "runner-" + name[len(OWN_THREADS) :].rstrip("-0123456789")
        error = "%s: %s" % (ended.exc_type.__name__, ended.exc_value)
        finding = {
            "id": "part-failed:" + part,
            "severity": "warning",
            "text": masked("internal error in %s (it is not tried again): %s" % (part, error)),
            "node": node,
            "remedy": "the traceback is in runner.log; please report it",
        }
        report("FindingRaised", finding=finding)

    threading.excepthook = raised
