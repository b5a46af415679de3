"""Any launcher, any script: the command runs as it is, and restarts by stop and start.

A torchrun inside it that steers its own ranks (see nested_torchrun.py) reports for itself, and restarts them in place.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import socket
import subprocess
import time
from types import FrameType
from typing import Any

from . import child_processes
from .output_filter import private
from .plugin import python_path
from .worker_group import WorkerGroup, heed


def run(group: WorkerGroup) -> int:
    """Run the plan's command until it succeeds, is stopped, or the policy gives up; its exit code."""
    managed = CommandRunner(group)
    heed(managed.heed)
    group.started()
    phase, code, text = managed.run()
    group.end(phase, code, text)
    return 0 if phase == "succeeded" else code if code > 0 else 1


class CommandRunner:
    """The command of a plan, one process an attempt."""

    def __init__(self, group: WorkerGroup) -> None:
        self.group = group
        self.problem = ""
        self._guest: socket.socket | None = None
        """The connection of the torchrun in the command that steers its own ranks."""
        self._diff: dict[str, str | None] = {}
        self._ran = False
        """Whether the command was ever started."""
        self._taken = 0
        """Number of the newest attempt that such a one has taken over."""
        group.on_stop = group.on_restart = self.end_process
        group.guests, group.on_left = {"guest": self.welcome, "taken": self.taken}, self.left
        group.muted = lambda: self._taken == group.attempt

    def heed(self, number: int, frame: FrameType | None) -> None:
        """A signal to the runner ends the command as a stop does."""
        self.group.stopped_by = self.group.stopped_by or signal.Signals(number).name
        self.group.stop()

    def run(self) -> tuple[str, int, str]:
        """Phase, exit code and a sentence: how the run ended."""
        group = self.group
        while True:
            code = self.run_attempt()
            if group.stopping:
                by = " by %s" % group.stopped_by if group.stopped_by else ""
                return "stopped", 1 if code is None else code, "stopped" + by
            if group.restart.is_set():
                group.restart.clear()
                group.cause = "restart"
            elif code is None:
                if group.roll_back(self.problem):
                    group.cause = "failure"
                elif not self._ran or not self.another_attempt():
                    return "failed", 127, self.problem
            elif code == 0:
                return "succeeded", 0, "the command ended with exit code 0"
            elif not self.another_attempt():
                why = "; " + group.deaths.why if group.plan["restart"]["limit"] else ""
                return "failed", code, "the command %s%s" % (how(code), why)

    def another_attempt(self) -> bool:
        """Wait as the policy says; False when there is no further attempt."""
        group = self.group
        group.cause = "failure"
        if not group.back_off():
            return False
        if group.restart.is_set():
            group.restart.clear()
            group.cause = "restart"
        return True

    def run_attempt(self) -> int | None:
        """Spawn the command and wait for it; its exit code, or None when it did not start."""
        group = self.group
        if group.stopping:
            return None
        self._diff = group.take_env()
        directory = group.next_attempt()
        # On several nodes each runs the command: it is known by the number of its node.
        place = {"rank": group.node, "local_rank": 0, "node": group.node, "gpu": None}
        group.report(
            "AttemptStarted",
            attempt=group.attempt,
            cause=group.cause,
            world_size=group.plan.get("nnodes", 1),
            ranks=[place],
            env_diff=self._diff,
            failures=group.failures,
        )
        try:
            process = self.spawn(os.path.join(directory, "rank-%d" % group.node))
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or error
            self.problem = "cannot start %s: %s" % (group.plan["argv"][0], why)
            self.refused(place, directory)
            return None
        self._ran, group.variables.undo = True, {}
        ended = group.follow(place, process.pid)
        if group.stopping or group.restart.is_set():
            self.end_process()  # asked for while it was spawned
        ended.join()
        self.see_off(process.pid)
        return process.wait()

    def spawn(self, stem: str) -> subprocess.Popen[bytes]:
        """Start the command in a session of its own, its output in files. Raises OSError and ValueError."""
        with (
            open(stem + ".out", "ab", opener=private) as out,
            open(stem + ".err", "ab", opener=private) as err,
        ):
            return subprocess.Popen(
                self.group.plan["argv"],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
                env=command_env(self.group, stem),
            )

    def refused(self, place: dict[str, Any], directory: str) -> None:
        """The command did not start: its rank ended as a shell would have it, with the reason in its stderr."""
        with (
            contextlib.suppress(OSError),
            open(os.path.join(directory, "rank-%d.err" % place["rank"]), "a", opener=private) as file,
        ):
            file.write("distui: %s\n" % self.problem)
        self.group.report(
            "RankChanged",
            state="failed",
            exit_code=127,
            at=time.time(),
            attempt=self.group.attempt,
            rank=place["rank"],
            local_rank=place["local_rank"],
        )

    def end_process(self) -> None:
        """TERM to the command's whole group; the grace timer does the rest."""
        self.group.ending = True
        for pid in list(self.group.pids.values()):
            child_processes.kill_group(pid, signal.SIGTERM)

    def see_off(self, group_id: int) -> None:
        """The command has ended; a torchrun that it left behind ends its ranks, in its time of grace."""
        deadline = time.monotonic() + self.group.plan["grace_s"]
        while self._guest is not None and time.monotonic() < deadline:
            time.sleep(0.02)
        if self._guest is not None:
            child_processes.kill_group(group_id, signal.SIGKILL)

    def welcome(self, peer: socket.socket) -> dict[str, Any]:
        """A torchrun in the command asks to report for its ranks: one at a time may."""
        group = self.group
        with group.lock:
            if self._guest is not None or not group.pids:
                return {"ok": False}
            self._guest = peer
        return {
            "ok": True,
            "first": self._taken != group.attempt,
            "attempt": group.attempt,
            "cause": group.cause,
            "env_diff": self._diff,
        }

    def taken(self, peer: socket.socket) -> dict[str, Any]:
        """It begins the ranks of this attempt: what becomes of the command itself is not reported any more."""
        if peer is not self._guest:
            return {"ok": False}
        self._taken = self.group.attempt
        return {"ok": True}

    def left(self, peer: socket.socket) -> None:
        """It has ended: where the command goes on, a restart is by stop and start again."""
        if peer is self._guest:
            self._guest = None
            self.group.settle(0.2)
            if self.group.pids:
                self.group.started()


def how(code: int) -> str:
    """ "ended with exit code 3", "was killed by SIGKILL"."""
    return (
        "was killed by %s" % child_processes.signal_name(code)
        if code < 0
        else "ended with exit code %d" % code
    )


def command_env(group: WorkerGroup, stem: str) -> dict[str, str]:
    """The marker, what a torchrun of ours needs to steer the ranks, and that torchrun in front."""
    env = dict(os.environ)
    env["DISTUI_ATTEMPT"] = str(group.attempt)
    env["DISTUI_RUN_DIR"] = group.run_dir
    env["NCCL_DEBUG_FILE"] = stem + ".%p.nccl"
    if group.plan["hook"]:
        shim = os.path.join(os.path.dirname(os.path.abspath(__file__)), "shim")
        env["PATH"] = shim + os.pathsep + env.get("PATH", os.defpath)
        # Tasks that activate an environment put its torchrun first on PATH; bash asks its functions before that.
        env["BASH_FUNC_torchrun%%"] = '() { %s "$@"; }' % shlex.quote(os.path.join(shim, "torchrun"))
    env.update(group.variables.unset())  # which a torchrun of ours would set again
    return {**env, **python_path([])}
