"""The runner: one process that owns the ranks, and outlives the agent that started it.

torch launches the ranks (elastic.py), or the plan has a command of the user's, which runs as it is and restarts by stop
and start. A torchrun inside that command (the shim starts it through here, too) is a guest of the runner around it: it
reports for its own ranks, and restarts them in place.
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
from typing import Any, BinaryIO

from . import elastic
from .control import Reporter, private
from .elastic import NotSpawned, attempt_all, python_path
from .rendezvous import several_nodes
from .restart_policy import UNLIMITED
from .worker_group import SIGNALS, WorkerGroup, attempt_dir, heed, kill_group, signal_name, start_ticks


def write_identity(run_dir: str, path: str, kind: str) -> None:
    """runner.json: by which a later agent knows that this pid is still this runner."""
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
    """Lock runner.lock as long as this process lives: that much is seen from other containers with this home."""
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
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    group = WorkerGroup(plan, run_dir, int(argv[1]) if len(argv) > 1 else 0)
    group.cause = argv[2] if len(argv) > 2 else group.cause
    write_identity(run_dir, group.socket, plan["launcher"])
    group.control.start()
    return run_command(group) if plan["launcher"] == "command" else elastic.run(group)


def run_command(group: WorkerGroup) -> int:
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
            kill_group(pid, signal.SIGTERM)

    def see_off(self, group_id: int) -> None:
        """The command has ended; a torchrun that it left behind ends its ranks, in its time of grace."""
        deadline = time.monotonic() + self.group.plan["grace_s"]
        while self._guest is not None and time.monotonic() < deadline:
            time.sleep(0.02)
        if self._guest is not None:
            kill_group(group_id, signal.SIGKILL)

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
    return "was killed by %s" % signal_name(code) if code < 0 else "ended with exit code %d" % code


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


def run_nested(plan: dict[str, Any], run_dir: str, argv: list[str]) -> int:
    """torchrun with `argv`; its exit code. Plain torchrun where the runner around us has a guest already."""
    from torch.distributed.run import parse_args

    foreign = several_nodes(parse_args(argv).nnodes, plan) is None  # the others are not of this run
    host = None if foreign else enter()
    if host is None:
        os.execv(sys.executable, [sys.executable, "-m", "torch.distributed.run", *argv])
    connection, lines, answer = host
    own = dict(plan, launcher="torchrun", argv=argv, standalone=True, restart=UNLIMITED)
    group = WorkerGroup(own, run_dir, suffix=".sub")
    group.report = Reporter(os.path.join(run_dir, "runner.jsonl"), lambda: poke(connection), ".sub")
    node = int(plan.get("node", 0))
    directory = attempt_dir(os.path.join(run_dir, "node-%d" % node), answer["attempt"])
    if answer["first"]:
        group.inherited, group.cause = answer, answer["cause"]

    def begin() -> None:
        ask(connection, lines, "taken")
        if answer["first"]:
            clear_names(directory, "rank-%d." % node)

    group.on_begin = begin
    group.echo = lambda descriptor, paths: {} if goes_to(directory, descriptor) else dict(paths)
    group.control.start()
    try:
        return finish(group)
    finally:
        connection.close()


def finish(group: WorkerGroup) -> int:
    """All attempts; the last word on the run is the command's."""
    try:
        phase, code, text = attempt_all(group)
    except NotSpawned as error:
        phase, code, text = "failed", 1, "the ranks could not be started: %s" % error
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    group.settle()
    group.report.close()
    if phase == "failed":
        sys.stderr.write("distui: %s\n" % text)
    return code


def enter() -> tuple[socket.socket, BinaryIO, dict[str, Any]] | None:
    """Ask the runner of the command to report for our ranks; None when it does not want that."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(10)
    try:
        connection.connect(os.environ["DISTUI_SOCKETS"] + ".run")
        lines = connection.makefile("rb")
        answer = ask(connection, lines, "guest")
    except (OSError, KeyError):
        connection.close()
        return None
    return (connection, lines, answer) if answer.get("ok") else None


def ask(connection: socket.socket, lines: BinaryIO, op: str) -> dict[str, Any]:
    """The answer of the runner of the command; {} where it is gone."""
    try:
        connection.sendall(json.dumps({"op": op, "id": 1}).encode() + b"\n")
        answer = json.loads(next(line for line in lines if line.strip()))
    except (OSError, ValueError, StopIteration):
        return {}
    return answer if isinstance(answer, dict) else {}


def poke(connection: socket.socket) -> None:
    """Have the runner of the command tell the agent that there is something to read."""
    with contextlib.suppress(OSError):
        connection.send(b'{"op": "poke"}\n', socket.MSG_DONTWAIT)


def clear_names(directory: str, stem: str) -> None:
    """What the command has written so far is its own, no rank's; it goes on writing there."""
    for stream in ("out", "err"):
        with contextlib.suppress(FileNotFoundError):
            os.replace(os.path.join(directory, stem + stream), os.path.join(directory, "command." + stream))


def goes_to(directory: str, descriptor: int) -> bool:
    """Whether our output is the command's own file, and not one or a pipe that the user chose."""
    name = os.path.join(directory, "command.out" if descriptor == 1 else "command.err")
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(name))
    except OSError:
        return False
