"""Stacks of ranks without an answer, by py-spy if it is installed. It is never imported and never required."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import signal
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ..run import clock
from ..run.model import Clause
from ..run.proc import read_once, read_stat
from ..run.processes import environ_of, send_signal, state_of
from ..run.pulse import Site
from .hook_clients import HookClient, HookError, HookRefusal

LIMIT_S = 5.0
"""Longest time of one dump, in seconds."""
EVERY_S = 30.0
"""Seconds between dumps of one rank. Earlier requests get the previous dump."""
PATIENCE_S = 20.0
"""Longest wait for an answer, in seconds, while other ranks are dumped."""
AGAIN_S = 300.0
"""Seconds before py-spy is retried for a rank without an explicit request."""
RIGHT = "py-spy may not trace it: that needs root, CAP_SYS_PTRACE, or kernel.yama.ptrace_scope 0"
MISSING = "py-spy is neither on PATH nor next to its Python (pip install py-spy)"
_REFUSED = re.compile(rb"permission denied|operation not permitted", re.IGNORECASE)
_COUNTS = re.compile(rb"^State:\s+(\w)|ctxt_switches:\s+(\d+)", re.MULTILINE)


class PySpyError(Exception):
    """There is no stack from outside. The text is the reason, as the end of a sentence."""


class Unseen(HookError):
    """A rank that reported no stack, and that py-spy could not sample either."""

    def __init__(self, error: HookError, why: PySpyError) -> None:
        super().__init__(f"{error}, and {why}")
        self.hook_why, self.why, self.reason = str(error), str(why), why


class _PySpyFrame(msgspec.Struct, frozen=True):
    name: str
    filename: str
    line: int = 0


class _Thread(msgspec.Struct, frozen=True):
    thread_id: int
    frames: list[_PySpyFrame]
    thread_name: str | None = None
    os_thread_id: int | None = None


_decoder = msgspec.json.Decoder(list[_Thread])


@dataclass(frozen=True, slots=True)
class StackDump:
    threads: tuple[_Thread, ...]
    """In faulthandler's order, with the main thread last."""
    at: float
    """Monotonic seconds."""

    def sites(self) -> tuple[Site, ...]:
        """Return the main thread, innermost first."""
        if not self.threads:
            return ()
        return tuple(
            Site(frame.filename, max(0, frame.line), _name(frame.name)) for frame in self.threads[-1].frames
        )

    def text(self) -> str:
        """Return the stacks in faulthandler's format, below a line with their source."""
        parts = ["Seen from outside, by py-spy"]
        for thread in self.threads:
            named = f" [{' '.join(thread.thread_name.split())}]" if thread.thread_name else ""
            lines = [f"Thread 0x{thread.thread_id:016x}{named} (most recent call first):"]
            for frame in thread.frames:
                line = frame.line if frame.line > 0 else "???"
                lines.append(f'  File "{frame.filename}", line {line} in {_name(frame.name)}')
            parts.append("\n".join(lines))
        return "\n\n".join(parts) + "\n"


def _name(name: str) -> str:
    """Return faulthandler's name of a function: "wait" for "Event.wait"."""
    return name.rpartition(".")[2]


def read(written: bytes, pid: int, at: float = 0.0) -> StackDump:
    """Parse the output of `py-spy dump --json`. Raises PySpyError."""
    try:
        threads = _decoder.decode(written)
    except msgspec.MsgspecError as error:
        raise PySpyError(f"what py-spy wrote cannot be read ({error})") from None
    if not threads:
        raise PySpyError("py-spy found no thread that runs Python")

    def main(thread: _Thread) -> bool:
        return thread.os_thread_id == pid if thread.os_thread_id else thread.thread_name == "MainThread"

    if not any(main(thread) for thread in threads):
        raise PySpyError("py-spy did not find its main thread")
    return StackDump(tuple(sorted(threads, key=main)), at)


def find(pid: int) -> str | None:
    """Return the path of py-spy, from PATH or next to the process's interpreter, or None."""
    place = _beside(pid)
    return shutil.which("py-spy") or (shutil.which("py-spy", path=place) if place is not None else None)


def _beside(pid: int) -> str | None:
    """Return the interpreter's directory, or the venv's if it was started there. None for another user's process.

    Another user's program must not run with this user's rights.
    """
    proc = Path(f"/proc/{pid}")
    with contextlib.suppress(OSError):
        if proc.stat().st_uid != os.geteuid():
            return None
        word = os.fsdecode((proc / "cmdline").read_bytes().split(b"\0")[0])
        if "/" not in word:
            word = shutil.which(word, path=environ_of(pid).get("PATH", os.defpath)) or ""
        called = os.path.join(os.readlink(proc / "cwd"), word)
        return os.path.dirname(called if os.path.isfile(called) else os.readlink(proc / "exe"))
    return None


def _stands(pid: int) -> bytes | None:
    """Return the main thread's context switches while it does not run.

    Equal values mean that it did not run in between.
    """
    fields = _COUNTS.findall(read_once(f"/proc/{pid}/task/{pid}/status") or b"")
    if len(fields) < 3 or fields[0][0] not in (b"S", b"D", b"T", b"t"):
        return None
    return b" ".join(count for _, count in fields[1:])


def _pausable(pid: int) -> bool:
    """Return True if all threads can be paused: none is in an uninterruptible kernel call, and none is stopped."""
    tasks = f"/proc/{pid}/task"
    with contextlib.suppress(OSError):
        stats = (read_stat(int(tid), tasks) for tid in os.listdir(tasks))
        return not any(stat.state in "DTt" for stat in stats if stat is not None)
    return False


class PySpy:
    """Stacks of this node's ranks from outside: one process at a time, and each at limited intervals."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._seen: dict[int, StackDump] = {}
        self._failed: dict[int, float] = {}
        """Monotonic seconds of failed dumps."""
        self._wanted: set[int] = set()
        self._since: dict[int, float] = {}
        """Monotonic seconds since its stack is wanted continuously."""
        self._asked = asyncio.Event()

    async def dump(self, pid: int) -> StackDump:
        """Return the current stacks, or those of the last EVERY_S. Raises PySpyError."""
        async with self._turn:
            newest = self._seen.get(pid)
            if newest is not None and clock.monotonic() - newest.at < EVERY_S:
                return newest
            self._seen.pop(pid, None)
            try:
                self._seen[pid] = newest = await _dump(pid)
            except PySpyError:
                self._failed[pid] = clock.monotonic()
                raise
            self._failed.pop(pid, None)
            return newest

    def sites(self, pid: int, wanted: bool) -> tuple[Site, ...]:
        """Return the last sampled main thread, or () if there is none. A `wanted` process is soon sampled again."""
        now, newest = clock.monotonic(), self._seen.get(pid)
        if not wanted:
            self._wanted.discard(pid)
            self._since.pop(pid, None)
            return ()
        since, failed = self._since.setdefault(pid, now), self._failed.get(pid)
        fresh = newest is not None and now - newest.at < EVERY_S
        if not fresh and (failed is None or now - failed > AGAIN_S):
            self._wanted.add(pid)
            self._asked.set()
        return newest.sites() if newest is not None and newest.at >= since else ()

    def seen(self, pid: int) -> str:
        """Return all stacks of the newest dump in faulthandler's format; "" without one."""
        newest = self._seen.get(pid)
        return "" if newest is None else newest.text()

    async def run(self) -> None:
        """Dump the processes that `sites` requests. Cancel to stop."""
        while True:
            await self._asked.wait()
            self._asked.clear()
            while self._wanted:
                with contextlib.suppress(PySpyError):
                    await self.dump(self._wanted.pop())

    def may_see(self, pid: int) -> bool:
        """Return True if a dump may succeed: py-spy exists, and did not fail recently."""
        failed = self._failed.get(pid)
        return (failed is None or clock.monotonic() - failed > AGAIN_S) and find(pid) is not None

    def keep(self, pids: Iterable[int]) -> None:
        """Forget all other processes."""
        alive = set(pids)
        self._wanted &= alive
        for by_pid in (self._seen, self._failed, self._since):
            for pid in by_pid.keys() - alive:
                del by_pid[pid]


async def stacks(hook: HookClient, spy: PySpy, old: dict[int, float]) -> str:
    """Return a rank's Python stacks: from its hook, else from py-spy, else through a signal to its hook's thread.

    The age of a reused dump, in seconds, is added to `old`. Raises HookError.
    """
    asked = clock.monotonic()
    try:
        return await hook.stacks()
    except HookError as error:
        hook_error = error
    try:
        return await _outside(hook, spy, old, hook_error, asked)
    except Unseen as unseen:
        if not hook.may_signal():
            raise
        try:
            return await hook.stacks_by_signal()
        except HookError as error:
            raise Unseen(error, unseen.reason) from None


async def _outside(
    hook: HookClient, spy: PySpy, old: dict[int, float], hook_error: HookError, asked: float
) -> str:
    if hook.pid is None or state_of(hook.pid) in (None, "Z", "X"):
        raise hook_error
    try:
        async with asyncio.timeout(PATIENCE_S):
            seen = await spy.dump(hook.pid)
    except PySpyError as why:
        raise Unseen(hook_error, why) from None
    except TimeoutError:
        raise Unseen(hook_error, PySpyError("py-spy was busy with other ranks")) from None
    if asked - seen.at > 1.0:
        old[hook.rank] = asked - seen.at
    return seen.text()


def spoken(failed: Sequence[HookError]) -> list[str]:
    """Return one sentence per failure. A reason of py-spy that is common to all comes only once."""
    reasons = {err.why for err in failed if isinstance(err, Unseen)}
    if len(reasons) != 1:
        return [str(err) for err in failed]
    last = next(err for err in reversed(failed) if isinstance(err, Unseen))
    return [err.hook_why if isinstance(err, Unseen) and err is not last else str(err) for err in failed]


def alike(failed: Sequence[HookError]) -> list[Clause]:
    """Return the failures as clauses of an answer. Equal answers of several ranks are one clause."""
    clauses: dict[str, list[int]] = {}
    for error, text in zip(failed, spoken(failed), strict=True):
        if isinstance(error, HookRefusal):
            clauses.setdefault(f"{{ranks}}: {error.why}", []).append(error.rank)
        else:
            clauses.setdefault(text, [])
    return [Clause(text, tuple(ranks)) for text, ranks in clauses.items()]


async def _dump(pid: int) -> StackDump:
    """Dump one process. Raises PySpyError."""
    program = find(pid)
    if program is None:
        raise PySpyError(MISSING)
    try:
        async with asyncio.timeout(LIMIT_S):
            at, written = clock.monotonic(), await _dump_json(program, pid)
    except TimeoutError:
        raise PySpyError(f"py-spy was not done within {LIMIT_S:g} s") from None
    except OSError as error:
        raise PySpyError(f"py-spy cannot be started ({error.strerror})") from None
    return read(written, pid, at)


async def _dump_json(program: str, pid: int) -> bytes:
    """Return py-spy's output.

    A thread that does not run is not paused, because a pause would interrupt its kernel call.
    """
    before = _stands(pid)
    if before is not None:
        try:
            written = await _run(program, pid, "--nonblocking")
        except PySpyError:
            if not _pausable(pid):
                raise
        else:
            if before == _stands(pid):
                return written
    if not _pausable(pid):
        raise PySpyError("py-spy cannot pause it: it is stopped, gone, or deep in a call of the kernel")
    return await _run(program, pid)


async def _run(program: str, pid: int, *options: str) -> bytes:
    process = None
    try:
        process = await asyncio.create_subprocess_exec(
            program,
            "dump",
            "--pid",
            str(pid),
            "--json",
            *options,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        written, stderr = await process.communicate()
    finally:
        done = process is not None and process.returncode is not None
        if process is not None and not done:  # otherwise asyncio has ended it
            process.kill()
            await process.wait()
        if not done and not options:  # py-spy's stop may still arrive
            send_signal(pid, signal.SIGCONT)
    if process.returncode == 0:
        return written
    if _REFUSED.search(stderr):
        raise PySpyError(RIGHT)
    lines = [line.removeprefix("Error: ") for line in stderr.decode("utf-8", "replace").splitlines()]
    why = next((line.rstrip(". ") for line in lines if line.strip()), f"exit code {process.returncode}")
    raise PySpyError(f"py-spy failed: {why}")
