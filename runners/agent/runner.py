"""The agent's side of the runner: start it, adopt it, hear it, tell it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from ...presets.plan import Plan
from .. import identity
from ..model import Stamped
from ..registry import RUNNER_FILE
from .processes import gone

LAUNCH = Path(__file__).resolve().parent.parent / "inrank" / "launch.py"
REPORT = "runner.jsonl"
HIDDEN = "***"
_events = msgspec.json.Decoder(Stamped)


def environment(plan: Plan, socket_stem: str, base: Mapping[str, str]) -> dict[str, str]:
    """What the runner starts with. Values that plan.json hides come from the agent's own environment."""
    env = {name: value for name, value in base.items() if not name.startswith("DISTUI_")}
    env |= {name: value for name, value in plan.env.items() if value != HIDDEN}
    env["DISTUI_SOCKETS"] = socket_stem
    users = base.get("DISTUI_USER_PYTHONPATH")
    if users is not None:  # ours is the library of a bundle: see node.part.own_environment
        env["PYTHONPATH"] = plan.env.get("PYTHONPATH", users)
        if not env["PYTHONPATH"]:
            del env["PYTHONPATH"]
    return env


class Runner:
    """One runner process, started by this agent or by an earlier one."""

    def __init__(
        self, run_dir: Path, who: identity.Identity, process: subprocess.Popen[bytes] | None
    ) -> None:
        self.who = who
        self._run_dir = run_dir
        self._process = process
        self._writer: asyncio.StreamWriter | None = None
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._asked = 0
        self.poked = asyncio.Event()

    @classmethod
    def start(cls, plan: Plan, run_dir: Path, socket_stem: str, failures: int) -> Runner:
        """Spawn it in a session of its own. Raises OSError when the interpreter cannot be executed."""
        python = plan.python or sys.executable
        with (run_dir / "runner.log").open("ab") as log:
            process = subprocess.Popen(
                [python, "-u", str(LAUNCH), str(run_dir), str(failures)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=plan.cwd,
                env=environment(plan, socket_stem, os.environ),
                start_new_session=True,
            )
        who = identity.identify(process.pid, socket_stem + ".run", plan.launcher)
        identity.write(run_dir / RUNNER_FILE, who)
        return cls(run_dir, who, process)

    @classmethod
    def adopt(cls, run_dir: Path) -> Runner | None:
        """The living runner that an earlier agent started; None when there is none."""
        who = identity.read(run_dir / RUNNER_FILE)
        if who is None or not identity.alive(who):
            return None
        return cls(run_dir, who, None)

    async def ended(self) -> None:
        """Wait for its end, and reap it if it is our child."""
        while not await gone(self.who.pid, 3600):
            continue
        if self._process is not None:
            self._process.wait()

    async def listen(self) -> None:
        """Hold a connection on which the runner pokes, and reconnect while the runner lives."""
        while identity.alive(self.who):
            try:
                reader, self._writer = await asyncio.open_unix_connection(self.who.socket)
            except OSError:
                await asyncio.sleep(0.02)  # not bound yet: it binds before anything else
                continue
            # The answer says that pokes reach us from now on: what was reported before it is read then.
            self._writer.write(b'{"op":"ping","id":0}\n')
            with contextlib.suppress(OSError):
                while line := await reader.readline():
                    self.poked.set()
                    if line.strip():
                        self._answered(msgspec.json.decode(line))
            self._writer = None
            self._unanswered()

    @property
    def listening(self) -> bool:
        """Whether it can be asked now."""
        return self._writer is not None

    def _unanswered(self) -> None:
        """The runner left, perhaps because of what it was asked: nobody waits for its answer any longer."""
        for future in self._answers.values():
            if not future.done():
                future.set_exception(OSError("the runner is gone"))
        self._answers.clear()

    def _answered(self, answer: dict[str, Any]) -> None:
        future = self._answers.pop(answer.get("id", 0), None)
        if future is not None and not future.done():
            future.set_result(answer)

    async def ask(self, op: str, **fields: Any) -> dict[str, Any]:
        """Send one command. Raises OSError or TimeoutError when the runner does not answer."""
        if self._writer is None:
            raise OSError("the runner does not listen yet")
        self._asked += 1
        future: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._answers[self._asked] = future
        self._writer.write(msgspec.json.encode({"op": op, "id": self._asked, **fields}) + b"\n")
        async with asyncio.timeout(10):
            return await future


async def ask_once(path: str, op: str, **fields: Any) -> dict[str, Any]:
    """Send one command to the runner at a socket. Raises OSError when there is none."""
    reader, writer = await asyncio.open_unix_connection(path)
    try:
        writer.write(msgspec.json.encode({"op": op, "id": 1, **fields}) + b"\n")
        async with asyncio.timeout(10):
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
    """Reads runner.jsonl from a byte offset on."""

    def __init__(self, run_dir: Path, offset: int) -> None:
        self._path = run_dir / REPORT
        self._offset = offset

    def read(self) -> list[tuple[int, Stamped]]:
        """Whole lines since the last call, each with the offset behind it; lines nobody understands are skipped."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return []
        found = []
        for line in data[: data.rfind(b"\n") + 1].splitlines(keepends=True):
            self._offset += len(line)
            try:
                found.append((self._offset, _events.decode(line)))
            except msgspec.MsgspecError:
                continue
        return found


async def reports(runner: Runner, tail: ReportTail) -> AsyncGenerator[tuple[int, Stamped], None]:
    """Everything a runner reports, until it has ended and all of it was read."""
    listening = asyncio.create_task(runner.listen())
    ended = asyncio.create_task(runner.ended())
    try:
        while True:
            for item in tail.read():
                yield item
            if ended.done():
                for item in tail.read():
                    yield item
                return
            poked = asyncio.create_task(runner.poked.wait())
            await asyncio.wait({poked, ended}, return_when=asyncio.FIRST_COMPLETED)
            poked.cancel()
            runner.poked.clear()
    finally:
        listening.cancel()
        ended.cancel()
