"""Profiles of this node's ranks: request them from the hooks, wait for them, and convert them to standard files."""

from __future__ import annotations

import asyncio
import contextlib
import re
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from ..profile import profiling, rank_traces, traces
from ..profile.rank_traces import RankTrace
from ..profile.trace_summary import TraceSummary
from ..run.command_executor import CommandRefused, Reply
from ..run.commands import Profile
from ..run.model import Clause, sentence
from ..run.wire import client
from .hook_clients import HookClient, HookError, HookRefusal, Hooks
from .pyspy import alike
from .runner_process import ServedRun

ANSWER_S = 5.0
"""Seconds for a hook's answer."""
WRITE_S = 120.0
"""Seconds for a rank to write its trace, and for this node to summarize it."""
POLL_S = 0.1
AT_ONCE = 2
"""Most traces to summarize concurrently."""
LINE_LIMIT = 1 << 20
KEPT_S = 600.0
"""Seconds that a profile stays armed without a waiting request."""
T = TypeVar("T")
_RAW = re.compile(r"profiles/[0-9A-Za-z-]{1,64}/rank-\d{1,6}\.json$")


class ProfiledRank:
    """A connection to the hook of one rank for one profile. Closing it cancels the profile."""

    def __init__(
        self, hook: HookClient, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.rank = hook.rank
        self._reader, self._writer = reader, writer

    @classmethod
    async def connected(cls, hook: HookClient) -> ProfiledRank:
        """Connect to a rank's hook. Raises HookError."""
        await hook.heard()
        if not hook.up:
            raise HookRefusal(
                hook.rank,
                "no hook, and without it no profile (it is a launcher, runs with --no-hook or python -I, or "
                "does not import torch)",
            )
        try:
            reader, writer = await client.connect(hook.path, LINE_LIMIT)
        except OSError as error:
            raise HookRefusal(hook.rank, f"no answer of the hook ({error.strerror})") from None
        rank = cls(hook, reader, writer)
        try:
            if (await rank._line(ANSWER_S)).get("pid") != hook.pid:
                raise HookRefusal(hook.rank, "was restarted in the meantime")
        except HookError:
            rank.close()
            raise
        return rank

    async def ask(self, op: str, seconds: float = ANSWER_S, **fields: Any) -> dict[str, Any]:
        """Send one request and return its answer. Raises HookError."""
        self._writer.write(msgspec.json.encode({"op": op, "id": 1, **fields}) + b"\n")
        while (answer := await self._line(seconds)).get("id") != 1:
            pass  # a report without a request
        if "error" in answer:
            raise HookRefusal(self.rank, str(answer["error"]))
        return answer

    async def _line(self, seconds: float) -> dict[str, Any]:
        try:
            async with asyncio.timeout(seconds):
                line = await self._reader.readline()
            answer = msgspec.json.decode(line, type=dict[str, Any]) if line else None
        except TimeoutError:
            raise HookRefusal(self.rank, f"no answer of the hook within {seconds:g} s") from None
        except (OSError, ValueError, msgspec.MsgspecError):
            answer = None
        if answer is None:
            raise HookRefusal(self.rank, "ended or restarted before it had written its trace")
        return answer

    def close(self) -> None:
        """Cancel the profile, unless its trace is complete."""
        self._writer.close()


class RankProfiles:
    """Executes the parts of a profile on this node. It also coordinates the profile of a one-node run."""

    def __init__(self, run: ServedRun, hooks: Hooks) -> None:
        self._run, self._hooks = run, hooks
        self._turn = profiling.Turn()
        self._armed: dict[str, list[ProfiledRank]] = {}
        """Folder of a profile → its connections."""
        self._summing = asyncio.Semaphore(AT_ONCE)

    async def profile(self, command: Profile) -> Reply:
        """Execute a whole profile, or a part of it. Raises CommandRefused and HookError."""
        match command.part:
            case "":
                with self._turn.taken():
                    return await profiling.coordinated(
                        command, len(self._chosen(command)), self.profile, self._run.emit
                    )
            case "ready":
                return await self._each(command, self._ready)
            case "arm":
                return await self._arm(command)
            case "wait":
                return await self._wait(command)
            case "cancel":
                self._drop(command.folder)
                return Reply([Clause("given up")])
            case "read":
                return await asyncio.to_thread(rank_traces.read_reply, self._run.run_dir, command)
        raise CommandRefused(f"there is no part {command.part!r} of a profile")

    def _chosen(self, command: Profile) -> list[HookClient]:
        hooks = self._hooks.chosen(command.ranks)
        if not hooks:
            raise CommandRefused("no rank is running")
        return hooks

    async def _each(self, command: Profile, do: Callable[[HookClient, Profile], Awaitable[str]]) -> Reply:
        """Ask every rank. All must answer. Raises CommandRefused."""
        hooks = self._chosen(command)
        answers = await asyncio.gather(*(_settled(do(hook, command)) for hook in hooks))
        _refuse([answer for answer in answers if isinstance(answer, HookError)])
        data = {
            str(hook.rank): answer
            for hook, answer in zip(hooks, answers, strict=True)
            if isinstance(answer, str)
        }
        return Reply([Clause("{ranks} asked", tuple(hook.rank for hook in hooks))], data)

    async def _ready(self, hook: HookClient, command: Profile) -> str:
        rank = await ProfiledRank.connected(hook)
        try:
            return _text(await rank.ask("profilable"))
        finally:
            rank.close()

    async def _arm(self, command: Profile) -> Reply:
        """Arm every rank for one first step, and keep the connections for the wait. Raises CommandRefused."""
        kept = self._armed.setdefault(command.folder, [])

        async def arm(hook: HookClient, command: Profile) -> str:
            rank = await ProfiledRank.connected(hook)
            kept.append(rank)
            return _text(
                await rank.ask("profile", first=command.first, steps=command.steps, folder=command.folder)
            )

        asyncio.get_running_loop().call_later(KEPT_S, self._forget, command.folder, kept)
        try:
            return await self._each(command, arm)
        except (CommandRefused, asyncio.CancelledError):
            self._drop(command.folder)
            raise

    def _forget(self, folder: str, kept: list[ProfiledRank]) -> None:
        if self._armed.get(folder) is kept:
            self._drop(folder)

    def _drop(self, folder: str) -> None:
        for rank in self._armed.pop(folder, []):
            rank.close()

    async def _wait(self, command: Profile) -> Reply:
        """Return the traces of the ranks that have written one, and name the others. Raises CommandRefused."""
        ranks = self._armed.pop(command.folder, [])  # this call must close them
        try:
            seconds = profiling.LEAST_WAIT_S if command.seconds is None else command.seconds
            answers = await asyncio.gather(
                *(_settled(self._trace(rank, command, seconds)) for rank in ranks)
            )
        finally:
            for rank in ranks:
                rank.close()
        failed: list[HookError] = []
        data: dict[str, str] = {}
        for rank, answer in zip(ranks, answers, strict=True):
            if isinstance(answer, RankTrace):
                data[str(rank.rank)] = msgspec.json.encode(answer).decode()
            else:
                failed.append(answer)
        if not data:
            _refuse(failed or [HookError("no rank was asked")])
        also = alike(failed)
        return Reply([Clause("profile of {ranks}", tuple(sorted(map(int, data)))), *also], data)

    async def _trace(self, rank: ProfiledRank, command: Profile, seconds: float) -> RankTrace:
        """Wait for the trace of one rank, and convert it to a standard file. Raises HookError."""
        answer: dict[str, Any] = {}
        try:
            async with asyncio.timeout(seconds):
                while True:
                    answer = await rank.ask("profiled", WRITE_S)
                    if answer.get("state") == "written":
                        break
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            last = command.first + command.steps - 1
            at = f" (at step {answer['count']})" if "count" in answer else ""
            raise HookRefusal(rank.rank, f"step {last} not reached within {seconds:g} s{at}") from None
        return await self._completed(rank.rank, str(answer.get("file")))

    async def _completed(self, rank: int, raw: str) -> RankTrace:
        """Convert a trace in a separate process, because it may be large: see traces.py. Raises HookError."""
        path = Path(raw)
        node = f"node-{self._run.node}"
        place = _RAW.search(raw)
        if place is None:
            raise HookRefusal(rank, f"reports a trace where none can be: {raw}")
        file = f"{node}/{place[0]}.gz"
        world = str(len(self._run.state.ranks))
        words = (sys.executable, "-P", "-m", traces.__name__, str(self._run.run_dir / node / place[0]))
        try:
            async with self._summing, asyncio.timeout(WRITE_S):
                out = await _output(*words, str(rank), world)
        except TimeoutError:
            out = b""
        except OSError as error:
            raise HookRefusal(
                rank, f"no process could be started for its trace: {error.strerror}"
            ) from None
        return _answered(rank, self._run.run_dir / file, file, out, path)


async def _output(*words: str) -> bytes:
    """Return the output of a process, which is killed when this call ends. Raises OSError."""
    process = await asyncio.create_subprocess_exec(
        *words, stdout=asyncio.subprocess.PIPE, stdin=asyncio.subprocess.DEVNULL
    )
    try:
        return (await process.communicate())[0]
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()


def _answered(rank: int, packed: Path, file: str, out: bytes, raw: Path) -> RankTrace:
    """Return the result from the output of `traces` and the file on disk. Raises HookError."""
    summary, problem = None, "its trace could not be summed up: see agent.log"
    try:
        answer = msgspec.json.decode(out, type=dict[str, Any])
        problem = str(answer.get("problem", ""))
        summary = None if problem else msgspec.convert(answer, TraceSummary)
    except msgspec.MsgspecError:
        pass
    try:
        return RankTrace(file, packed.stat().st_size, summary, problem)
    except OSError:
        raise HookRefusal(rank, problem or f"{raw} is gone") from None


def _text(answer: dict[str, Any]) -> str:
    return msgspec.json.encode(answer).decode()


async def _settled(asked: Awaitable[T]) -> T | HookError:
    """Return an answer, or the reason for its absence."""
    try:
        return await asked
    except HookError as error:
        return error


def _refuse(failed: Sequence[HookError]) -> None:
    """Raise CommandRefused if anything failed."""
    clauses = alike(failed)
    if clauses:
        raise CommandRefused(sentence(clauses), clauses)
