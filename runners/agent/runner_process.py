"""The run that an agent serves, and its runner process: start, adopt, read reports, send requests."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ...presets.secrets import SECRET_WORDS
from ..run import clock, environment, file_io, journal, rpc, run_directories
from ..run.daemon_run import DaemonRun
from ..run.history import REPORT
from ..run.model import Stamped
from ..run.parts import in_background
from ..run.processes import gone, state_of
from ..run.run_directories import RUNNER_FILE, Entry
from ..run.wire import client

if TYPE_CHECKING:
    from ...presets.plan import Plan

LAUNCH = Path(__file__).resolve().parent.parent / "inrank" / "launch.py"
ASK_S, LATE_S = 10.0, 2.0
"""Seconds until a request to the runner expires, and additional seconds for its answer."""
_events = msgspec.json.Decoder(Stamped)


class ServedRun(DaemonRun):
    """One run on this node, for every part of its agent."""

    def __init__(self, entry: Entry, plan: Plan) -> None:
        super().__init__(entry, plan, entry.record.node)
        self.stem = client.stem(entry.record.run8)
        self.runner: Runner | None = None
        """The living runner, set by Supervision, or None."""


class Runner:
    """One runner process, started by this or an earlier agent."""

    def __init__(
        self, run_dir: Path, who: file_io.Identity, process: subprocess.Popen[bytes] | None
    ) -> None:
        self.who = who
        self._run_dir = run_dir
        self._process = process
        self._writer: asyncio.StreamWriter | None = None
        self._requests = rpc.OpenRequests[dict[str, Any]]()
        self.poked = asyncio.Event()
        self.reports_from: int | None = None
        """Offset of its first report, after those of earlier runners. None for a runner of an earlier agent."""

    @classmethod
    def start(cls, run: ServedRun, env: Mapping[str, str], cause: str = "") -> Runner:
        """Spawn a runner in its own session. `cause`: of its first attempt, unless that is a launch or a failure.

        Raises OSError if the interpreter cannot be executed, and ValueError for invalid arguments or environment.
        """
        words = [str(run.state.failures), *([cause] if cause else [])]
        return cls.spawn(run.entry, run.plan, env, words)

    @classmethod
    def spawn(cls, entry: Entry, plan: Plan, env: Mapping[str, str], words: Sequence[str]) -> Runner:
        """Spawn a runner; `words` follow its run directory. Raises as `start`."""
        python, run_dir = plan.python or sys.executable, entry.path
        reports_from = ReportTail.end(run_dir)
        with file_io.appending(run_dir / "runner.log") as log:
            process = subprocess.Popen(
                [python, "-u", str(LAUNCH), str(run_dir), *words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=plan.cwd,
                env=env,
                start_new_session=True,
                umask=file_io.users_umask(),
            )
        who = file_io.identify(process.pid, client.stem(entry.record.run8) + ".run", plan.launcher)
        file_io.write(run_dir / RUNNER_FILE, who)
        runner = cls(run_dir, who, process)
        runner.reports_from = reports_from
        return runner

    @classmethod
    def adopt(cls, entry: Entry) -> Runner | None:
        """Return the living runner of an earlier agent, or None."""
        who = run_directories.runner(entry)
        return None if who is None else cls(entry.path, who, None)

    async def ended(self) -> None:
        """Wait for its end, and reap it if it is a child."""
        while not await gone(self.who.pid, 3600):
            continue
        if self._process is not None:
            self._process.wait()

    def lives(self) -> bool:
        """Return True if its process is alive."""
        return file_io.alive(self.who)

    async def listen(self) -> None:
        """Keep a connection for the runner's pokes, and reconnect while the runner lives."""
        while self.lives():
            try:
                reader, self._writer = await client.connect(self.who.socket)
            except OSError:
                await asyncio.sleep(0.02)  # not bound yet: the runner binds before anything else
                continue
            # After the answer, pokes reach us. Earlier reports are read then.
            self._writer.write(b'{"op":"ping","id":0}\n')
            try:
                with contextlib.suppress(OSError, ValueError):
                    while line := await reader.readline():
                        self.poked.set()
                        if line.strip():
                            answer = rpc.message(line)
                            self._requests.answer(answer.get("id"), answer)
            finally:
                self._writer.close()
                self._writer = None
            # It exited, perhaps because of a request, whose answer will not come.
            self._requests.fail(OSError("the runner is gone"))

    @property
    def listening(self) -> bool:
        """Return True if it accepts requests."""
        return self._writer is not None

    async def ask(self, op: str, **fields: Any) -> dict[str, Any]:
        """Send one request. Raises OSError or TimeoutError without an answer.

        After these errors the request has no effect: a runner that continues later finds it expired. A stop never
        expires.
        """
        if self._writer is None:
            raise OSError("the runner does not listen yet")
        if op != "stop":
            if state_of(self.who.pid) in ("T", "t"):
                raise TimeoutError(_stopped(self.who.pid))
            fields["until"] = clock.monotonic() + ASK_S
        with self._requests.open() as request:
            self._writer.write(msgspec.json.encode({"op": op, "id": request.number, **fields}) + b"\n")
            try:
                return await request.next(ASK_S + LATE_S)
            except TimeoutError:
                raise TimeoutError(_silent(self.who.pid)) from None


SpawnRunner = Callable[[ServedRun, Mapping[str, str], str], Runner]
"""Starts the runner of a run with an environment and a cause, like Runner.start."""


def started_early(entry: Entry, plan: Plan) -> SpawnRunner:
    """Spawn the runner of a new run before the agent is made, and return a SpawnRunner that hands it over once.

    If the run is not new, or anything is missing, nothing is spawned: the agent starts the runner, and reports errors.
    """
    early: list[Runner] = []
    env = None if (entry.path / journal.NAME).exists() else _first_environment(entry, plan)
    if env is not None:
        with contextlib.suppress(OSError, ValueError):
            early.append(Runner.spawn(entry, plan, env, ["0"]))

    def spawn(run: ServedRun, env: Mapping[str, str], cause: str = "") -> Runner:
        return early.pop() if early else Runner.start(run, env, cause)

    return spawn


def _first_environment(entry: Entry, plan: Plan) -> dict[str, str] | None:
    """Return the environment of a new run's first runner, or None if a value of it is not known."""
    from ...presets.plan_json import revealed, unknown_words  # `distui logs` needs no plan

    launch, words = environment.read(entry.path), os.environ.get(SECRET_WORDS, "")
    if launch is None or unknown_words(revealed(plan, {SECRET_WORDS: words})):
        return None
    started = environment.of_runner(launch, plan.env, {}, os.environ)
    return None if started.missing else with_run(started.env, words, entry.record.run8)


def with_run(env: Mapping[str, str], secret_words: str, run8: str) -> dict[str, str]:
    """Add what only the agent tells a runner: the secret words of its command, and the place of the run's sockets."""
    words = {SECRET_WORDS: secret_words} if secret_words else {}
    return {**env, **words, "DISTUI_SOCKETS": client.stem(run8)}


def _stopped(pid: int) -> str:
    return (
        f"the runner (pid {pid}) is stopped, so no command was sent to it: `kill -CONT {pid}` has it go on"
    )


def _silent(pid: int) -> str:
    return f"the runner (pid {pid}, state {state_of(pid)}) did not answer in {ASK_S:.0f} s: the request was withdrawn"


async def ask_once(path: str, op: str, **fields: Any) -> dict[str, Any]:
    """Send one request to the runner at a socket. Raises OSError if there is none."""
    reader, writer = await client.connect(path)
    try:
        fields["until"] = clock.monotonic() + ASK_S
        writer.write(msgspec.json.encode({"op": op, "id": 1, **fields}) + b"\n")
        async with asyncio.timeout(ASK_S + LATE_S):
            line = b"\n"
            while line == b"\n":  # a poke
                line = await reader.readline()
        if not line:
            raise OSError("the runner has closed its socket")
        answer: dict[str, Any] = msgspec.json.decode(line)
        return answer
    finally:
        writer.close()


class ReportTail:
    """Reads runner.jsonl from a byte offset."""

    def __init__(self, run_dir: Path, offset: int) -> None:
        self._path = run_dir / REPORT
        self._offset = offset

    @staticmethod
    def end(run_dir: Path) -> int:
        """Return the offset after the reports so far."""
        path = run_dir / REPORT
        return path.stat().st_size if path.is_file() else 0

    def read(self) -> list[tuple[int, Stamped]]:
        """Return the complete lines since the last call, each with its end offset. Invalid lines are skipped."""
        entries = []
        with contextlib.suppress(file_io.FileError):
            for offset, line in file_io.lines(self._path, self._offset):
                self._offset = offset
                stamped = file_io.decoded(_events, line)
                if stamped is not None:
                    entries.append((offset, stamped))
        return entries


async def reports(runner: Runner, tail: ReportTail) -> AsyncGenerator[tuple[int, Stamped], None]:
    """Yield all reports of a runner until it has ended and all of them were read."""

    async def then_poke(work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        finally:
            runner.poked.set()

    async with (
        in_background(then_poke(runner.listen())) as listening,
        in_background(then_poke(runner.ended())) as ended,
    ):
        while True:
            has_ended = ended.done()
            for item in tail.read():
                yield item
            if has_ended:
                ended.result()
                return
            if listening.done():
                listening.result()
            await runner.poked.wait()
            runner.poked.clear()
