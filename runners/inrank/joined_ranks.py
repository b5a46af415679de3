"""Ranks that a launcher inside the user's command started: each announces itself (joining.py), the runner reports them.

accelerate, deepspeed, mpirun, srun, Ray or multiprocessing start them. They are not children of the runner, which waits
for their exits with a pidfd. It gets the exit code if it reads /proc before the parent reaps the rank, if the kernel
keeps the code (Linux 6.15), or if the launcher prints it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import select
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable
from typing import Any

from .rank_processes import is_zombie, signal_name, start_ticks, stat_of, wait_peeking
from .restart_policy import how_it_ended, noted, tail
from .worker_group import WorkerGroup

QUIET_S = 1.0
"""Report the joined ranks after this many seconds without another one."""
LATEST_S = 5.0
"""Report the joined ranks at the latest this many seconds after the first one."""
MOST_WORLD = 1 << 20
POLL_S = 0.1
"""Poll interval for the exit of a process in seconds if the kernel has no pidfd (before Linux 5.3)."""
_PRINTED = re.compile(r"\bexitcode *: (-?\d{1,3})\b.*\(pid: (\d+)\)")
"""torchrun's line about a failed rank, in its table and before it."""
_INFO = struct.Struct("2Q11Ii")
"""The first version of struct pidfd_info (linux/pidfd.h): mask, cgroup, 11 ids, exit status as in waitpid(2)."""
_EXIT = 1 << 3
"""PIDFD_INFO_EXIT."""
_GET_INFO = 3 << 30 | _INFO.size << 16 | 0xFF << 8 | 11
"""PIDFD_GET_INFO."""


class JoinedRanks:
    """The joined ranks of the current attempt."""

    def __init__(self, group: WorkerGroup, take_over: Callable[[int], None]) -> None:
        """`take_over`: called before each report of the attempt with the command's rank, or -1 if it is no rank."""
        self._group, self._take_over = group, take_over
        self._lock = threading.Lock()
        self._places: dict[int, dict[str, Any]] = {}
        self._newest: dict[int, dict[str, Any]] = {}
        """Rank → fields of its newest RankChanged."""
        self._reported: frozenset[int] = frozenset()
        self.living: dict[int, int] = {}
        """Rank → pid."""
        self._world = self._attempt = self._command = 0
        self._diff: dict[str, str | None] = {}
        self._due: threading.Timer | None = None
        self._first_at = 0.0

    def begin(self, env_diff: dict[str, str | None]) -> None:
        """Begin another attempt with these changes of the environment, without joined ranks."""
        with self._lock:
            self._diff = env_diff
            self._places, self._newest, self.living, self._reported = {}, {}, {}, frozenset()
            self._world, self._attempt, self._command = 0, self._group.attempt, -1
            if self._due is not None:
                self._due.cancel()
            self._due = None

    def locals(self) -> list[int]:
        """Return the local ranks of the live ranks."""
        with self._lock:
            return [int(self._places[rank]["local_rank"]) for rank in self.living]

    def take(self, request: dict[str, Any], peer: socket.socket) -> dict[str, Any]:
        """Answer {"op": "join", "attempt", "rank", "local_rank", "world", "variables"} with the rank's hook and files.

        Answers {"ok": False} if the process is no rank of this attempt.
        """
        pid = struct.unpack("3i", peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
        command = self._group.pids.get(0)
        rank, world = _whole(request.get("rank")), _whole(request.get("world"))
        is_alone = world == 1 and pid == command
        if command is None or is_alone or pid <= 0 or not 0 <= rank < world <= MOST_WORLD:
            return {"ok": False}
        with self._lock:
            if rank in self.living or not self._is_current(request):
                return {"ok": False}
            return self._welcome(rank, world, pid, _whole(request.get("local_rank")), pid == command)

    def _is_current(self, request: dict[str, Any]) -> bool:
        """Return whether a launcher of this attempt has started the process."""
        group = self._group
        is_now = request.get("attempt") == str(group.attempt) and self._attempt == group.attempt
        return is_now and not group.stopping and not _inherited(request.get("variables"))

    def _welcome(self, rank: int, world: int, pid: int, local: int, is_command: bool) -> dict[str, Any]:
        if world != self._world:
            self._places = {held: self._places[held] for held in self.living}
            self._world = world
        local = self._free_local(local)
        self._places[rank] = {"rank": rank, "local_rank": local, "node": self._group.node, "gpu": None}
        self.living[rank] = pid
        self._command = rank if is_command else self._command
        stem = os.path.join(self._group.directory(self._attempt), "rank-%d" % rank)
        for ending in () if is_command else (".exc", ".end"):  # of an earlier process with this rank
            with contextlib.suppress(OSError):
                os.unlink(stem + ending)
        about = {"attempt": self._attempt, "rank": rank, "local_rank": local, "pid": pid}
        self._newest[rank] = {"state": "running", **about}
        threading.Thread(
            target=self._see_end,
            args=(about, stem, is_command),
            name="distui-joined-%d" % rank,
            daemon=True,
        ).start()
        if frozenset(self._places) == self._reported:
            self._group.report("RankChanged", **self._newest[rank])
        else:
            self._report_soon()
        return {"ok": True, "files": stem, "hook": "%s.r%d" % (os.environ["DISTUI_SOCKETS"], local)}

    def _free_local(self, wanted: int) -> int:
        """Return this local rank if no live rank has it, else the lowest free one."""
        taken = {self._places[held]["local_rank"] for held in self.living}
        if wanted >= 0 and wanted not in taken:
            return wanted
        return next(free for free in range(len(taken) + 1) if free not in taken)

    def _report_soon(self) -> None:
        if self._due is None:
            self._first_at = time.monotonic()
        else:
            self._due.cancel()
        everyone = len(self._places) == self._world
        left = self._first_at + LATEST_S - time.monotonic()
        self._due = threading.Timer(0.0 if everyone else max(0.0, min(QUIET_S, left)), self.report)
        self._due.name = "distui-joining"
        self._due.daemon = True
        self._due.start()

    def report(self) -> None:
        """Report the attempt with the ranks that have joined, unless these were already reported."""
        with self._lock:
            self._report()

    def _report(self) -> None:
        if self._due is not None:
            self._due.cancel()
        self._due = None
        ranks = frozenset(self._places)
        if ranks == self._reported or self._attempt != self._group.attempt:
            return
        self._reported = ranks
        self._take_over(self._command)
        self._group.report_attempt([self._places[rank] for rank in sorted(ranks)], self._world, self._diff)
        for rank in sorted(ranks):
            self._group.report("RankChanged", **self._newest[rank])

    def _see_end(self, about: dict[str, Any], stem: str, is_command: bool) -> None:
        rank, pid = about["rank"], about["pid"]
        code = wait_peeking(pid, self._group.began) if is_command else _wait_for_other(pid)
        now = time.time()
        code = _noted_code(stem) if code is None else code
        group = self._group
        with self._lock:
            if self.living.get(rank) != pid or about["attempt"] != self._attempt:
                return
            state, _ = group.exit_state(code)
            self._report()
            ended = {"state": state, "exit_code": code, "signal": signal_name(code), "at": now}
            self._newest[rank] = {**about, **ended}
            group.report("RankChanged", **self._newest[rank])
            del self.living[rank]

    def see_off(self, grace_s: float, code: int) -> None:
        """After the command exited with `code`: wait for its ranks at most `grace_s` seconds, then kill them.

        Also complete the ranks without a known exit code. They succeeded if `code` is 0 (Ray kills its workers after
        their work); else use the exit codes that torchrun printed.
        """
        self._await_ends(grace_s)
        for pid in list(self.living.values()):
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        self._await_ends(2.0)
        with self._lock:
            printed = {} if code == 0 else self._printed_codes()
            for about in self._newest.values():
                if about["state"] == "lost" and (code == 0 or about["pid"] in printed):
                    rank_code = printed.get(about["pid"])
                    state = "succeeded" if code == 0 else how_it_ended(rank_code, False, False)
                    about.update(state=state, exit_code=rank_code, signal=signal_name(rank_code))
                    self._group.report("RankChanged", **about)

    def _printed_codes(self) -> dict[int, int]:
        """Return pid → exit code of the failed ranks, from the last lines that the launcher printed."""
        lines = tail(os.path.join(self._group.directory(self._attempt), "command.err"))
        return {int(row[2]): int(row[1]) for row in map(_PRINTED.search, lines) if row is not None}

    def _await_ends(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while self.living and time.monotonic() < deadline:
            time.sleep(0.02)


def _noted_code(stem: str) -> int | None:
    """Return the exit code according to the hook's last files; None if there are none, for example after a signal."""
    if os.path.exists(stem + ".exc"):
        return 1
    if not os.path.exists(stem + ".end"):
        return None
    code = noted(stem + ".end").get("code")
    return code if type(code) is int else 0


def _whole(value: object) -> int:
    """Return a request's integer, or -1 for any other value."""
    return value if type(value) is int else -1


def _inherited(variables: object) -> bool:
    """Return whether a process's rank variables equal the runner's: then no launcher below the runner has set them."""
    if not isinstance(variables, dict) or not variables:
        return False
    return all(os.environ.get(str(name)) == value for name, value in variables.items())


def _wait_for_other(pid: int) -> int | None:
    """Block until a process that is not a child has exited; return its exit code (negative: signal) or None."""
    ticks = start_ticks(pid)
    try:
        watched = os.pidfd_open(pid)
    except (AttributeError, OSError):
        while start_ticks(pid) == ticks != 0 and not is_zombie(pid):
            time.sleep(POLL_S)
        return _code_of(pid, ticks)
    try:
        waiting = select.poll()
        waiting.register(watched, select.POLLIN)
        waiting.poll()
        code = _code_of(pid, ticks)
        return _kept_code(watched) if code is None else code
    finally:
        os.close(watched)


def _code_of(pid: int, ticks: int) -> int | None:
    """Return the exit code of a zombie from field 52 of /proc/<pid>/stat, which is as in waitpid(2); else None."""
    fields = stat_of(pid)
    if len(fields) < 50 or fields[0] not in ("Z", "X") or int(fields[19]) != ticks:
        return None
    return os.waitstatus_to_exitcode(int(fields[49]))


def _kept_code(watched: int) -> int | None:
    """Return the exit code of a reaped process from its pidfd; None if the kernel has none (before Linux 6.15)."""
    info = bytearray(_INFO.pack(_EXIT, *[0] * 13))
    try:
        fcntl.ioctl(watched, _GET_INFO, info)
    except OSError:
        return None
    mask, *_, status = _INFO.unpack(info)
    return os.waitstatus_to_exitcode(status) if mask & _EXIT else None
