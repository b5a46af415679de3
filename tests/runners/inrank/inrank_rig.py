"""Real runs under the real agent, driven in this process; and a rank without torch, whose parent this process is."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

from distui.presets.load import load
from distui.presets.plan import Plan, command_plan, make_plan
from distui.presets.request import Request
from distui.runners.node import local_agent
from distui.runners.run import run_directories
from distui.runners.run.commands import Restart, SetNccl, Stop
from distui.runners.run.model import CommandDone, RankChanged, Stamped
from distui.runners.run.run_record import RunRecord
from distui.runners.run.state import RunState
from distui.runners.run.wire.client import Link, new_id

ROOMS = Path(__file__).parents[3]
INRANK = ROOMS / "runners" / "inrank"
PLAIN_DDP = ROOMS / "presets" / "examples" / "plain_ddp.py"
LIMIT_S = 300.0
"""For what has no deadline of its own: only what hangs takes so long, however busy the machine is."""


class Driven:
    """A run: its events as they come, and what may be asked of it."""

    def __init__(self, link: Link, entry: run_directories.Entry) -> None:
        self.link, self.path = link, entry.path
        self.state = RunState()
        self.events: list[Stamped] = []
        self._waits: dict[asyncio.Future[None], Callable[[RunState], object]] = {}

    async def pump(self) -> None:
        """Fold what the agent tells until the run has ended."""
        async for stamped in self.link.events():
            self.state.apply(stamped)
            self.events.append(stamped)
            happened = [one for one, wanted in self._waits.items() if not one.done() and wanted(self.state)]
            for one in happened:
                one.set_result(None)
            if happened:
                await asyncio.sleep(0)  # who has waited sees the state as it is now, before the next event

    async def until(self, wanted: Callable[[RunState], object], seconds: float = LIMIT_S) -> None:
        """Wait until it is true of the state, however short. Raises AssertionError after `seconds`."""
        if wanted(self.state):
            return
        waits = asyncio.get_running_loop().create_future()
        self._waits[waits] = wanted
        try:
            async with asyncio.timeout(seconds):
                await waits
        except TimeoutError:
            raise AssertionError(f"not within {seconds:g} s:\n{self.describe()}") from None
        finally:
            del self._waits[waits]

    async def hooked(self, ranks: int = 2) -> None:
        """Wait until every rank's hook answers."""
        await self.until(lambda s: len(s.ranks) == ranks and all(r.hook for r in s.ranks.values()))

    async def stepping(self, ranks: int = 2) -> None:
        """Wait until every rank has made a step of its optimizer."""
        await self.until(
            lambda s: len(s.ranks) == ranks and all(r.sample and r.sample.step for r in s.ranks.values())
        )

    async def nccl(self, level: str, subsys: str = "", **more: Any) -> CommandDone:
        return await self._answered(SetNccl(new_id(), level, subsys, **more))

    async def restart(self, **env: str) -> CommandDone:
        return await self._answered(Restart(new_id(), env))

    async def _answered(self, asked: SetNccl | Restart) -> CommandDone:
        """The answer, once `state` has what was told before it: an answer overtakes events that wait in the link."""
        done = await self.link.send(asked)
        await self.until(lambda _: any(came.event == done for came in self.events))
        return done

    def changes(self, rank: int) -> list[tuple[int, str, int | None]]:
        """Attempt, state and exit code of every change of a rank."""
        found = [s.event for s in self.events if isinstance(s.event, RankChanged)]
        return [(e.attempt, str(e.state), e.exit_code) for e in found if e.rank == rank]

    def log(self, name: str, attempt: int = 1) -> str:
        """A file of an attempt; "" while there is none."""
        path = self.path / "node-0" / f"attempt-{attempt:03d}" / name
        return path.read_text() if path.exists() else ""

    async def wrote(self, name: str, word: str, attempt: int = 1, seconds: float = LIMIT_S) -> str:
        """Wait for a word in a file that other processes write: no event tells of single lines."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while word not in self.log(name, attempt):
                    await asyncio.sleep(0.002)
        text = self.log(name, attempt)
        assert word in text, f"{word!r} is not in {name}:\n{text[-2000:]}\n{self.describe()}"
        return text

    def describe(self) -> str:
        """What was told last, for the message of a failed assertion."""
        told = [repr(s.event) for s in self.events if s.seq][-12:]
        logs = [(self.path / name).read_text()[-1500:] for name in ("agent.log", "runner.log")]
        return "\n".join([*told, *logs])


def launch(script: Path, *args: str, **request: Any) -> tuple[Plan, RunRecord]:
    """The plan of a script under torchrun, two ranks."""
    asked: dict[str, Any] = {"nproc_per_node": 2, "grace_s": 5.0, "python": sys.executable, **request}
    record = run_directories.new_record("t")
    wish = Request(script=str(script), args=args, **asked)
    return make_plan(load("ddp"), wish, local_agent.place(record, wish)), record


def execute(*command: str, **request: Any) -> tuple[Plan, RunRecord]:
    """The plan of any command."""
    record = run_directories.new_record("t")
    wish = Request(**{"grace_s": 5.0, **request})
    return command_plan(command, wish, local_agent.place(record, wish)), record


@asynccontextmanager
async def driven(planned: tuple[Plan, RunRecord]) -> AsyncIterator[Driven]:
    """A started run; stopped at the end, whatever happened."""
    entry = local_agent.start(*planned)
    run = Driven(await local_agent.open_link(entry), entry)
    pumping = asyncio.create_task(run.pump())
    try:
        yield run
    finally:
        if not run.state.phase.ended:
            async with asyncio.timeout(LIMIT_S):
                await run.link.send(Stop("end", grace_s=2.0))
                await asyncio.wait({pumping})
        await run.link.close()
        pumping.cancel()


class Rank:
    """A Python process with the hook, as the runner would start it; this process plays the runner."""

    def __init__(self, directory: Path, script: str, python: str, flags: list[str], **env: str) -> None:
        self.stem, self.socket = directory / "rank-0", directory / "r0"
        path = directory / "script.py"
        path.write_text(script)
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("DISTUI_", "PYTHON", "NCCL_"))}
        own = {
            "DISTUI_RUN_ID": "run", "DISTUI_HOOK": str(self.socket), "DISTUI_RUNNER_PID": str(os.getpid()),
            "DISTUI_RANK_FILES": str(self.stem), "PYTHONPATH": str(INRANK / "site"), "RANK": "0",
            "NCCL_DEBUG": "WARN",
        }  # fmt: skip
        with open(f"{self.stem}.out", "w") as out, open(f"{self.stem}.err", "w") as err:
            self.process = subprocess.Popen(
                [python, *flags, str(path)], env={**kept, **own, **env}, stdin=subprocess.PIPE, stdout=out,
                stderr=err, cwd=directory,
            )  # fmt: skip

    def read(self, ending: str) -> str:
        """One of its files."""
        return Path(f"{self.stem}.{ending}").read_text()

    def ends(self) -> int:
        """Close its stdin and wait; its exit code."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(LIMIT_S)


@contextmanager
def rank(
    directory: Path, script: str, *flags: str, python: str = sys.executable, **env: str
) -> Iterator[Rank]:
    """A rank that is killed at the end."""
    started = Rank(directory, script, python, list(flags), **env)
    try:
        yield started
    finally:
        started.process.kill()
        started.process.wait()
        if started.process.stdin is not None:
            started.process.stdin.close()


class Asking:
    """The agent's end of a hook's or runner's socket."""

    def __init__(self, path: Path, seconds: float = LIMIT_S) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(seconds)
        self._lines = self._socket.makefile("rb")
        eventually(lambda: self._connected(path))

    def _connected(self, path: Path) -> bool:
        return self._socket.connect_ex(str(path)) == 0

    def patience(self, seconds: float) -> None:
        """How long to wait for an answer from now on."""
        self._socket.settimeout(seconds)

    def hear(self) -> dict[str, Any]:
        """The next line that says something; {} at the end."""
        for line in self._lines:
            if line.strip():
                said: dict[str, Any] = json.loads(line)
                return said
        return {}

    def ask(self, op: str, **fields: Any) -> dict[str, Any]:
        """One request and its answer."""
        self.send(json.dumps({"op": op, "id": 7, **fields}).encode())
        while (said := self.hear()).get("id") != 7:
            assert said, "the connection was closed"
        return said

    def send(self, line: bytes) -> None:
        self._socket.sendall(line + b"\n")

    def close(self) -> None:
        self._lines.close()
        self._socket.close()


def hello_of(path: Path) -> dict[str, Any]:
    """The first line of a hook."""
    asking = Asking(path)
    said = asking.hear()
    asking.close()
    return said


def eventually(wanted: Callable[[], object], seconds: float = LIMIT_S) -> None:
    """Ask again until it is true: for what other processes do and nothing tells. Fails after `seconds`."""
    deadline = time.monotonic() + seconds
    while not wanted():
        assert time.monotonic() < deadline, f"not within {seconds:g} s"
        time.sleep(0.01)
