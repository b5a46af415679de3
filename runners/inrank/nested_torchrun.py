"""A torchrun inside a managed command, started by the shim: it steers its own ranks as a runner does."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
from typing import Any, BinaryIO

from .control import Reporter
from .elastic import NotSpawned, attempt_all
from .rendezvous import several_nodes
from .restart_policy import UNLIMITED
from .worker_group import SIGNALS, WorkerGroup, attempt_dir


def run(plan: dict[str, Any], run_dir: str, argv: list[str]) -> int:
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
