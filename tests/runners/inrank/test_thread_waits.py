"""What a process tells of the wait of its main thread and of its threads; real processes that wait for real things."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import filelock
import pytest

from distui.runners.agent import pulses

WAITING = """
import json, sys, threading, time
from distui.runners.inrank.thread_waits import Threads, main_wait

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
    print(json.dumps({**seen, "threads": threads.sample()}), flush=True)

threading.Thread(target=look, name="distui-look", daemon=True).start()
"""


def seen(script: str, *arguments: str, extra: str = "") -> Any:
    """What a process that waits in `script` tells of itself."""
    command = [sys.executable, "-c", WAITING + extra + script, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        holder = pulses.FileLocks().holder(process.pid, json.loads(line or "{}").get("on", ""))
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


@pytest.mark.long
def test_a_lock_that_is_asked_for_again_and_again_with_its_path_and_holder(tmp_path: Path) -> None:
    path = tmp_path / "op.lock"
    script = "import filelock; there.set(); filelock.FileLock(sys.argv[1]).acquire()"
    with filelock.FileLock(path):
        told = seen(script, str(path))
        assert (told["call"], told["on"], told["holder"]) == ("lock", str(path), os.getpid())
    assert pulses.FileLocks().holder(os.getpid(), str(path)) is None
    assert pulses.FileLocks().holder(os.getpid(), str(tmp_path / "gone")) is None


def test_who_waits_for_no_lock_has_no_holder() -> None:
    assert pulses.FileLocks().holder(os.getpid(), "") is None
    assert pulses.FileLocks(proc="/nowhere").holder(os.getpid(), "") is None


@pytest.mark.long
def test_a_fifo_that_nobody_writes_to(tmp_path: Path) -> None:
    fifo = tmp_path / "p{0}pe"
    os.mkfifo(fifo)
    told = seen("there.set(); open(sys.argv[1]).read()", str(fifo))
    assert (told["call"], told["on"]) == ("open", f"FIFO {fifo}")
    keep = os.open(fifo, os.O_RDWR)
    try:
        told = seen("there.set(); open(sys.argv[1]).read()", str(fifo))
    finally:
        os.close(keep)
    assert (told["call"], told["on"]) == ("read", f"FIFO {fifo}")


@pytest.mark.long
def test_a_pipe_a_child_and_a_sleep() -> None:
    assert seen("import os; there.set(); os.read(os.pipe()[0], 1)")["on"] == "a pipe"
    told = seen("import subprocess; child = subprocess.Popen(['sleep', '60']); there.set(); child.wait()")
    assert told["call"] == "wait"
    os.kill(int(told["on"]), 15)
    assert seen("there.set(); time.sleep(60)")["call"] == "sleep"


@pytest.mark.long
@pytest.mark.parametrize(("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_another_host_that_does_not_answer(family: socket.AddressFamily, host: str) -> None:
    with socket.socket(family) as server:
        try:
            server.bind((host, 0))
        except OSError:
            pytest.skip(f"no {host} here")
        server.listen()
        port = server.getsockname()[1]
        told = seen(
            "import socket; at = socket.create_connection((sys.argv[1], int(sys.argv[2]))); there.set(); at.recv(1)",
            host,
            str(port),
        )
    assert (told["call"], told["on"]) == ("read", f"{host}:{port}")


@pytest.mark.long
def test_threads_are_told_with_where_they_are_and_what_they_died_of() -> None:
    script = """
import queue
gate, box = threading.Event(), queue.Queue()

def watch():
    gate.wait()

def produce():
    raise KeyError("one line\\nand another")

threading.Thread(target=watch, name="watcher", daemon=True).start()
dead = threading.Thread(target=produce, name="maker")
dead.start()
dead.join()
there.set()
box.get()
"""
    told = seen(script)
    assert told["call"] == "futex"
    maker, watcher = told["threads"]
    assert maker[0] == "maker"
    assert maker[1][0][2] == "produce"
    assert maker[2].startswith("KeyError: 'one line")
    assert watcher[0] == "watcher"
    assert "watch" in [frame[2] for frame in watcher[1]]
    assert watcher[2] == ""


@pytest.mark.long
def test_the_scripts_own_hook_for_threads_is_called_as_before() -> None:
    script = """
import threading
from distui.runners.inrank.thread_waits import Threads
threading.excepthook = lambda ended: print("the script's own:", ended.exc_type.__name__)
Threads().arm()

class Unspeakable(Exception):
    def __str__(self):
        raise RuntimeError("no text")

def fail():
    raise Unspeakable

thread = threading.Thread(target=fail)
thread.start()
thread.join()
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "the script's own: Unspeakable\n"
    assert done.stderr == ""


def test_a_running_main_thread_waits_for_nothing() -> None:
    from distui.runners.inrank.thread_waits import main_wait

    assert main_wait() == {}
