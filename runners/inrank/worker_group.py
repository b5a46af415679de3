"""The ranks of one runner: commands to the runner, attempts, and the processes of the ranks."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any

from . import env_changes, script_files
from .control import Control, dial
from .rank_processes import children, identified, kill_group, note_exit_codes, signal_name, wait_peeking
from .reporter import Reporter
from .restart_policy import Deaths, RankExit, after_failure, how_it_ended

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""Signals that end a run in an orderly way."""
FIND_SECONDS = 60.0
"""Most seconds between the spawn of a rank and its exec, when its environment can be read."""


class RunStopped(Exception):
    """The run was stopped before the first attempt or between two attempts."""


class WorkerGroup:
    """State that the control thread sets and the launcher's loop obeys."""

    def __init__(self, plan: dict[str, Any], run_dir: str, failures: int = 0, suffix: str = ".run") -> None:
        self.plan, self.run_dir, self.failures = plan, run_dir, failures
        self.node = int(plan.get("node", 0))
        self.attempt = 0
        self.agreed_number = 0
        """Lowest number for the next attempt, agreed by all nodes; 0 before the first rendezvous."""
        self.inherited: dict[str, Any] = {}
        """Number, cause and env_diff for the next attempt, if the managed command around this torchrun has begun it."""
        self.cause = "failure" if failures else "launch"
        """Cause of this attempt: see AttemptStarted."""
        self.began = 0.0
        """Monotonic time of the attempt's start: the wall clock may be set."""
        self.ending = False
        """True if the current attempt ends on purpose."""
        self.stopping = False
        self.stopped_by = ""
        """Name of the signal that ended the run; "" if a command did."""
        self.restart = threading.Event()
        self.wake = threading.Event()
        """Set by a requested stop or restart, to end a wait."""
        self.variables = env_changes.Variables()
        self.spawning = False
        """True from the end of an attempt's preparation until torch first checks its ranks."""
        self.pids: dict[int, int] = {}
        """Live ranks of the current attempt: local rank → pid."""
        self.unidentified: set[int] = set()
        """Local ranks of the current attempt without a known process."""
        self.deaths = Deaths()
        """Exits of the current attempt's ranks, and the reason against another attempt."""
        self.failed = threading.Event()
        self.lock = threading.Lock()
        self.socket = os.environ["DISTUI_SOCKETS"] + suffix
        self.control = Control(self.socket, self.answer, self.left)
        self.report = Reporter(os.path.join(run_dir, "runner.jsonl"), self.poke, suffix)

    # --- commands --------------------------------------------------------------------------------------------

    def answer(self, request: dict[str, Any], peer: socket.socket) -> dict[str, Any] | None:
        """Execute a command: {"op": "restart"|"env"|"stop"|"ping"|"poke", "env": {name: value|null}}."""
        op = request.get("op")
        if op == "poke":
            self.control.poke()
            return None
        refused = self._refusal(request)
        if refused:
            return {"ok": False, "text": refused}
        if op in ("restart", "env"):
            self.variables.note(request)
        if op == "restart":
            self._restart()
        elif op == "stop":
            self.stop(request.get("grace_s"))
        return {"ok": True, "attempt": self.attempt, "restarting": self.restart.is_set()}

    def _refusal(self, request: dict[str, Any]) -> str:
        """Return why the request is refused; "" if it is not."""
        op = request.get("op")
        if op not in ("restart", "env", "stop", "ping"):
            return "unknown command %r" % op
        if op == "ping":
            return ""
        if op == "stop":
            return "" if _is_grace(request.get("grace_s")) else "grace_s is not a number of seconds"
        if time.monotonic() > float(request.get("until") or "inf"):
            return "the request came too late, and was withdrawn"
        if op == "restart" and self.stopping:
            return "the run is being stopped"
        return self.variables.problem(request, self.plan["argv"], spawns=op == "restart")

    def _restart(self) -> None:
        self.ending = bool(self.pids)
        self.restart.set()
        self.wake.set()
        announce("%s.r%d" % (os.environ["DISTUI_SOCKETS"], local) for local in self.locals())
        self.on_restart()
        self._kill_after_grace(self.plan["grace_s"])

    def stop(self, grace_s: float | None = None) -> None:
        """End the run: send SIGTERM, and SIGKILL after `grace_s` (None: the plan's)."""
        self.stopping = self.ending = True
        self.wake.set()
        self._kill_after_grace(self.plan["grace_s"] if grace_s is None else grace_s)
        self.on_stop()

    def _kill_after_grace(self, grace_s: float) -> None:
        """Send SIGKILL after the grace period, which may be shorter than torch's fixed 30 s."""
        pids = dict(self.pids)

        def kill() -> None:
            for local, pid in pids.items():
                if self.pids.get(local) == pid:
                    kill_group(pid, signal.SIGKILL)

        timer = threading.Timer(grace_s, kill)
        timer.name = "distui-kill"
        timer.daemon = True
        timer.start()

    # --- what differs between kinds of runners -------------------------------------------------------------

    def poke(self) -> None:
        """Signal all connections that the report file has new lines."""
        self.control.poke()

    def on_stop(self) -> None:
        """End the ranks because the run is stopped."""
        os.kill(os.getpid(), signal.SIGTERM)

    def on_restart(self) -> None:
        """End the ranks for the next attempt, if the launcher does not."""

    def on_begin(self) -> None:
        """Act before the first attempt; not called if the launcher refuses its arguments."""

    def left(self, peer: socket.socket) -> None:
        """Act after a connection to the runner has ended."""

    def handed_over(self) -> bool:
        """Return whether another process reports for the ranks of this attempt."""
        return False

    def locals(self) -> list[int]:
        return list(self.pids)

    def rename_output(self, directory: str, name: str) -> None:
        """Rename the output files of this node's command to `name`; its open descriptors stay valid."""
        for stream in ("out", "err"):
            with contextlib.suppress(FileNotFoundError):
                os.replace(
                    os.path.join(directory, "rank-%d.%s" % (self.node, stream)),
                    os.path.join(directory, "%s.%s" % (name, stream)),
                )

    def echo(self, descriptor: int, paths: dict[int, str]) -> dict[int, str]:
        """Return the ranks' files that torch also copies to the runner's stdout (1) or stderr (2), by local rank."""
        return {}

    # --- attempts --------------------------------------------------------------------------------------------

    def take_env(self) -> dict[str, str | None]:
        """Apply the pending environment changes to this process; ranks copy its environment.

        Returns the changes with masked secrets.
        """
        news = self.variables.take()
        return {**self.inherited.get("env_diff", {}), **news}

    def roll_back(self, why: str) -> bool:
        """Undo the newest environment changes, because no rank can start with them; False if there are none."""
        names = self.variables.take_back()
        if not names:
            return False
        text = "%s; the change of %s is taken back, and the ranks start as they were before" % (
            why,
            ", ".join(names),
        )
        self.report("EnvironmentRestored", attempt=self.attempt, names=names, text=text)
        return True

    def next_attempt(self) -> str:
        """Begin the next attempt, set `attempt`, and return the attempt's directory."""
        if not self.attempt:
            self.on_begin()
        number = self.inherited.get("attempt")
        self.inherited = {}
        if number is None:
            number = max(self.agreed_number, self.next_number())
            with contextlib.suppress(FileExistsError):  # the node's folder exists from attempt 2 on
                os.mkdir(os.path.dirname(self.directory(number)), 0o700)
            os.mkdir(self.directory(number), 0o700)
        self._begin(number)
        return self.directory(number)

    def next_number(self) -> int:
        """Return the next attempt number that is unused on this node."""
        number = self.attempt + 1
        while os.path.isdir(self.directory(number)):
            number += 1
        return number

    def directory(self, number: int) -> str:
        """Return the directory of an attempt on this node (see runners.run.log_files)."""
        return os.path.join(self.run_dir, "node-%d" % self.node, "attempt-%03d" % number)

    def _begin(self, number: int) -> None:
        self.attempt, self.began, self.ending = number, time.monotonic(), False
        self.failed.clear()
        self.unidentified, self.deaths.ends = set(), {}
        if not (self.stopping or self.restart.is_set()):
            self.wake.clear()

    def back_off(self) -> bool:
        """Wait after a failure as the policy requires; False if it allows no further attempt."""
        policy, healthy_s = self.plan["restart"], time.monotonic() - self.began
        verdict = after_failure(policy, self.failures, healthy_s)
        self.failures = verdict.failures
        if not self.deaths.allow(policy, verdict, self.directory(self.attempt), healthy_s):
            return False
        if verdict.wait_s:
            self.report(
                "RestartDelayed", wait_s=verdict.wait_s, failures=verdict.failures, limit=policy["limit"]
            )
            if not (self.restart.is_set() or self.stopping):
                self.wake.wait(verdict.wait_s)
        return True

    def report_attempt(
        self, places: list[dict[str, Any]], world_size: int, env_diff: dict[str, str | None]
    ) -> None:
        """Report the start of the attempt. `places`: rank, local_rank, node and gpu of this node's ranks."""
        self.report(
            "AttemptStarted",
            attempt=self.attempt,
            cause=self.cause,
            world_size=world_size,
            ranks=places,
            env_diff=env_diff,
            failures=self.failures,
            code=script_files.digests(self.plan),
        )

    def watch(self, places: list[dict[str, Any]], before: Iterable[int]) -> None:
        """Start a thread that finds the pids of the next spawned ranks and reports the start and exit of each.

        `before`: the children of this process so far.
        """
        note_exit_codes()
        self.unidentified = {place["local_rank"] for place in places}
        arguments = (self.attempt, places, list(before))
        threading.Thread(target=self._find, args=arguments, name="distui-find", daemon=True).start()

    def _find(self, attempt: int, places: list[dict[str, Any]], before: list[int]) -> None:
        missing = {place["local_rank"]: place for place in places}
        order, new = sorted(missing), list[int]()
        deadline = time.monotonic() + FIND_SECONDS
        while missing and time.monotonic() < deadline and attempt == self.attempt:
            new += [pid for pid in children() if pid not in new and pid not in before]
            for pid, local in identified(new, order):
                if local in missing:
                    self.follow(missing.pop(local), pid)
            time.sleep(0.01)

    def follow(self, place: dict[str, Any], pid: int) -> threading.Thread:
        """Report that a rank runs. Return the thread that waits for its exit and reports it."""
        attempt, began, local = self.attempt, self.began, place["local_rank"]
        self.pids[local] = pid
        self.unidentified.discard(local)
        about = {"attempt": attempt, "rank": place["rank"], "local_rank": local, "pid": pid}
        self.report("RankChanged", state="running", **about)

        def wait() -> None:
            code = wait_peeking(pid, began)
            now = time.time()
            with self.lock:
                state, failed = self.exit_state(code)
                self.deaths.ends[local] = RankExit(place["rank"], pid, code, now, failed)
                if not self.handed_over():
                    name = signal_name(code)
                    self.report("RankChanged", state=state, exit_code=code, signal=name, at=now, **about)
                if self.pids.get(local) == pid:
                    del self.pids[local]

        thread = threading.Thread(target=wait, name="distui-wait-%d" % pid, daemon=True)
        thread.start()
        return thread

    def exit_state(self, code: int | None) -> tuple[str, bool]:
        """Return how a rank of this attempt exited, and whether it failed, which is noted."""
        asked = self.ending or self.stopping or self.restart.is_set()
        state = how_it_ended(code, asked, self.failed.is_set())
        failed = state in ("failed", "killed", "lost")
        if failed:
            self.failed.set()
        return state, failed

    def wait_for_exits(self, seconds: float = 2.0) -> None:
        """Wait at most `seconds` until the exit of every rank was reported."""
        deadline = time.monotonic() + seconds
        while self.pids and time.monotonic() < deadline:
            time.sleep(0.01)

    def end(self, phase: str, exit_code: int | None, text: str) -> None:
        """Report how the run ended."""
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)  # the run's end is being reported
        self.wait_for_exits()
        self.report("RunEnded", phase=phase, exit_code=exit_code, text=text)
        self.report.close()

    def started(self, torch_version: str | None = None) -> None:
        """Report that this runner has started."""
        self.report(
            "RunnerStarted",
            pid=os.getpid(),
            kind=self.plan["launcher"],
            python=sys.executable,
            socket=self.socket,
            torch=torch_version,
        )


def _is_grace(value: object) -> bool:
    if value is None:
        return True
    return type(value) in (int, float) and 0 <= value <= threading.TIMEOUT_MAX  # type: ignore[operator]


def handle_stop_signals(handler: Callable[[int, FrameType | None], None]) -> None:
    """Install `handler` for the signals that end a run and unblock these signals; pending ones arrive now."""
    for number in SIGNALS:
        signal.signal(number, handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


ANSWER_SECONDS = 1.0
"""Timeout of a hook's answer in seconds; a busy rank exits without the announcement."""


def announce(paths: Iterable[str]) -> None:
    """Announce to these hooks' sockets that their ranks will be ended (see rank_changes.Leaving). Does not wait."""
    threading.Thread(target=_announce_all, args=(list(paths),), name="distui-announce", daemon=True).start()


def _announce_all(paths: list[str]) -> None:
    hooks = []
    for path in paths:
        with contextlib.suppress(OSError):  # no hook, or it has exited
            hooks.append(dial(path, ANSWER_SECONDS))
            hooks[-1].sendall(json.dumps({"op": "leave"}).encode() + b"\n")
    for hook in hooks:  # if closed before its hello, a hook would not read the request
        with hook, hook.makefile("rb") as lines, contextlib.suppress(OSError):
            while b'"leaving"' not in (lines.readline() or b'"leaving"'):
                continue
