"""The runner: one process that owns the ranks, and outlives the agent that started it.

torch launches the ranks (elastic.py), or the plan has a command of the user's, which runs as it is and restarts by stop
and start. A torchrun inside that command (the shim starts it through here, too) is a guest of the runner around it: it
reports for its own ranks, and restarts them in place. The ranks of other launchers join: see joined_ranks.py.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import platform
import shlex
import signal
import socket
import subprocess
import sys
import time
from types import FrameType
from typing import Any

from . import elastic, own_folders
from .control import exchange, private, report_faults
from .elastic import NotSpawned, attempt_all, python_path
from .joined_ranks import JoinedRanks
from .rendezvous import several_nodes
from .restart_policy import UNLIMITED
from .worker_group import SIGNALS, WorkerGroup, attempt_dir, heed, kill_group, signal_name, start_ticks


def write_identity(run_dir: str, path: str, kind: str) -> None:
    """runner.json, by which a later agent recognises this process under its pid."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        boot_id = file.read().strip()
    identity = {
        "pid": os.getpid(),
        "start_ticks": start_ticks(os.getpid()),
        "boot_id": boot_id,
        "host": platform.node(),
        "socket": path,
        "kind": kind,
    }
    temporary = os.path.join(run_dir, "runner.json.tmp")
    with open(temporary, "w", opener=private) as file:
        json.dump(identity, file)
    os.replace(temporary, os.path.join(run_dir, "runner.json"))


def hold(run_dir: str) -> None:
    """Lock runner.lock as long as this process lives: other containers with this home see that much."""
    with contextlib.suppress(OSError):
        path = os.path.join(run_dir, "runner.lock")
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # and never closed


def with_secrets(plan: dict[str, Any], words: str) -> dict[str, Any]:
    """The plan with the arguments that its file leaves out; this process alone has them, its ranks' environment not."""
    for at, word in (json.loads(words).get("argv", {}) if words else {}).items():
        plan["argv"][int(at)] = word
    return plan


def main(argv: list[str]) -> int:
    """Run the plan in `argv[0]`; `argv[1]`, if given: failures counted before; `argv[2]`: why its first attempt is."""
    run_dir = argv[0]
    with open(os.path.join(run_dir, "plan.json")) as file:
        plan = with_secrets(json.load(file), os.environ.pop("DISTUI_SECRET_WORDS", ""))
    if os.environ.pop("DISTUI_NESTED", None) is not None:
        return run_nested(plan, run_dir, argv[2:])
    hold(run_dir)
    commands = plan["launcher"] == "command"
    group = (CommandGroup if commands else WorkerGroup)(plan, run_dir, int(argv[1]) if len(argv) > 1 else 0)
    report_faults(group.report, group.node)
    group.cause = argv[2] if len(argv) > 2 else group.cause
    write_identity(run_dir, group.socket, plan["launcher"])
    group.control.start()
    return group.run_to_end() if isinstance(group, CommandGroup) else elastic.run(group)


class CommandGroup(WorkerGroup):
    """The command of a plan, one process an attempt."""

    _problem = ""
    """Why it did not start."""
    _guest: socket.socket | None = None
    """The connection of the torchrun in the command that steers its own ranks."""
    _diff: dict[str, str | None] = {}
    _ran = False
    """Whether the command was ever started."""
    _taken = 0
    """Number of the newest attempt that a guest, or ranks that joined, have taken over."""

    def __init__(self, plan: dict[str, Any], run_dir: str, failures: int = 0) -> None:
        self.joined = JoinedRanks(self, self._joined)
        super().__init__(plan, run_dir, failures)

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        """A signal to the runner ends the command as a stop does."""
        self.stopped_by = self.stopped_by or signal.Signals(number).name
        self.stop()

    def run_to_end(self) -> int:
        """Run the plan's command until it succeeds, is stopped, or the policy gives up; the runner's exit code."""
        heed(self.on_signal)
        self.started()
        phase, code, text = self._run_attempts()
        self.end(phase, code, text)
        if phase == "succeeded":
            return 0
        return code if code > 0 else 1

    def _run_attempts(self) -> tuple[str, int, str]:
        """Phase, exit code and a sentence: how the run ended."""
        while True:
            code = self._run_attempt()
            if self.stopping:
                by = " by %s" % self.stopped_by if self.stopped_by else ""
                return "stopped", 1 if code is None else code, "stopped" + by
            if self.restart.is_set():
                self.restart.clear()
                self.cause = "restart"
            elif code is None:
                if self.roll_back(self._problem):
                    self.cause = "failure"
                elif not self._ran or not self._another_attempt():
                    return "failed", 127, self._problem
            elif code == 0:
                return "succeeded", 0, "the command ended with exit code 0"
            elif not self._another_attempt():
                why = "; " + self.deaths.why if self.plan["restart"]["limit"] else ""
                name = signal_name(code)
                how = "was killed by %s" % name if name else "ended with exit code %d" % code
                return "failed", code, "the command %s%s" % (how, why)

    def _another_attempt(self) -> bool:
        """Wait as the policy requires; False when there is no further attempt."""
        self.cause = "failure"
        if not self.back_off():
            return False
        if self.restart.is_set():
            self.restart.clear()
            self.cause = "restart"
        return True

    def _run_attempt(self) -> int | None:
        """Spawn the command and wait for it; its exit code, or None when it did not start."""
        if self.stopping:
            return None
        self._diff = self.take_env()
        directory = self.next_attempt()
        self.joined.begin(self._diff)
        # On several nodes each runs the command: the number of its node names it.
        place = {"rank": self.node, "local_rank": 0, "node": self.node, "gpu": None}
        self.report_attempt([place], self.plan.get("nnodes", 1), self._diff)
        try:
            process = self._spawn(os.path.join(directory, "rank-%d" % self.node))
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or error
            self._problem = "cannot start %s: %s" % (self.plan["argv"][0], why)
            self._refused(place, directory)
            return None
        self._ran, self.variables.undo = True, {}
        ended = self.follow(place, process.pid)
        if self.stopping or self.restart.is_set():
            self.on_stop()  # requested while it was spawned
        ended.join()
        self._see_off(process.pid)
        code = process.wait()
        self.joined.see_off(self.plan["grace_s"], code)
        return code

    def _spawn(self, stem: str) -> subprocess.Popen[bytes]:
        """Start the command in a session of its own, its output in files. Raises OSError and ValueError."""
        with (
            open(stem + ".out", "ab", opener=private) as out,
            open(stem + ".err", "ab", opener=private) as err,
        ):
            return subprocess.Popen(
                self.plan["argv"],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
                env=command_env(self, stem),
            )

    def _refused(self, place: dict[str, Any], directory: str) -> None:
        """The command did not start: its rank exits as in a shell, with the reason in its stderr."""
        rank = place["rank"]
        with (
            contextlib.suppress(OSError),
            open(os.path.join(directory, "rank-%d.err" % rank), "a", opener=private) as file,
        ):
            file.write("distui: %s\n" % self._problem)
        about = {"attempt": self.attempt, "rank": rank, "local_rank": place["local_rank"]}
        self.report("RankChanged", state="failed", exit_code=127, at=time.time(), **about)

    def on_stop(self) -> None:
        """TERM to the command's whole group; the grace timer does the rest."""
        self.ending = True
        for pid in list(self.pids.values()):
            kill_group(pid, signal.SIGTERM)

    on_restart = on_stop

    def _see_off(self, group_id: int) -> None:
        """The command has exited; a torchrun that it left behind ends its ranks, in its time of grace."""
        deadline = time.monotonic() + self.plan["grace_s"]
        while self._guest is not None and time.monotonic() < deadline:
            time.sleep(0.02)
        if self._guest is not None:
            kill_group(group_id, signal.SIGKILL)

    def answer(self, request: dict[str, Any], peer: socket.socket) -> dict[str, Any] | None:
        """Also {"op": "guest"|"taken"}, of a torchrun in the command, and {"op": "join"} of other launchers' ranks."""
        op = request.get("op")
        if op == "guest":
            return self._welcome(peer)
        if op == "join":
            return {"ok": False} if self._guest is not None else self.joined.take(request, peer)
        return self._hand_over(peer) if op == "taken" else super().answer(request, peer)

    def _welcome(self, peer: socket.socket) -> dict[str, Any]:
        """A torchrun in the command asks to report for its ranks: one at a time may."""
        with self.lock:
            if self._guest is not None or not self.pids:
                return {"ok": False}
            self._guest = peer
        first = self._taken != self.attempt
        about = {"attempt": self.attempt, "cause": self.cause, "env_diff": self._diff}
        return {"ok": True, "first": first, **about}

    def _hand_over(self, peer: socket.socket) -> dict[str, Any]:
        """The guest begins the ranks of this attempt: from now on the exit of the command itself is not reported."""
        if peer is not self._guest:
            return {"ok": False}
        self._taken = self.attempt
        return {"ok": True}

    def handed_over(self) -> bool:
        return self._taken == self.attempt

    def _joined(self, own: int) -> None:
        """Ranks that joined are those of this attempt. `own`: the number of the command itself, -1 where it is none.

        What the command has written so far is no rank's then; it goes on writing there, as the ranks below it do.
        """
        first, self._taken = self._taken != self.attempt, self.attempt
        name = "command" if own < 0 else "rank-%d" % own
        if first:
            self.rename_output(self._directory(self.attempt), name)

    def locals(self) -> list[int]:
        return sorted({*self.pids, *self.joined.locals()})

    def left(self, peer: socket.socket) -> None:
        """The guest has exited: where the command goes on, a restart is by stop and start again."""
        if peer is self._guest:
            self._guest = None
            self.settle(0.2)
            if self.pids:
                self.started()


OF_RANKS = ("DISTUI_RUNNER_PID", "DISTUI_HOOK", "DISTUI_JOINED")
"""A command that itself was started by a rank of another run must not take its processes for such ranks."""


def command_env(group: WorkerGroup, stem: str) -> dict[str, str]:
    """The marker, what a guest needs, the shim for torchrun in front; the hook, where the command is a rank itself."""
    env = {name: value for name, value in os.environ.items() if name not in OF_RANKS}
    env["DISTUI_ATTEMPT"] = str(group.attempt)
    env["DISTUI_RUN_DIR"] = group.run_dir
    env["NCCL_DEBUG_FILE"] = stem + ".%p.nccl"
    if group.plan["hook"]:
        shim = os.path.join(os.path.dirname(os.path.abspath(__file__)), "shim")
        env["PATH"] = shim + os.pathsep + env.get("PATH", os.defpath)
        # Tasks that activate an environment put its torchrun first on PATH; bash asks its functions before that.
        env["BASH_FUNC_torchrun%%"] = '() { %s "$@"; }' % shlex.quote(os.path.join(shim, "torchrun"))
        env["DISTUI_COMMAND_HOOK"] = "%d %s.r0" % (os.getpid(), os.environ["DISTUI_SOCKETS"])
        env["DISTUI_RANK_FILES"] = stem
    env.update(group.variables.unset())  # which a guest would set again
    return {**env, **python_path(["site"] if group.plan["hook"] else [])}


def run_nested(plan: dict[str, Any], run_dir: str, argv: list[str]) -> int:
    """torchrun with `argv`; its exit code. Plain torchrun where the runner around it has a guest already."""
    from torch.distributed.run import parse_args

    foreign = several_nodes(parse_args(argv).nnodes, plan) is None  # the others are not of this run
    host = None if foreign else HostRunner()
    answer = {} if host is None else host.ask("guest")
    if host is None or not answer.get("ok"):
        os.execv(sys.executable, [sys.executable, "-m", "torch.distributed.run", *argv])
    own = dict(plan, launcher="torchrun", argv=argv, standalone=True, restart=UNLIMITED)
    group = GuestGroup(own, run_dir, host, answer)
    group.control.start()
    try:
        return group.run()
    finally:
        host.close()


class HostRunner:
    """The runner of the command around this process, by its socket."""

    def __init__(self) -> None:
        self._connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._connection.settimeout(10)
        with contextlib.suppress(OSError, KeyError):
            self._connection.connect(own_folders.place_of(os.environ["DISTUI_SOCKETS"] + ".run"))
        self._lines = self._connection.makefile("rb")

    def ask(self, op: str) -> dict[str, Any]:
        """Its answer; {} where it is gone."""
        try:
            return exchange(self._connection, self._lines, {"op": op, "id": 1})
        except (OSError, ValueError):
            return {}

    def poke(self) -> None:
        """Have it poke the agent, which then reads the reports."""
        with contextlib.suppress(OSError):
            self._connection.send(b'{"op": "poke"}\n', socket.MSG_DONTWAIT)

    def close(self) -> None:
        self._connection.close()


class GuestGroup(WorkerGroup):
    """The ranks of a torchrun inside a managed command."""

    def __init__(
        self, plan: dict[str, Any], run_dir: str, host: HostRunner, answer: dict[str, Any]
    ) -> None:
        """`answer`: of the host, which takes this guest: number, cause and env_diff of its attempt, and "first"."""
        self._host, self._first = host, bool(answer["first"])
        super().__init__(plan, run_dir, suffix=".sub")
        self._directory_of_command = attempt_dir(
            os.path.join(run_dir, "node-%d" % self.node), answer["attempt"]
        )
        if self._first:
            self.inherited, self.cause = answer, answer["cause"]

    def poke(self) -> None:
        self._host.poke()

    def run(self) -> int:
        """All attempts; the exit code. How the run ended is reported by the host."""
        try:
            phase, code, text = attempt_all(self)
        except NotSpawned as error:
            phase, code, text = "failed", 1, "the ranks could not be started: %s" % error
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        self.settle()
        self.report.close()
        if phase == "failed":
            sys.stderr.write("distui: %s\n" % text)
        return code

    def on_begin(self) -> None:
        """What the command has written so far is its own, no rank's; it goes on writing there."""
        self._host.ask("taken")
        if self._first:
            self.rename_output(self._directory_of_command, "command")

    def echo(self, descriptor: int, paths: dict[int, str]) -> dict[int, str]:
        """All, unless the output is the command's own file, and not another or a pipe that the user chose."""
        stream = "out" if descriptor == 1 else "err"
        name = os.path.join(self._directory_of_command, "command." + stream)
        with contextlib.suppress(OSError):
            if os.path.samestat(os.fstat(descriptor), os.stat(name)):
                return {}
        return dict(paths)
