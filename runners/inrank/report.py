"""What the runner tells: one JSON line an event, appended to runner.jsonl; the agent reads it, now or later.

The file, not a connection, is the truth, so that an agent that was away misses nothing.
"""

import json
import os
import signal
import threading
import time


class Report:
    """Appends events (see runners/model.py, type Stamped) and pokes whoever listens."""

    def __init__(self, path, poke):
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._lock = threading.Lock()
        self._late = []
        self._poke = poke

    def __call__(self, event_type, /, **fields):
        event = dict(fields, type=event_type)
        line = json.dumps({"time": time.time(), "event": event}).encode() + b"\n"
        with self._lock:
            self._late.append(line)
            self._write()
        self._poke()

    def _write(self):
        """A full disk keeps lines in memory until there is room; order is kept."""
        while self._late:
            try:
                done = os.write(self._fd, self._late[0])
            except OSError:
                return
            if done < len(self._late[0]):
                self._late[0] = self._late[0][done:]
                return
            self._late.pop(0)


def signal_name(exit_code):
    """Name of the signal behind a negative exit code, else None."""
    if exit_code is None or exit_code >= 0:
        return None
    try:
        return signal.Signals(-exit_code).name
    except ValueError:
        return "signal %d" % -exit_code


def children():
    """Pids of this process's children."""
    found = []
    try:
        for task in os.listdir("/proc/self/task"):
            with open("/proc/self/task/%s/children" % task) as file:
                found.extend(int(pid) for pid in file.read().split())
    except OSError:
        found = _children_by_scan()
    return found


def _children_by_scan():
    """For kernels without CONFIG_PROC_CHILDREN: /proc/<pid>/stat, field 4 is the parent."""
    me, found = os.getpid(), []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open("/proc/%s/stat" % name) as file:
                    if int(file.read().rpartition(")")[2].split()[1]) == me:
                        found.append(int(name))
            except (OSError, ValueError, IndexError):
                continue
    return found


def environ_of(pid):
    """Environment with which a process was started, as a dict of str; {} when it is gone or not ours."""
    try:
        with open("/proc/%d/environ" % pid, "rb") as file:
            raw = file.read()
    except OSError:
        return {}
    pairs = (entry.partition(b"=") for entry in raw.split(b"\0") if b"=" in entry)
    return {key.decode("utf-8", "replace"): value.decode("utf-8", "replace") for key, _, value in pairs}


def wait_peeking(pid):
    """Block until a child ends; its exit code (negative: signal), left for its owner to reap. None if too late."""
    try:
        info = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    except (ChildProcessError, OSError):
        return None
    if info is None:
        return None
    return info.si_status if info.si_code == os.CLD_EXITED else -info.si_status
