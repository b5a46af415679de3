"""The runner: a process that owns the ranks, and outlives the agent that started it.

Either torch launches the ranks (elastic.py), or the plan has a user's command, which the runner stops and starts for a
restart. A torchrun inside that command is a guest of its runner: the shim starts it through this module, it reports its
ranks, and restarts them in place. The ranks of other launchers join: see joined_ranks.py.
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
from .control import exchange, private
from .elastic import NotSpawned, attempt_all, python_path
from .joined_ranks import JoinedRanks
from .rank_processes import kill_group, signal_name, start_ticks
from .rendezvous import several_nodes
from .reporter import report_faults
from .restart_policy import UNLIMITED
from .worker_group import SIGNALS, WorkerGroup, handle_stop_signals


def write_identity(run_dir: str, path: str, kind: str) -> None:
    """Write runner.json: with it a later agent recognises this process, and no other one with its pid."""
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
    """Lock runner.lock while this process lives; other containers with this home directory can check that."""
    with contextlib.suppress(OSError):
        path = os.path.join(run_dir, "runner.lock")
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # released at exit


def with_secrets(plan: dict[str, Any], words: str) -> dict[str, Any]:
    """Add the secret arguments, which plan.json omits, to the plan. They are not in the ranks' environment."""
    for at, word in (json.loads(words).get("argv", {}) if words else {}).items():
        plan["argv"][int(at)] = word
    return plan


def main(argv: list[str]) -> int:
    """Run the plan in the directory `argv[0]`. Optional: `argv[1]`, failures so far; `argv[2]`, the attempt's cause."""
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
    """The command of a plan, one process per attempt."""

    _problem = ""
    """Why the command did not start."""
    _guest: socket.socket | None = None
    """Connection of the torchrun in the command, which controls its ranks."""
    _diff: dict[str, str | None] = {}
    _ran = False
    """True once the command was started."""
    _taken = 0
    """Newest attempt whose ranks a guest reports, or that has joined ranks."""

    def __init__(self, plan: dict[str, Any], run_dir: str, failures: int = 0) -> None:
        self.joined = JoinedRanks(self, self._joined)
        super().__init__(plan, run_dir, failures)

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        """Stop the run after a signal to the runner."""
        self.stopped_by = self.stopped_by or signal.Signals(number).name
        self.stop()

    def run_to_end(self) -> int:
        """Run attempts until one succeeds, the run is stopped, or the policy gives up; return the runner's exit code."""
        handle_stop_signals(self.on_signal)
        self.started()
        phase, code, text = self._run_attempts()
        self.end(phase, code, text)
        if phase == "succeeded":
            return 0
        return code if code > 0 else 1

    def _run_attempts(self) -> tuple[str, int, str]:
        """Return how the run ended: phase, exit code and a sentence."""
        while True:
            code = self._run_attempt()
            if self.stopping:
                by = " by %s" % self.stopped_by if self.stopped_by else ""
                return "stopped", 1 if code is None else code, "stopped" + by
            if code == 0 and not self.restart.is_set():
                return "succeeded", 0, "the command ended with exit code 0"
            if not self._begins_again(code):
                return self._failed(code)

    def _begins_again(self, code: int | None) -> bool:
        """Return whether another attempt follows, after the wait that the policy requires."""
        if self._restarts():
            return True
        self.cause = "failure"
        if code is None and self.roll_back(self._problem):
            return True
        never_ran = code is None and not self._ran
        if never_ran or not self.back_off():
            return False
        self._restarts()  # requested during the wait
        return True

    def _restarts(self) -> bool:
        """Return whether a restart was requested, which is then the cause of the next attempt."""
        if not self.restart.is_set():
            return False
        self.restart.clear()
        self.cause = "restart"
        return True

    def _failed(self, code: int | None) -> tuple[str, int, str]:
        if code is None:
            return "failed", 127, self._problem
        why = "; " + self.deaths.refusal if self.plan["restart"]["limit"] else ""
        name = signal_name(code)
        how = "was killed by %s" % name if name else "ended with exit code %d" % code
        return "failed", code, "the command %s%s" % (how, why)

    def _run_attempt(self) -> int | None:
        """Start the command, wait for it, and return its exit code; None if it did not start."""
        if self.stopping:
            return None
        self._diff = self.take_env()
        directory = self.next_attempt()
        self.joined.begin(self._diff)
        # Each node runs the command once. Its rank is the node's number.
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
        """Start the command in a new session, with output to files. Raises OSError and ValueError."""
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
        """Report a command that did not start as a shell does: exit code 127, and the reason in stderr."""
        rank = place["rank"]
        with (
            contextlib.suppress(OSError),
            open(os.path.join(directory, "rank-%d.err" % rank), "a", opener=private) as file,
        ):
            file.write("distui: %s\n" % self._problem)
        about = {"attempt": self.attempt, "rank": rank, "local_rank": place["local_rank"]}
        self.report("RankChanged", state="failed", exit_code=127, at=time.time(), **about)

    def on_stop(self) -> None:
        """Send SIGTERM to the command's process group; the timer of the grace period sends SIGKILL."""
        self.ending = True
        for pid in list(self.pids.values()):
            kill_group(pid, signal.SIGTERM)

    on_restart = on_stop

    def _see_off(self, group_id: int) -> None:
        """After the command's exit: let a remaining torchrun end its ranks, and kill it after the grace period."""
        deadline = time.monotonic() + self.plan["grace_s"]
        while self._guest is not None and time.monotonic() < deadline:
            time.sleep(0.02)
        if self._guest is not None:
            kill_group(group_id, signal.SIGKILL)

    def answer(self, request: dict[str, Any], peer: socket.socket) -> dict[str, Any] | None:
        """Answer also {"op": "guest"|"taken"} from a torchrun in the command and {"op": "join"} from other ranks."""
        op = request.get("op")
        if op == "guest":
            return self._welcome(peer)
        if op == "join":
            return {"ok": False} if self._guest is not None else self.joined.take(request, peer)
        return self._hand_over(peer) if op == "taken" else super().answer(request, peer)

    def _welcome(self, peer: socket.socket) -> dict[str, Any]:
        """Let a torchrun in the command report its ranks; refuse a second one at a time."""
        with self.lock:
            if self._guest is not None or not self.pids:
                return {"ok": False}
            self._guest = peer
        first = self._taken != self.attempt
        about = {"attempt": self.attempt, "cause": self.cause, "env_diff": self._diff}
        return {"ok": True, "first": first, **about}

    def _hand_over(self, peer: socket.socket) -> dict[str, Any]:
        """Note that the guest has started ranks of this attempt: the command's exit is then not reported as a rank's."""
        if peer is not self._guest:
            return {"ok": False}
        self._taken = self.attempt
        return {"ok": True}

    def handed_over(self) -> bool:
        return self._taken == self.attempt

    def _joined(self, own: int) -> None:
        """Make the joined ranks those of this attempt. `own`: the rank of the command, -1 if it is no rank.

        Rename the output files after the command or its rank. The command and the ranks below it keep writing to them.
        """
        first, self._taken = self._taken != self.attempt, self.attempt
        name = "command" if own < 0 else "rank-%d" % own
        if first:
            self.rename_output(self.directory(self.attempt), name)

    def locals(self) -> list[int]:
        return sorted({*self.pids, *self.joined.locals()})

    def left(self, peer: socket.socket) -> None:
        """Report this runner again if the guest has exited and the command has not: restarts are here now."""
        if peer is self._guest:
            self._guest = None
            self.wait_for_exits(0.2)
            if self.pids:
                self.started()


OF_RANKS = ("DISTUI_RUNNER_PID", "DISTUI_HOOK", "DISTUI_JOINED")
"""Variables of ranks. Remove them from the command's environment: a rank of another run may have started this run."""


def command_env(group: WorkerGroup, stem: str) -> dict[str, str]:
    """Return the command's environment: run and attempt for a guest; with the hook also the shim for torchrun."""
    env = {name: value for name, value in os.environ.items() if name not in OF_RANKS}
    env["DISTUI_ATTEMPT"] = str(group.attempt)
    env["DISTUI_RUN_DIR"] = group.run_dir
    env["NCCL_DEBUG_FILE"] = stem + ".%p.nccl"
    if group.plan["hook"]:
        shim = os.path.join(os.path.dirname(os.path.abspath(__file__)), "shim")
        env["PATH"] = shim + os.pathsep + env.get("PATH", os.defpath)
        # A task that activates an environment puts its torchrun first on PATH; bash looks up functions before PATH.
        env["BASH_FUNC_torchrun%%"] = '() { %s "$@"; }' % shlex.quote(os.path.join(shim, "torchrun"))
        env["DISTUI_COMMAND_HOOK"] = "%d %s.r0" % (os.getpid(), os.environ["DISTUI_SOCKETS"])
        env["DISTUI_RANK_FILES"] = stem
    env.update(group.variables.unset())  # a guest would set these variables again
    return {**env, **python_path(group.plan["hook"])}


def run_nested(plan: dict[str, Any], run_dir: str, argv: list[str]) -> int:
    """Run torchrun with `argv` as a guest and return its exit code.

    Execute plain torchrun instead if the command's runner refuses it (has a guest already) or other nodes are foreign.
    """
    from torch.distributed.run import parse_args

    foreign = several_nodes(parse_args(argv).nnodes, plan) is None  # other nodes are not in this run
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
    """A connection to the runner of the command around this process."""

    def __init__(self) -> None:
        self._connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._connection.settimeout(10)
        with contextlib.suppress(OSError, KeyError):
            self._connection.connect(own_folders.place_of(os.environ["DISTUI_SOCKETS"] + ".run"))
        self._lines = self._connection.makefile("rb")

    def ask(self, op: str) -> dict[str, Any]:
        """Send a request and return the answer; {} if the runner does not answer."""
        try:
            return exchange(self._connection, self._lines, {"op": op, "id": 1})
        except (OSError, ValueError):
            return {}

    def poke(self) -> None:
        """Have the runner poke the agent, which then reads the reports."""
        with contextlib.suppress(OSError):
            self._connection.send(b'{"op": "poke"}\n', socket.MSG_DONTWAIT)

    def close(self) -> None:
        self._connection.close()


class GuestGroup(WorkerGroup):
    """The ranks of a torchrun inside a managed command."""

    def __init__(
        self, plan: dict[str, Any], run_dir: str, host: HostRunner, answer: dict[str, Any]
    ) -> None:
        """`answer`: the host's answer to "guest": number, cause and env_diff of its attempt, and "first"."""
        self._host, self._first = host, bool(answer["first"])
        super().__init__(plan, run_dir, suffix=".sub")
        self._directory_of_command = self.directory(answer["attempt"])
        if self._first:
            self.inherited, self.cause = answer, answer["cause"]

    def poke(self) -> None:
        self._host.poke()

    def run(self) -> int:
        """Run all attempts and return the exit code. The host reports the end of the run."""
        try:
            phase, code, text = attempt_all(self)
        except NotSpawned as error:
            phase, code, text = "failed", 1, "the ranks could not be started: %s" % error
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        self.wait_for_exits()
        self.report.close()
        if phase == "failed":
            sys.stderr.write("distui: %s\n" % text)
        return code

    def on_begin(self) -> None:
        """Take over the attempt from the host. Rename the first output files: they are the command's, not a rank's."""
        self._host.ask("taken")
        if self._first:
            self.rename_output(self._directory_of_command, "command")

    def echo(self, descriptor: int, paths: dict[int, str]) -> dict[int, str]:
        """Return all files; none if this process writes to the command's file and not to the user's pipe or file."""
        stream = "out" if descriptor == 1 else "err"
        name = os.path.join(self._directory_of_command, "command." + stream)
        with contextlib.suppress(OSError):
            if os.path.samestat(os.fstat(descriptor), os.stat(name)):
                return {}
        return dict(paths)
