"""The agent's connections to the hooks of the ranks."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from ..run import clock, file_io, rpc
from ..run.log_files import attempt_dir
from ..run.model import HookChanged, RankChanged, Wrapped
from ..run.parts import Parts
from ..run.processes import catches, send_to_thread, state_of
from ..run.wire import client
from ..telemetry.signal_names import Reported

LINE_LIMIT = 64 << 20
"""Longest answer in bytes. A flight recorder of 2,000 entries has a few MB."""
MOST_STACKS = 4 << 20
"""Most bytes of faulthandler's stacks of a rank."""
YOUNG_S = 10.0
"""Longest time from a rank's start to its hook, in seconds: an interpreter starts slowly on a busy machine."""
ROUND_S = 0.05
"""Seconds that a sample waits for step counts. Later answers belong to the next sample."""
ASK_STEPS = b'{"op":"steps","id":0,"signals":%d}\n'
"""The request of every second, with the newest known version of the training signals.

`HookClient.ask` numbers its requests from 1.
"""
STEPS_ANSWER = 64 << 10
"""Longest answer in bytes."""


class _Nccl(msgspec.Struct):
    """The used fields of a hook's report on NCCL."""

    debug: str | None = None
    live: bool | None = None
    version: str | None = None


class _Numbered(msgspec.Struct):
    id: int = -1


class _Counted(msgspec.Struct):
    """The used fields of the answer to ASK_STEPS."""

    count: int | None = 0
    """None until the script has an optimizer."""
    last: float = 0.0
    """Unix time of the newest step. 0 before the first."""
    faulthandler: bool | None = None
    signals: msgspec.Raw = msgspec.Raw()  # not `| None`: msgspec allows no union with Raw
    error: str | None = None


T = TypeVar("T")
_messages = msgspec.json.Decoder(dict[str, Any])
_numbered, _counted = msgspec.json.Decoder(_Numbered), msgspec.json.Decoder(_Counted)
_reported = msgspec.json.Decoder(Reported)


class HookError(Exception):
    """A rank did not answer. The text is the reason."""


class HookRefusal(HookError):
    """A rank refused a request. `why` does not name the rank."""

    def __init__(self, rank: int, why: str) -> None:
        super().__init__(f"rank {rank}: {why}")
        self.rank, self.why = rank, why


class HookClient:
    """The connection to the hook of one rank."""

    def __init__(
        self,
        path: Path,
        change: RankChanged,
        changed: Callable[[HookChanged], None],
        on_steps: Callable[[], None],
    ) -> None:
        """`change` began the rank. `on_steps` is called after each answer to ASK_STEPS."""
        self.rank, self.attempt, self.pid = change.rank, change.attempt, change.pid
        self.stacks_file: Path | None = None
        self.path, self._changed, self._on_steps = path, changed, on_steps
        self._writer: asyncio.StreamWriter | None = None
        self._young_until, self._heard = clock.monotonic() + YOUNG_S, asyncio.Event()
        self._requests = rpc.OpenRequests[dict[str, Any]]()
        self.hello: dict[str, Any] = {}
        """The newest values of pid, armed, made, nccl, faulthandler and thread; see `Hook.hello` in inrank/hook.py.

        "leaving" is True after the hook's last message, at the end of its interpreter."""
        self.sigusr2_sent = 0
        """Number of SIGUSR2 sent to the hook's thread."""
        self.awaits_steps = False
        """True while an ASK_STEPS is unanswered."""
        self._steps: tuple[int | None, float] | None = None
        self.signals_version = 0
        self.reported: Reported | None = None
        """The newest training signals of its script."""
        self._open_pulse: rpc.OpenRequest[dict[str, Any]] | None = None
        """The newest request of `pulse`, until it is answered."""

    @property
    def up(self) -> bool:
        return self._writer is not None

    async def heard(self) -> None:
        """Wait for the hook's hello, at most until the rank exits or YOUNG_S have passed.

        A rank without a hello by then has no hook.
        """
        await clock.wait_set(self._heard, max(0.0, self._young_until - clock.monotonic()))

    async def run(self) -> None:
        """Connect when the hook listens, and read until the rank exits. Cancel to stop."""
        while True:
            try:
                reader, writer = await client.connect(self.path, LINE_LIMIT)
            except OSError:
                await asyncio.sleep(0.1)
                continue
            try:
                with contextlib.suppress(OSError, ValueError, RecursionError, msgspec.MsgspecError):
                    await self._converse(reader, writer)
            finally:
                writer.close()
            if self._writer is not None:
                self._writer = None
                self._fail()
                self._report("gone")
            await asyncio.sleep(0.1)

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        hello = _messages.decode(await reader.readline())
        if hello.get("pid") != self.pid:
            return  # the previous attempt's socket, which ours will replace
        self.hello, self._writer = hello, writer
        self._heard.set()
        self._report("armed" if hello.get("armed") else "up")
        while line := await reader.readline():
            if self.awaits_steps and self._took_steps(line):
                continue
            message = _messages.decode(line)
            if message.get("push") == "armed":
                self.hello |= {"armed": True, "nccl": message.get("nccl")}
                self._report("armed")
            elif message.get("push") == "leaving":
                self.hello["leaving"] = True
            elif message.get("push") == "made":
                self.hello["made"] = message.get("made")
                self._report("armed")
            if isinstance(number := message.get("id"), int):
                self._requests.answer(number, message)

    def _took_steps(self, line: bytes) -> bool:
        """Return True if the line answers ASK_STEPS. Raises msgspec.MsgspecError."""
        if len(line) > STEPS_ANSWER or _numbered.decode(line).id != 0:
            return False
        answer = _counted.decode(line)
        self.awaits_steps = False
        if answer.error is None:
            self._steps = answer.count, answer.last
            self.hello["faulthandler"] = answer.faulthandler
            if bytes(answer.signals):
                self._take_signals(answer.signals)
        self._on_steps()
        return True

    def _take_signals(self, raw: msgspec.Raw) -> None:
        """Decode training signals. Invalid ones are ignored, because a script may change anything in its process."""
        with contextlib.suppress(msgspec.MsgspecError):
            self.reported = _reported.decode(raw)
            self.signals_version = self.reported.version

    def _fail(self) -> None:
        self.awaits_steps, self._steps = False, None
        self._heard.set()
        self._requests.fail(HookError(f"rank {self.rank} is gone"))

    def _report(self, state: str) -> None:
        nccl = _converted(self.hello.get("nccl"), _Nccl) or _Nccl()
        wrapped = wrapping_of(self.hello.get("made"))
        self._changed(
            HookChanged(
                self.attempt, self.rank, state, self.pid, nccl.debug, nccl.live, nccl.version, wrapped
            )
        )

    async def ask(self, op: str, seconds: float = 5.0, **fields: Any) -> dict[str, Any]:
        """Send one request and return the answer. Raises HookError without a hook or answer, and for an error."""
        with self._question(op, fields) as question:
            answer = await self._answer(question, seconds)
        if "error" in answer:
            raise HookRefusal(self.rank, str(answer["error"]))
        return answer

    def _question(self, op: str, fields: dict[str, Any]) -> rpc.OpenRequest[dict[str, Any]]:
        """Send a request and return its pending answer. Raises HookError if there is no hook."""
        if self._writer is None:
            raise HookError(
                f"rank {self.rank} has no hook (it is a launcher, runs with --no-hook or python -I, or "
                "does not import torch)"
            )
        question = self._requests.open()
        self._writer.write(msgspec.json.encode({"op": op, "id": question.number, **fields}) + b"\n")
        return question

    async def _answer(self, question: rpc.OpenRequest[dict[str, Any]], seconds: float) -> dict[str, Any]:
        try:
            return await question.next(seconds)
        except TimeoutError:
            raise HookError(f"rank {self.rank} did not answer within {seconds:g} s") from None

    async def change(self, op: str, **fields: Any) -> dict[str, Any]:
        """Send a request whose answer is NCCL's state, and report a changed state. Raises HookError."""
        answer = await self.ask(op, **fields)
        before, after = (_converted(nccl, _Nccl) or _Nccl() for nccl in (self.hello.get("nccl"), answer))
        self.hello["nccl"] = answer
        if (before.live, before.version) != (after.live, after.version):
            self._report("armed" if self.hello.get("armed") else "up")
        return answer

    def ask_steps(self) -> None:
        """Request its step count, unless the previous request is unanswered."""
        if self._writer is not None and self.hello.get("armed") and not self.awaits_steps:
            self.awaits_steps = True
            self._writer.write(ASK_STEPS % self.signals_version)

    def take_steps(self) -> tuple[int | None, float] | None:
        """Return steps and Unix time of the newest step, if the hook has answered since the last call."""
        steps, self._steps = self._steps, None
        return steps

    async def stacks(self) -> str:
        """Return the Python stacks from the hook. Raises HookError."""
        try:
            return str((await self.ask("stacks", 2.0))["text"])
        except HookError as error:
            if self.up and self.hello and not self.hello.get("faulthandler"):
                raise HookError(f"{error}, and its script handles SIGUSR2 itself") from None
            raise

    def may_signal(self) -> bool:
        """Return True if SIGUSR2 to the hook's thread would write the stacks.

        The hook must be connected, and the script must have no handler for the signal.
        """
        return self.up and self.stacks_file is not None and bool(self.hello.get("faulthandler"))

    async def pulse(self, seconds: float, **fields: Any) -> dict[str, Any]:
        """Return the rank's pulse. A hook with an open question is not asked again, because it would answer all of them.

        Raises HookError without an answer in time.
        """
        if self._open_pulse is None or self._open_pulse.done:
            self._open_pulse = self._question("pulse", fields)
        answer = await self._answer(self._open_pulse, seconds)
        return {} if "error" in answer else answer  # any answer shows that the rank lives

    async def stacks_by_signal(self) -> str:
        """Return Python stacks through faulthandler's signal, even while another thread holds the GIL. Raises HookError.

        The signal goes to the hook's thread: a signal to the process would interrupt a sleep, select or poll of the
        script. No signal is sent if the script has its own handler, or if the interpreter shuts down.
        """
        file, pid = self.stacks_file, self.pid
        if not self.may_signal() or file is None or pid is None:
            raise HookError(f"rank {self.rank} does not accept SIGUSR2")
        size = before = _size(file)
        self._signal(pid)
        for _ in range(20):
            await asyncio.sleep(0.1)
            now = _size(file)
            if now > before and now == size:
                return _stacks(file, before)
            size = now
        raise HookError(f"rank {self.rank} (pid {pid}) answered neither its hook nor SIGUSR2")

    def _signal(self, pid: int) -> None:
        """Send the signal. Raises HookError if it would not write the stacks."""
        thread = self.hello.get("thread")
        if state_of(pid) in ("T", "t"):
            raise HookError(f"rank {self.rank} (pid {pid}) is stopped, and answers nothing until SIGCONT")
        if not catches(pid, signal.SIGUSR2):  # the interpreter shuts down, or the script changed it
            raise HookError(f"rank {self.rank} (pid {pid}) no longer handles SIGUSR2")
        if not isinstance(thread, int) or not send_to_thread(pid, thread, signal.SIGUSR2):
            raise HookError(f"rank {self.rank} (pid {pid}) has no hook thread that could handle SIGUSR2")
        self.sigusr2_sent += 1


def _size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0


def _stacks(file: Path, begin: int) -> str:
    """Return faulthandler's output after an offset. Raises HookError."""
    try:
        return file_io.piece(file, begin, MOST_STACKS).decode("utf-8", "replace")
    except file_io.FileError as error:
        raise HookError(str(error)) from None


def wrapping_of(reported: object) -> Wrapped | None:
    """Decode a hook's report on how a model was wrapped. None if it is missing or invalid."""
    return _converted(reported, Wrapped)


def _converted(reported: object, kind: type[T]) -> T | None:
    """Convert a part of a hook's message; None if it is missing or invalid: a script may change its hook."""
    try:
        return None if reported is None else msgspec.convert(reported, kind, strict=False)
    except msgspec.ValidationError:
        return None


class Hooks:
    """The connections to the hooks of all ranks of this node."""

    def __init__(
        self,
        run_dir: Path,
        socket_stem: str,
        changed: Callable[[HookChanged], None],
        parts: Parts,
        node: int = 0,
    ) -> None:
        self._run_dir, self._stem, self._changed, self._node = run_dir, socket_stem, changed, node
        self._parts = parts
        self.by_rank: dict[int, HookClient] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._all_counted = asyncio.Event()

    def follow(self, change: RankChanged) -> None:
        """Connect to the hook of a rank whose process began."""
        self.forget(change.rank)
        hook = HookClient(Path(f"{self._stem}.r{change.local_rank}"), change, self._changed, self._counted)
        hook.stacks_file = (
            self._run_dir / attempt_dir(self._node, change.attempt) / f"rank-{change.rank}.stacks"
        )
        self.by_rank[change.rank] = hook
        self._tasks[change.rank] = self._parts.start(f"hook-{change.rank}", hook.run)

    def keep(self, ranks: Collection[int]) -> None:
        """Forget all other ranks, after an attempt began or a launcher in the command took over."""
        for rank in self.by_rank.keys() - ranks:
            self.forget(rank)

    def forget(self, rank: int) -> None:
        """Forget a rank whose process ended."""
        task = self._tasks.pop(rank, None)
        if task is not None:
            task.cancel()
        hook = self.by_rank.pop(rank, None)
        if hook is not None:
            hook._fail()

    def chosen(self, ranks: tuple[int, ...]) -> list[HookClient]:
        """Return the hooks of some ranks, or of all for (). Raises HookError for a rank without one."""
        missing = [rank for rank in ranks if rank not in self.by_rank]
        if missing:
            raise HookError(f"there is no running rank {missing[0]}")
        return [self.by_rank[rank] for rank in sorted(ranks or self.by_rank)]

    def _counted(self) -> None:
        if not any(hook.awaits_steps for hook in self.by_rank.values()):
            self._all_counted.set()

    def ask_steps(self) -> None:
        """Request the step count of every rank that counts. `steps` collects the answers."""
        self._all_counted.clear()
        for hook in self.by_rank.values():
            hook.ask_steps()
        self._counted()

    async def steps(self) -> dict[int, tuple[int | None, float]]:
        """Return step count and Unix time of the last step of every rank that has answered within ROUND_S."""
        if not self._all_counted.is_set():
            late = asyncio.get_running_loop().call_later(ROUND_S, self._all_counted.set)
            await self._all_counted.wait()
            late.cancel()
        return {
            rank: steps for rank, hook in self.by_rank.items() if (steps := hook.take_steps()) is not None
        }
