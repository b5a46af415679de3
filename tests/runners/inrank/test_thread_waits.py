"""What a process tells of the wait of its main thread and of its threads; real processes that wait for real things."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import filelock
import pytest
from ports import free_port

from distui.runners.inrank.script_threads import Threads
from distui.runners.inrank.thread_waits import main_wait
from distui.runners.run import file_locks

WAITING = """
import json, sys, threading, time
from distui.runners.inrank.script_threads import Threads
from distui.runners.inrank.thread_waits import main_wait

threads, there = Threads(), threading.Event()
threads.arm()

def look():
    there.wait()  # set right before the wait: on the way to it there are others
    before, same = None, 0
    while same < 3:  # the main thread has come to its wait once it is seen there again and again
        time.sleep(0.05)
        seen = main_wait()
        same = same + 1 if seen and seen == before else 0
        before = seen
    print(json.dumps({**seen, "threads": threads.sample({}, {})}), flush=True)

threading.Thread(target=look, name="distui-look", daemon=True).start()
"""


def seen(script: str, *arguments: str) -> Any:
    """What a process that waits in `script` tells of itself."""
    command = [sys.executable, "-c", WAITING + script, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        holder = file_locks.holder(file_locks.read(), process.pid, json.loads(line or "{}").get("on", ""))
        process.kill()
    assert line, process.stderr.read() if process.stderr else ""
    return {**json.loads(line), "holder": holder}


@pytest.mark.real
def test_a_file_lock_with_its_path_and_holder(tmp_path: Path) -> None:
    path = tmp_path / "index.lock"
    with path.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        told = seen("import fcntl; there.set(); fcntl.flock(open(sys.argv[1]), fcntl.LOCK_EX)", str(path))
        assert (told["call"], told["on"], told["holder"]) == ("lock", str(path), os.getpid())
        fcntl.flock(held, fcntl.LOCK_UN)
        fcntl.lockf(held, fcntl.LOCK_EX)
        told = seen(
            "import fcntl; there.set(); fcntl.lockf(open(sys.argv[1], 'r+'), fcntl.LOCK_EX)", str(path)
        )
        assert (told["call"], told["on"], told["holder"]) == ("lock", str(path), os.getpid())


def test_who_waits_for_no_lock_has_no_holder() -> None:
    assert file_locks.holder(file_locks.read(), os.getpid(), "") is None
    assert file_locks.holder(file_locks.read("/nowhere"), os.getpid(), "") is None


@pytest.mark.long
def test_whatever_it_waits_for_is_named(tmp_path: Path) -> None:
    def waits(script: str, *arguments: object) -> tuple[str, str]:
        told = seen(script, *map(str, arguments))
        return told["call"], told["on"]

    fifo, reads = tmp_path / "p{0}pe", "there.set(); open(sys.argv[1]).read()"
    os.mkfifo(fifo)
    assert waits(reads, fifo) == ("open", f"FIFO {fifo}")
    keep = os.open(fifo, os.O_RDWR)
    assert waits(reads, fifo) == ("read", f"FIFO {fifo}")
    os.close(keep)
    assert waits("import os; there.set(); os.read(os.pipe()[0], 1)") == ("read", "a pipe")
    fills = "import os; end = os.pipe()[1]; there.set(); os.write(end, bytes(10**6))"
    assert waits(fills) == ("write", "a pipe")
    polls = "import os, select; poll = select.poll(); poll.register(os.pipe()[0]); there.set(); poll.poll()"
    assert waits(polls) == ("poll", "a pipe")
    assert waits("import queue; there.set(); queue.Queue().get()")[0] == "futex"
    assert waits("there.set(); time.sleep(60)")[0] == "sleep"
    starts = "import subprocess; child = subprocess.Popen(['sleep', '60']); there.set(); child.wait()"
    call, child = waits(starts)
    os.kill(int(child), 15)
    assert call == "wait"
    connects = "import socket; at = socket.create_connection((sys.argv[1], int(sys.argv[2]))); there.set(); at.recv(1)"
    for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        try:
            server = socket.create_server((host, 0), family=family)
        except OSError:
            continue  # there is no IPv6 here
        with server:
            port = server.getsockname()[1]
            assert waits(connects, host, port) == ("read", f"{host}:{port}")
    accepts = "import socket; at = socket.create_server(('127.0.0.1', {port})); there.set(); at.accept()"
    port = free_port()
    assert waits(accepts.format(port=port)) == ("accept", f"listening at 127.0.0.1:{port}")
    timed = accepts.replace("there.set()", "at.settimeout(60); there.set()")
    port = free_port()
    assert waits(timed.format(port=port)) == ("poll", f"listening at 127.0.0.1:{port}")
    path = tmp_path / "op.lock"
    with filelock.FileLock(path):
        told = seen("import filelock; there.set(); filelock.FileLock(sys.argv[1]).acquire()", str(path))
        assert (told["call"], told["on"], told["holder"]) == ("lock", str(path), os.getpid())
    assert file_locks.holder(file_locks.read(), os.getpid(), str(path)) is None


def test_threads_are_told_with_where_they_are_and_what_they_died_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The script's own hook for threads is called as before."""
    own, gate, threads = list[str](), threading.Event(), Threads()

    class UnspeakableError(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    def watch() -> None:
        gate.wait()

    def produce(error: Exception) -> None:
        raise error

    def note(ended: threading.ExceptHookArgs) -> None:
        own.append(ended.exc_type.__name__)

    monkeypatch.setattr(threading, "excepthook", note)
    threads.arm()
    watcher = threading.Thread(target=watch, name="watcher")
    watcher.start()
    for error in (KeyError("one line\nand another"), UnspeakableError()):
        dead = threading.Thread(target=produce, args=(error,), name="maker")
        dead.start()
        dead.join()
    told = {name: (frames, error) for name, frames, error, *_ in threads.sample({}, {})}
    gate.set()
    watcher.join()
    assert own == ["KeyError", "UnspeakableError"]
    frames, said = told["maker"]
    assert frames[0][2] == "produce"
    assert said.startswith("KeyError: 'one line")
    frames, said = told["watcher"]
    assert "watch" in [frame[2] for frame in frames]
    assert said == ""


def test_a_running_main_thread_waits_for_nothing() -> None:
    assert main_wait() == {}
