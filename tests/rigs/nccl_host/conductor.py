"""Starts the ranks of a world, tells each what to do, and hears what it did."""

from __future__ import annotations

import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

LIMIT_S = 90.0
"""What a rank does takes seconds; a busy machine has patience."""
RANK = Path(__file__).with_name("rank.py")


class LateError(AssertionError):
    """Something did not happen in time; the text holds what the ranks printed last."""


class Member:
    """The process of one rank."""

    def __init__(self, rank: int, command: list[str], environment: Mapping[str, str], log: Path) -> None:
        self.rank, self.log = rank, log
        ours, theirs = socket.socketpair()
        with log.open("wb") as out, theirs:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env={**environment, "RIG_CONTROL": str(theirs.fileno())},
                pass_fds=[theirs.fileno()],
            )
        self.socket, self._rest = ours, b""
        self.told: list[str] = []
        """Lines that nobody has waited for yet."""

    def receive(self) -> bool:
        """Read what is there; False once the process has closed its end."""
        try:
            block = self.socket.recv(1 << 16)
        except ConnectionResetError:
            return False
        *whole, self._rest = (self._rest + block).split(b"\n")
        self.told += [line.decode() for line in whole]
        return bool(block)

    def order(self, text: str) -> None:
        """Tell it what to do next; a process that has ended does nothing."""
        try:
            self.socket.sendall(f"{text}\n".encode())
        except (BrokenPipeError, ConnectionResetError):
            return


class World:
    """Ranks on this machine. Use as a context: at its end no process is left."""

    def __init__(self, folder: Path, limit: float = LIMIT_S) -> None:
        self.folder, self.limit = folder, limit
        self.members: dict[int, Member] = {}

    def __enter__(self) -> World:
        return self

    def __exit__(self, *_: object) -> None:
        for member in self.members.values():
            member.process.kill()
            member.process.wait()
            member.socket.close()

    def start(
        self,
        place: int,
        rank: int,
        library: Path,
        size: int,
        options: Iterable[str],
        env: Mapping[str, str],
    ) -> None:
        """Start a process that says to be `rank`; its output goes to rank<PLACE>.log."""
        command = [sys.executable, str(RANK), str(library), str(rank), str(size), *options]
        self.members[place] = Member(place, command, env, self.folder / f"rank{place}.log")

    def wait(self, word: str, ranks: Iterable[int] | None = None) -> dict[int, str]:
        """Until each of these ranks has said a line that begins so, or has ended; the lines. Raises LateError."""
        waiting = {rank: self.members[rank] for rank in (self.members if ranks is None else ranks)}
        heard: dict[int, str] = {}
        end = time.monotonic() + self.limit
        with selectors.DefaultSelector() as selector:
            for member in waiting.values():
                selector.register(member.socket, selectors.EVENT_READ, member)
            self._take(word, waiting, heard, selector)
            while waiting:
                left = end - time.monotonic()
                if left <= 0:
                    raise LateError(f"ranks {sorted(waiting)} did not say {word!r}:\n{self.dump()}")
                for key, _ in selector.select(left):
                    member = key.data
                    if not member.receive():
                        selector.unregister(member.socket)
                        waiting.pop(member.rank, None)
                self._take(word, waiting, heard, selector)
        return heard

    def _take(
        self, word: str, waiting: dict[int, Member], heard: dict[int, str], selector: selectors.BaseSelector
    ) -> None:
        for rank, member in list(waiting.items()):
            at = next((at for at, line in enumerate(member.told) if line.split(" ")[0] == word), None)
            if at is not None:
                heard[rank] = member.told.pop(at)
                del waiting[rank]
                selector.unregister(member.socket)

    def order(self, text: str, ranks: Iterable[int] | None = None) -> None:
        """Tell ranks what to do next."""
        for rank in list(self.members if ranks is None else ranks):
            self.members[rank].order(text)

    def do(self, text: str, ranks: Iterable[int] | None = None) -> None:
        """The same, and wait until they have done it, or have ended."""
        chosen = list(self.members if ranks is None else ranks)
        self.order(text, chosen)
        self.wait("done", chosen)
        for rank in chosen:  # what it said on the way is of no interest any more
            self.members[rank].told.clear()

    def meet(self) -> Iterable[int]:
        """Hand the id that one rank made to all, and wait until their communicator is made, or they have ended.

        The ranks that are ready."""
        identities = [line for line in self.wait("id").values() if line != "id"]
        if identities:
            self.order(identities[0])
            return self.wait("ready")
        return ()

    def signal(self, number: signal.Signals, rank: int) -> None:
        """Send a signal to a rank; one that stops it has stopped all of its threads afterwards."""
        process = self.members[rank].process
        process.send_signal(number)
        if number == signal.SIGSTOP:
            os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def ended(self, ranks: Iterable[int] | None = None) -> dict[int, int]:
        """Wait until these ranks have ended; their exit codes. Raises LateError."""
        end = time.monotonic() + self.limit
        codes = {}
        for rank in self.members if ranks is None else ranks:
            try:
                codes[rank] = self.members[rank].process.wait(max(0.1, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                raise LateError(f"rank {rank} has not ended:\n{self.dump()}") from None
        return codes

    def well(self, last: str) -> None:
        """Tell all ranks the last thing to do; each must end without a failure. Raises AssertionError."""
        self.order(last)
        if codes := {rank: code for rank, code in self.ended().items() if code}:
            raise AssertionError(f"ranks ended with {codes}:\n{self.dump()}")

    def dump(self) -> str:
        """How each rank is, and what it printed last."""
        texts = []
        for rank, member in self.members.items():
            lines = member.log.read_text("utf-8", "replace").splitlines()
            state = "lives" if member.process.poll() is None else f"ended with {member.process.returncode}"
            stack = _kernel_state(member.process.pid)
            texts.append(
                f"--- rank {rank} (pid {member.process.pid}) {state}{stack}\n" + "\n".join(lines[-12:])
            )
        return "\n".join(texts)


def _kernel_state(pid: int) -> str:
    """What each thread waits for."""
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
        waits = [Path(f"/proc/{pid}/task/{task}/wchan").read_text() for task in tasks]
    except OSError:
        return ""
    return f", threads in {' '.join(waits)}"
