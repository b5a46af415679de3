"""How the runner learns of ranks that it did not start itself and may not reap."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from patience import HANG_S

from distui.runners.inrank import rank_processes, worker_group
from distui.runners.inrank.worker_group import WorkerGroup


class Told:
    """The events of a group."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self._changed = threading.Condition()

    def __call__(self, event_type: str, /, **fields: Any) -> None:
        with self._changed:
            self.events.append({**fields, "type": event_type})
            self._changed.notify_all()

    def until(self, count: int) -> list[dict[str, Any]]:
        """The first `count` events."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.events) >= count, HANG_S), self.events
            return self.events[:count]


@pytest.fixture
def group(own_directories: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WorkerGroup]:
    """A group as the runner has it, its events kept in memory."""
    monkeypatch.setenv("DISTUI_SOCKETS", str(own_directories / "g"))
    plan = {"grace_s": 5.0, "restart": {"limit": 0}, "hook": True, "launcher": "torchrun", "argv": []}
    made = WorkerGroup(plan, str(own_directories))
    made.report = Told()  # type: ignore[assignment]
    yield made
    made.control._server.close()


def told(group: WorkerGroup, count: int) -> list[dict[str, Any]]:
    assert isinstance(group.report, Told)
    return group.report.until(count)


def places(count: int) -> list[dict[str, Any]]:
    return [{"rank": n, "local_rank": n, "node": 0, "gpu": None} for n in range(count)]


@pytest.mark.real
def test_an_end_is_seen_and_left_to_be_reaped() -> None:
    process = subprocess.Popen([sys.executable, "-c", "raise SystemExit(7)"])
    assert rank_processes.wait_peeking(process.pid) == 7
    assert process.wait(10) == 7
    process = subprocess.Popen(["sleep", "60"])
    process.kill()
    assert rank_processes.wait_peeking(process.pid) == -9
    assert process.wait(10) == -9
    pid = os.posix_spawnp("true", ["true"], dict(os.environ))
    os.waitpid(pid, 0)
    assert rank_processes.wait_peeking(pid) is None, "nobody owned it"
    rank_processes.note_exit_codes()
    for reap in ("wait", "poll"):
        process = subprocess.Popen([sys.executable, "-c", "raise SystemExit(7)"])
        pid = process.pid
        while getattr(process, reap)() is None:
            time.sleep(0.01)
        del process  # as torch lets go of its own
        assert rank_processes.wait_peeking(pid) == 7, reap


@pytest.mark.real
def test_ranks_that_end_before_anybody_can_look_are_told_in_order(group: WorkerGroup) -> None:
    group.next_attempt()
    group.watch(places(2), rank_processes.children())
    ranks = [subprocess.Popen(["sh", "-c", f"exit {code}"]) for code in (3, 4)]
    told(group, 4)
    ended = {
        e["local_rank"]: (e["state"], e["exit_code"]) for e in told(group, 4) if e["state"] != "running"
    }
    assert ended == {0: ("failed", 3), 1: ("failed", 4)}
    assert group.failed.is_set()
    assert not group.unidentified
    assert [rank.wait(10) for rank in ranks] == [3, 4]


def test_an_attempt_never_gets_a_directory_twice(group: WorkerGroup, own_directories: Path) -> None:
    (own_directories / "node-0" / "attempt-001").mkdir(parents=True)
    assert group.next_attempt().endswith("attempt-002")
    assert group.next_attempt().endswith("attempt-003")


def test_only_what_really_changes_is_told_as_a_change(
    group: WorkerGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SAME", "1")
    monkeypatch.delenv("MY_TOKEN", raising=False)
    nobody = socket.socket()
    wanted = {"SAME": "1", "MY_TOKEN": "s3cret", "GONE": None}
    group.answer({"op": "env", "env": wanted, "shown": {**wanted, "MY_TOKEN": "***"}}, nobody)
    nobody.close()
    assert group.take_env() == {"MY_TOKEN": "***"}
    assert os.environ["MY_TOKEN"] == "s3cret"
    monkeypatch.delenv("MY_TOKEN")
    assert group.take_env() == {}


def test_a_restart_is_refused_while_the_run_is_stopped(
    group: WorkerGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    nobody = socket.socket()
    monkeypatch.setattr(group, "on_stop", lambda: None)
    assert group.answer({"op": "stop"}, nobody) == {"ok": True, "attempt": 0, "restarting": False}
    answer = group.answer({"op": "restart"}, nobody)
    nobody.close()
    assert answer == {"ok": False, "text": "the run is being stopped"}


def test_a_restart_is_announced_to_every_rank_and_a_stop_is_not(
    group: WorkerGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    announced: list[str] = []
    monkeypatch.setattr(worker_group, "announce", announced.extend)
    monkeypatch.setattr(group, "_kill_after_grace", lambda grace_s: None)
    monkeypatch.setattr(group, "on_stop", lambda: None)
    group.pids = {0: 1, 1: 2}
    nobody = socket.socket()
    group.answer({"op": "restart"}, nobody)
    assert announced == [f"{os.environ['DISTUI_SOCKETS']}.r{local}" for local in (0, 1)]
    announced.clear()
    group.answer({"op": "stop"}, nobody)
    nobody.close()
    assert announced == []


def test_a_back_off_ends_at_once_when_a_restart_is_asked_for(group: WorkerGroup) -> None:
    group.plan["restart"] = {"limit": 3, "backoff_s": 600, "backoff_max_s": 600, "reset_after_s": 600}
    group.next_attempt()
    waiting = threading.Thread(target=group.back_off, daemon=True)
    waiting.start()
    told(group, 1)
    nobody = socket.socket()
    group.answer({"op": "restart"}, nobody)
    nobody.close()
    waiting.join(10)
    assert not waiting.is_alive()
    assert group.restart.is_set()
