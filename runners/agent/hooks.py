"""The agent's side of the hooks: one connection a rank."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from ..logs.files import attempt_dir
from ..model import HookChanged, RankChanged
from .processes import catches, send_signal, state_of

LINE_LIMIT = 64 << 20
"""Bytes of one answer: a flight recorder of 2,000 entries is a few MB."""
ROUND_S = 0.05
"""How long a sample waits for the counts of steps. Who answers later is counted with the next sample."""
ASK_STEPS = b'{"op":"steps","id":0}\n'
"""The request of every second; `Hook.ask` numbers its own from 1."""


class _Numbered(msgspec.Struct):
    id: int = -1


class _Counted(msgspec.Struct):
    """What is wanted of the answer to ASK_STEPS."""

    count: int = 0
    last: float = 0.0
    """Unix time of the newest step; 0 before the first."""
    faulthandler: bool | None = None
    error: str | None = None


_numbered, _counted = msgspec.json.Decoder(_Numbered), msgspec.json.Decoder(_Counted)


class HookError(Exception):
    """A rank did not answer; the text says why."""


class Hook:
    """The hook of one rank's process."""

    def __init__(
        self,
        path: Path,
        change: RankChanged,
        changed: Callable[[HookChanged], None],
        counted: Callable[[], None] = lambda: None,
    ) -> None:
        self.rank, self.attempt, self.pid = change.rank, change.attempt, change.pid
        self.stacks_file: Path | None = None
        self._path, self._changed, self._has_counted = path, changed, counted
        self._writer: asyncio.StreamWriter | None = None
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._asked = 0
        self.hello: dict[str, Any] = {}
        self.counts = False
        """Whether it was asked for its steps and has not answered yet."""
        self._steps: tuple[int, float] | None = None
        self._owed: asyncio.Future[dict[str, Any]] | None = None
        """The answer to the newest question of `pulse`."""

    @property
    def up(self) -> bool:
        return self._writer is not None

    async def run(self) -> None:
        """Connect as soon as the hook listens, then read until the rank is gone; cancel to stop."""
        while True:
            try:
                reader, writer = await asyncio.open_unix_connection(str(self._path), limit=LINE_LIMIT)
            except OSError:
                await asyncio.sleep(0.1)
                continue
            try:
                with contextlib.suppress(OSError, ValueError, msgspec.MsgspecError):
                    await self._converse(reader, writer)
            finally:
                writer.close()
            if self._writer is not None:
                self._writer = None
                self._fail()
                self._tell("gone")
            await asyncio.sleep(0.1)

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        hello = msgspec.json.decode(await reader.readline())
        if hello.get("pid") != self.pid:
            return  # the socket of the attempt before; ours is about to replace it
        self.hello, self._writer = hello, writer
        self._tell("armed" if hello.get("armed") else "up")
        while line := await reader.readline():
            if self.counts and self._took_steps(line):
                continue
            message = msgspec.json.decode(line)
            if message.get("push") == "armed":
                self.hello |= {"armed": True, "nccl": message.get("nccl")}
                self._tell("armed")
            future = self._answers.pop(message.get("id", -1), None)
            if future is not None and not future.done():
                future.set_result(message)

    def _took_steps(self, line: bytes) -> bool:
        """Whether the line answers ASK_STEPS. Raises msgspec.MsgspecError."""
        if len(line) > 4096 or _numbered.decode(line).id != 0:
            return False
        answer = _counted.decode(line)
        self.counts = False
        if answer.error is None:
            self._steps = answer.count, answer.last
            self.hello["faulthandler"] = answer.faulthandler
        self._has_counted()
        return True

    def _fail(self) -> None:
        self.counts, self._steps = False, None
        for future in self._answers.values():
            if not future.done():
                future.set_exception(HookError(f"rank {self.rank} is gone"))
        self._answers.clear()

    def _tell(self, state: str) -> None:
        nccl = self.hello.get("nccl") or {}
        self._changed(
            HookChanged(
                self.attempt,
                self.rank,
                state,
                self.pid,
                nccl.get("debug"),
                nccl.get("live"),
                nccl.get("version"),
            )
        )

    async def ask(self, op: str, seconds: float = 5.0, **fields: Any) -> dict[str, Any]:
        """One request. Raises HookError when there is no hook, no answer, or the answer is an error."""
        future = self._question(op, fields)
        number = self._asked
        try:
            async with asyncio.timeout(seconds):
                answer = await future
        except (TimeoutError, OSError):
            self._answers.pop(number, None)
            raise HookError(f"rank {self.rank} did not answer within {seconds:g} s") from None
        if "error" in answer:
            raise HookError(f"rank {self.rank}: {answer['error']}")
        return answer

    def _question(self, op: str, fields: dict[str, Any]) -> asyncio.Future[dict[str, Any]]:
        """Ask, under the newest number; the answer to come. Raises HookError when there is no hook."""
        if self._writer is None:
            raise HookError(
                f"rank {self.rank} has no hook (started with --no-hook or python -I, or no Python)"
            )
        self._asked += 1
        future: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._answers[self._asked] = future
        self._writer.write(msgspec.json.encode({"op": op, "id": self._asked, **fields}) + b"\n")
        return future

    async def change(self, op: str, **fields: Any) -> dict[str, Any]:
        """A request that is answered with NCCL's state, which is told when it is news. Raises HookError."""
        answer = await self.ask(op, **fields)
        known = self.hello.get("nccl") or {}
        self.hello["nccl"] = answer
        if any(known.get(key) != answer.get(key) for key in ("live", "version")):
            self._tell("armed" if self.hello.get("armed") else "up")
        return answer

    def ask_steps(self) -> None:
        """Ask for what it counts, unless it still owes an answer."""
        if self._writer is not None and self.hello.get("armed") and not self.counts:
            self.counts = True
            self._writer.write(ASK_STEPS)

    def take_steps(self) -> tuple[int, float] | None:
        """Steps and unix time of the newest, if it has answered since the last call."""
        steps, self._steps = self._steps, None
        return steps

    async def stacks(self) -> str:
        """Python stacks; through faulthandler's signal when the hook's thread cannot run. Raises HookError."""
        try:
            return str((await self.ask("stacks", 2.0))["text"])
        except HookError as error:
            if self.stacks_file is None or self.pid is None or not self.hello:
                raise
            if not self.hello.get("faulthandler"):
                raise HookError(f"{error}, and its script has taken SIGUSR2 for itself") from None
        return await self._stacks_by_signal(self.stacks_file, self.pid)

    async def pulse(self, seconds: float, **fields: Any) -> dict[str, Any]:
        """What the rank is doing. Who still owes the answer before is not asked again: it would answer them all.

        Raises HookError when there is no answer in time.
        """
        if self._owed is None or self._owed.done():
            self._owed = self._question("pulse", fields)
            self._owed.add_done_callback(lambda one: one.exception())  # perhaps nobody waits any more
        done, _ = await asyncio.wait({self._owed}, timeout=seconds)
        if not done:
            raise HookError(f"rank {self.rank} did not answer within {seconds:g} s")
        answer = self._owed.result()
        return {} if "error" in answer else answer  # an older hook: it lives

    async def stacks_by_signal(self) -> str:
        """Python stacks through faulthandler's signal, whoever holds the interpreter; "" where that is not safe.

        Without its handler the signal would end the process, so only one whose hook is connected is asked. It cuts a
        sleep of C's short. Raises HookError when nothing is written.
        """
        if (
            not self.up
            or self.stacks_file is None
            or self.pid is None
            or not self.hello.get("faulthandler")
        ):
            return ""
        return await self._stacks_by_signal(self.stacks_file, self.pid)

    async def _stacks_by_signal(self, file: Path, pid: int) -> str:
        if state_of(pid) in ("T", "t"):
            raise HookError(f"rank {self.rank} (pid {pid}) is stopped, and answers nothing until SIGCONT")
        if not catches(pid, signal.SIGUSR2):  # its interpreter shuts down, or its script changed that
            raise HookError(f"rank {self.rank} (pid {pid}) takes SIGUSR2 no more")
        before = file.stat().st_size if file.exists() else 0
        send_signal(pid, signal.SIGUSR2)
        size = before
        for _ in range(20):
            await asyncio.sleep(0.1)
            now = file.stat().st_size if file.exists() else 0
            if now > before and now == size:
                return file.read_bytes()[before:].decode("utf-8", "replace")
            size = now
        raise HookError(f"rank {self.rank} (pid {pid}) answered neither its hook nor SIGUSR2")


class Hooks:
    """The hooks of the current attempt."""

    def __init__(
        self, run_dir: Path, socket_stem: str, changed: Callable[[HookChanged], None], node: int = 0
    ) -> None:
        self._run_dir, self._stem, self._changed, self._node = run_dir, socket_stem, changed, node
        self.by_rank: dict[int, Hook] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._all_counted = asyncio.Event()

    def follow(self, change: RankChanged) -> None:
        """A rank's process began: connect to its hook."""
        self.forget(change.rank)
        hook = Hook(Path(f"{self._stem}.r{change.local_rank}"), change, self._changed, self._counted)
        hook.stacks_file = (
            self._run_dir / attempt_dir(self._node, change.attempt) / f"rank-{change.rank}.stacks"
        )
        self.by_rank[change.rank] = hook
        self._tasks[change.rank] = asyncio.create_task(hook.run())

    def forget(self, rank: int) -> None:
        """A rank's process ended."""
        task = self._tasks.pop(rank, None)
        if task is not None:
            task.cancel()
        hook = self.by_rank.pop(rank, None)
        if hook is not None:
            hook._fail()

    def chosen(self, ranks: tuple[int, ...]) -> list[Hook]:
        """The hooks of some ranks; () means all. Raises HookError for a rank there is none of."""
        missing = [rank for rank in ranks if rank not in self.by_rank]
        if missing:
            raise HookError(f"there is no running rank {missing[0]}")
        return [self.by_rank[rank] for rank in sorted(ranks or self.by_rank)]

    def _counted(self) -> None:
        if not any(hook.counts for hook in self.by_rank.values()):
            self._all_counted.set()

    def ask_steps(self) -> None:
        """Ask every rank that counts; `steps` collects the answers."""
        self._all_counted.clear()
        for hook in self.by_rank.values():
            hook.ask_steps()
        self._counted()

    async def steps(self) -> dict[int, tuple[int, float]]:
        """Optimizer steps so far and unix time of the last one, of every rank that has answered by now or soon does."""
        if not self._all_counted.is_set():
            late = asyncio.get_running_loop().call_later(ROUND_S, self._all_counted.set)
            await self._all_counted.wait()
            late.cancel()
        return {
            rank: steps for rank, hook in self.by_rank.items() if (steps := hook.take_steps()) is not None
        }
