"""The tiers of the tests, and the guard that keeps `make test` free of processes and sleeps.

| mark | runs in | may start processes and use real time |
|---|---|---|
| none | `make test` | no |
| `smoke` | `make test` | yes: one real run of each kind |
| `real` | `make test-real` | yes |
| `long` | `make test-all`, a part of it in `.ci/run` | yes |
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from virtual_time import VirtualLoop

TESTS = Path(__file__).parent
REAL = ("smoke", "real", "long")
"""Marks of tests that use real processes and real time."""
REAL_FOLDERS = ("cluster", "faults", "matrix", "nccl_ranks", "wheels")
"""Folders whose tests all do, without a mark: `make test` does not collect them."""
LONGEST_SLEEP_S = 0.05
PROCESS_EVENTS = {
    "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.system", "pty.spawn", "subprocess.Popen",
}  # fmt: skip

_guarded = False
"""Whether the test that runs now must not start processes or sleep. One test runs at a time in a process."""


def is_real(item: pytest.Item) -> bool:
    """Whether a test may start processes and take real time."""
    if item.path.relative_to(TESTS).parts[0] in REAL_FOLDERS:
        return True
    return any(item.get_closest_marker(mark) is not None for mark in REAL)


@contextmanager
def guarded(item: pytest.Item) -> Iterator[None]:
    """Fail whatever a test without a mark of REAL does that depends on the machine."""
    global _guarded
    _guarded = not is_real(item)
    try:
        yield
    finally:
        _guarded = False


def loop_factories(item: pytest.Item) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Virtual time for the tests of `make test`, real time for those with a mark of REAL."""
    return {"real": asyncio.new_event_loop} if is_real(item) else {"virtual": VirtualLoop}


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if not _guarded:
        return
    if event in PROCESS_EVENTS:
        raise AssertionError(
            f"{event}{arguments[:2]}: a test that starts a process is marked `real` (tests/tiers.py)"
        )
    if event == "time.sleep" and arguments[0] >= LONGEST_SLEEP_S and _is_main_thread():
        raise AssertionError(
            f"time.sleep({arguments[0]}): take a clock, or mark the test `real` (tests/tiers.py)"
        )


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def install() -> None:
    """Install the guard in this process; audit hooks cannot be removed."""
    sys.addaudithook(_audit)
