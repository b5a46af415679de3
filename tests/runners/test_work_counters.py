"""What the kernel tells of a process's work and waits: real sockets, pipes, children and databases."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import patience
import pytest

from distui.runners.agent import process_samples
from distui.runners.agent.awaited_files import locked_database, other_end
from distui.runners.agent.outside_waits import child_wait
from distui.runners.agent.work_counters import counters, tcp_bytes
from distui.runners.run.proc import read_stat
from distui.runners.run.pulse import ProcessWait, Work

SIZE = 100_000


def eventually(wanted: Callable[[], bool]) -> None:
    """Wait until it holds."""
    end = time.monotonic() + patience.HANG_S
    while not wanted():
        assert time.monotonic() < end
        time.sleep(0.01)


@contextmanager
def child(script: str, *arguments: str, **more: int) -> Iterator[subprocess.Popen[str]]:
    """A Python process that has printed a line and then goes on."""
    command = [sys.executable, "-c", script, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **more) as process:  # type: ignore[call-overload]
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield process
        finally:
            process.kill()


def grown(before: Work) -> int:
    """Bytes that this process has both sent and received since then."""
    now = counters([os.getpid()], tcp_bytes())
    return min((now.received or 0) - (before.received or 0), (now.sent or 0) - (before.sent or 0))


def test_bytes_of_a_socket_are_counted_though_send_is_no_write() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        sender = socket.create_connection(server.getsockname())
        receiver, _ = server.accept()
        with sender, receiver:
            before = counters([os.getpid()], tcp_bytes())
            sender.sendall(bytes(SIZE))
            eventually(lambda: grown(before) >= SIZE)
            after = counters([os.getpid()], tcp_bytes())
    assert before.sent is not None
    assert (after.sent or 0) - before.sent >= SIZE
    assert (after.main_written or 0) - (before.main_written or 0) < SIZE


def test_bytes_of_a_pipe_are_counted_for_the_main_thread_only() -> None:
    reads, writes = os.pipe()
    before = counters([os.getpid()], None)
    os.write(writes, bytes(5000))
    os.read(reads, 5000)
    middle = counters([os.getpid()], None)
    thread = threading.Thread(target=os.write, args=(writes, bytes(5000)))
    thread.start()
    thread.join()
    after = counters([os.getpid()], None)
    os.close(reads)
    os.close(writes)
    assert None not in (before.main_written, before.main_read, middle.main_read, middle.main_written)
    assert (middle.main_written or 0) - (before.main_written or 0) >= 5000
    assert (middle.main_read or 0) - (before.main_read or 0) >= 5000
    assert (after.main_written or 0) - (middle.main_written or 0) < 5000
    assert (after.sent, after.received) == (None, None)


def test_counters_that_the_kernel_hides_are_unknown(tmp_path: Path) -> None:
    (tmp_path / "7" / "task" / "7").mkdir(parents=True)
    stat = "7 (python3) S 1 7 7 0 -1 0 0 0 0 0 10 5 100 20 20 0 1 0 0 0 0"
    (tmp_path / "7" / "stat").write_text(stat)
    assert counters([7], None, str(tmp_path)) == Work(child_bytes=0, child_cpu_s=1.2)
    (tmp_path / "7" / "task" / "7" / "io").write_text("rchar: 5\n")
    assert counters([7, 8], None, str(tmp_path)) == Work(child_cpu_s=1.2)
    assert counters([9], None, str(tmp_path)) == Work(child_bytes=0)


@pytest.mark.real
def test_the_cpu_time_of_children_stays_when_they_have_ended() -> None:
    before = counters(process_samples.tree(os.getpid()), None).child_cpu_s
    with child(
        "print(flush=True); sum(range(10**7)); print(flush=True); input()", stdin=subprocess.PIPE
    ) as busy:
        assert busy.stdout is not None
        busy.stdout.readline()
        running = counters(process_samples.tree(os.getpid()), None).child_cpu_s
    ended = counters(process_samples.tree(os.getpid()), None).child_cpu_s
    assert before is not None
    assert running is not None
    assert ended is not None
    assert before + 0.05 < running <= ended


@pytest.mark.real
def test_the_other_end_of_a_pipe_is_found() -> None:
    with child("import time; print(flush=True); time.sleep(60)", stdin=subprocess.PIPE) as reader:
        assert reader.stdin is not None
        assert other_end(os.getpid(), reader.stdin.fileno(), writes=False) == reader.pid
        assert other_end(os.getpid(), reader.stdin.fileno(), writes=True) is None
    assert other_end(os.getpid(), 10_000, writes=False) is None


def waits(child: int) -> ProcessWait:
    """What a child waits for, once it is seen in that call."""
    found: list[ProcessWait] = []

    def is_waiting() -> bool:
        wait = child_wait(child, os.getpid())
        found[:] = [] if wait is None else [wait]
        return wait is not None and wait.call != "poll"

    eventually(is_waiting)
    return found[0]


@pytest.mark.real
def test_a_child_that_writes_into_an_unread_pipe_or_waits_for_a_lock_is_described(tmp_path: Path) -> None:
    with child("import sys; print(flush=True); sys.stdout.write('x' * 10**6)") as writer:
        found = waits(writer.pid)
        assert (found.pid, found.call, found.on, found.is_unread) == (writer.pid, "write", "a pipe", True)
    with child(
        "import threading; lock = threading.Lock(); print(flush=True); lock.acquire(); lock.acquire()"
    ) as locked:
        found = waits(locked.pid)
        assert (found.call, found.is_unread, found.is_fork) == ("futex", False, False)
    feeds = (
        "import sys, threading; print(flush=True); "
        "threading.Thread(target=sys.stdout.write, args=('x' * 10**6,)).start()"
    )
    with child(feeds) as feeder:  # its main thread waits for the end of the other one
        eventually(lambda: waits(feeder.pid).is_unread)
        assert waits(feeder.pid).call == "futex"
    fifo = tmp_path / "part-7"
    os.mkfifo(fifo)
    with child("import sys; print(flush=True); open(sys.argv[1])", str(fifo)) as opener:
        assert (waits(opener.pid).call, waits(opener.pid).on) == ("open", str(fifo))
    assert child_wait(2**22 + 1, os.getpid()) is None


@pytest.mark.real
def test_a_database_that_another_process_has_locked_is_found(tmp_path: Path) -> None:
    path = tmp_path / "index.db"
    holds = (
        "import sqlite3, sys, time; at = sqlite3.connect(sys.argv[1], isolation_level=None); "
        "at.execute('create table t (a)'); at.execute('begin immediate'); print(flush=True); time.sleep(60)"
    )
    with child(holds, str(path)) as holder:
        connection = sqlite3.connect(path, timeout=0)
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            connection.execute("insert into t values (1)")
        found = locked_database(os.getpid())
        assert found is not None
        assert (found.path, found.holder) == (str(path), holder.pid)
        connection.close()
        assert locked_database(os.getpid()) is None
        plain = tmp_path / "plain.lock"
        with plain.open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            assert locked_database(os.getpid()) is None


def stat_of(pid: int) -> str:
    """The state letter of a process."""
    stat = read_stat(pid)
    return "" if stat is None else stat.state


@pytest.mark.real
def test_a_stopped_worker_of_a_data_loader_is_seen() -> None:
    names = (
        "import ctypes, time; ctypes.CDLL(None).prctl(15, b'pt_data_worker', 0, 0, 0); "
        "print(flush=True); time.sleep(60)"
    )
    with child(names) as worker:
        assert worker.pid not in process_samples.sample(os.getpid()).halted_workers
        worker.send_signal(signal.SIGSTOP)
        eventually(lambda: stat_of(worker.pid) == "T")
        assert worker.pid in process_samples.sample(os.getpid()).halted_workers
    assert not process_samples.is_frozen(os.getpid())


def test_a_frozen_process_is_told_by_its_kernel_function_or_its_cgroup(tmp_path: Path) -> None:
    proc, pid = tmp_path / "proc", 7
    (proc / "7").mkdir(parents=True)
    assert not process_samples.is_frozen(pid, str(proc))
    (proc / "7" / "wchan").write_text("__refrigerator")
    assert process_samples.is_frozen(pid, str(proc))
    (proc / "7" / "wchan").write_text("0")
    (proc / "7" / "cgroup").write_text("0::/job\n")
    group = tmp_path / "sys/fs/cgroup/job"
    group.mkdir(parents=True)
    (group / "cgroup.events").write_text("populated 1\nfrozen 0\n")
    assert not process_samples.is_frozen(pid, str(proc))
    (group / "cgroup.events").write_text("populated 1\nfrozen 1\n")
    assert process_samples.is_frozen(pid, str(proc))
    (proc / "7" / "cgroup").write_text("4:freezer:/job\n0::/\n")
    first = tmp_path / "sys/fs/cgroup/freezer/job"
    first.mkdir(parents=True)
    (first / "freezer.state").write_text("THAWED\n")
    assert not process_samples.is_frozen(pid, str(proc))
    (first / "freezer.state").write_text("FROZEN\n")
    assert process_samples.is_frozen(pid, str(proc))
