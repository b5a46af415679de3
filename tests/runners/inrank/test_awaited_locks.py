"""Which lock of the script a thread waits for, and which thread holds it: real threads that wait for each other."""

from __future__ import annotations

import importlib.util
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import patience
import pytest

from distui.runners.inrank.awaited_locks import lock_of

SCRIPT = """
import threading

class Table:
    def __init__(self):
        self.rows, self.index = threading.Lock(), threading.RLock()

    def read(self, meet):
        with self.rows:
            meet()
            with self.index:
                pass

    def write(self, meet):
        with self.index:
            meet()
            self.rows.acquire(timeout=5.0)

    def hold(self, meet):
        with self.rows:
            meet()
            self.gate.wait()

    def ask(self, meet):
        meet()
        with self.rows:
            pass
"""


@pytest.fixture
def script(tmp_path: Path) -> ModuleType:
    path = tmp_path / "table.py"
    path.write_text(SCRIPT)
    spec = importlib.util.spec_from_file_location("table", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@contextmanager
def running(*methods: Any) -> Iterator[list[threading.Thread]]:
    """A daemon thread per method, all of which have come to their meeting point."""
    both = threading.Barrier(len(methods), timeout=patience.HANG_S)
    threads = [
        threading.Thread(target=method, args=(both.wait,), name=method.__name__, daemon=True)
        for method in methods
    ]
    for thread in threads:
        thread.start()
    yield threads


def eventually(thread: threading.Thread) -> list[Any]:
    """The wait of a thread, once it is in one and has been found so twice."""
    end, before = time.monotonic() + patience.HANG_S, None
    while time.monotonic() < end:
        found = lock_of(thread.ident or 0)
        if found is not None and found == before:
            return found
        before = found
        time.sleep(0.05)
    raise AssertionError(before)


@pytest.mark.real
def test_two_threads_that_take_two_locks_in_turn_are_a_deadlock(script: ModuleType) -> None:
    table = script.Table()
    with running(table.read, table.write) as (reads, writes):
        assert eventually(reads) == ["self.index", "write", "self.rows", True]
        assert eventually(writes) == ["self.rows", "read", "self.index", True]
        reads.join()


@pytest.mark.real
def test_a_holder_that_waits_for_no_lock_is_named_only(script: ModuleType) -> None:
    table = script.Table()
    table.gate = threading.Event()
    table.rows.acquire()
    with running(table.ask) as (asks,):
        assert eventually(asks) == ["self.rows", "", "", False]  # nobody is inside of a `with` statement
        table.rows.release()
        asks.join()
    with running(table.hold) as (_,), running(table.ask) as (asks,):
        assert eventually(asks) == ["self.rows", "hold", "", False]
        table.gate.set()
        asks.join()


def test_a_thread_that_runs_waits_for_no_lock() -> None:
    assert lock_of(threading.get_ident()) is None
    assert lock_of(0) is None
