"""What the runner tells: one JSON line an event, appended to runner.jsonl; the agent reads it, now or later.

The file, not a connection, is the truth, so that an agent that was away misses nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable
from typing import Any

from .quiet import FULL

RESERVE_BYTES = 1 << 16
"""Given back to a full file system, so that the end of the run can still be written down."""


class Report:
    """Appends events (see runners/model.py, type Stamped) and pokes whoever listens.

    `name` tells apart those that write to one file at the same time.
    """

    def __init__(self, path: str, poke: Callable[[], None], name: str = "") -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._lock = threading.Lock()
        self._late: list[bytes] = []
        self._poke = poke
        self._reserve = path + ".reserve" + name
        with contextlib.suppress(OSError), open(self._reserve, "wb") as file:
            file.write(bytes(RESERVE_BYTES))

    def __call__(self, event_type: str, /, **fields: Any) -> None:
        """Write one event; never fails, never waits."""
        event = dict(fields, type=event_type)
        line = json.dumps({"time": time.time(), "event": event}).encode() + b"\n"
        with self._lock:
            self._late.append(line)
            self._write()
        self._poke()

    def close(self, seconds: float = 5.0) -> bool:
        """Wait for room for what could not be written yet; whether all of it is."""
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
        """A full disk keeps lines in memory until there is room; order is kept."""
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
        """Give the reserve back; False when that was done before."""
        try:
            os.unlink(self._reserve)
        except OSError:
            return False
        return True
