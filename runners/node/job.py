"""The job of one node: starts its agent and stays as long as its part of the run lives.

Whatever started the job (SkyPilot under Slurm, say) ends all nodes when one process ends with an error, and a
session's leftovers with the session: so this process leaves last, with what the part came to.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import signal
import sys
import time
from pathlib import Path

from ...presets import cluster
from ...presets.errors import PlanError
from .. import registry
from ..errors import RunError
from ..local import start_agent
from ..model import LogGrew, RunEnded, RunPhase, Stop
from ..state import RunState
from ..wire.client import SocketLink, new_id
from ..wire.link import LinkError
from . import document
from .echo import Echo, to_stdout
from .part import establish, keep_relay_key, only_one, own_environment, runner_lives, work_directory

STOPPED = 143
"""Exit code of a job that was stopped: what a shell gives for SIGTERM."""
RETRY_SECONDS = 5.0
"""Between two tries to start an agent where ranks live and none comes up (a full disk)."""
LINGER_SECONDS = 20.0
"""How long the job waits after the end for the agent, which waits for those who still read."""

CANCEL_SECONDS = 60.0
"""How long a stopped job waits to be cancelled; longer than the hub lets SkyPilot take for that."""


def job(run: str, node: int | None = None) -> int:
    """Run this node's part to its end; the job's exit code. Raises RunError.

    `node` is given where the launch itself numbered the nodes (the document holds their addresses then), else
    whatever started the job says it.
    """
    ours = own_environment()
    told = document.read(run)
    plan = told.whole()
    try:
        if node is None:
            seat = cluster.seat(
                os.environ, plan.nnodes, plan.nnodes_min, nodefile=nodefile(), host=platform.node()
            )
        else:
            seat = cluster.given(node, told.addresses or (), plan.nnodes, plan.nnodes_min)
    except PlanError as error:
        raise RunError(str(error)) from None
    entry = establish(told, seat, work_directory(plan, own=node is None))
    keep_relay_key(entry)
    with only_one(entry):
        return asyncio.run(Job(entry, ours).run())


def nodefile() -> str | None:
    """The text of the file in which PBS names the nodes of its job; None without one that can be read."""
    try:
        return Path(os.environ["PBS_NODEFILE"]).read_text()
    except (KeyError, OSError, UnicodeDecodeError):
        return None


class Job:
    """One part, from its start to its end."""

    def __init__(self, entry: registry.Entry, env: dict[str, str]) -> None:
        self._entry, self._env = entry, env
        self._state = RunState()
        self._echo = Echo(entry.path, to_stdout)
        self._stop = asyncio.Event()
        self._followed = False
        """Whether an agent answered this job at least once."""

    async def run(self) -> int:
        """Exit code of the job. Raises RunError when nothing could be started."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        loop.add_signal_handler(signal.SIGHUP, lambda: None)
        self._continue()
        echoing = asyncio.create_task(self._echo.run())
        try:
            while not self._state.phase.ended:
                await self._follow()
        finally:
            echoing.cancel()
        await self._echo.rest(5.0)
        await self._leave()
        await self._await_cancel()
        return exit_code(self._state.phase)

    def _continue(self) -> None:
        """A part that ended before is to go on: its next attempt follows its last."""
        self._echo.skip()
        if self._entry.state().phase.ended and not runner_lives(self._entry):
            self._env = {**self._env, "DISTUI_AGAIN": "1"}

    async def _follow(self) -> None:
        """Have an agent, and hear it until it is gone or the part has ended."""
        try:
            link = await self._link()
        except (RunError, LinkError) as error:
            if not self._followed and not runner_lives(self._entry):
                raise RunError(str(error)) from None
            say(f"{error}: trying again in {RETRY_SECONDS:g} s")
            await asyncio.sleep(RETRY_SECONDS)
            return
        stopping = asyncio.create_task(self._pass_on_stop(link))
        try:
            async for stamped in link.events(self._state.seq):
                self._state.apply(stamped)
                if isinstance(stamped.event, LogGrew):
                    self._echo.grew(stamped.event.sizes)
                elif isinstance(stamped.event, RunEnded):
                    say(f"node {self._entry.record.node}: {stamped.event.phase}: {stamped.event.text}")
        except LinkError:
            say(
                f"the agent of node {self._entry.record.node} is gone, its ranks are not: another one takes over"
            )
        finally:
            stopping.cancel()
            await link.close()

    async def _link(self) -> SocketLink:
        """A link to the agent, or to one that is started now. Raises RunError and LinkError."""
        who = self._entry.agent()
        if who is None:
            await asyncio.to_thread(start_agent, self._entry, self._env)
            self._env.pop("DISTUI_AGAIN", None)
            who = self._entry.agent()
        if who is None:
            raise RunError(f"no agent came up: see {self._entry.path / 'agent.log'}")
        link = await SocketLink.connect(Path(who.socket))
        self._followed = True
        return link

    async def _pass_on_stop(self, link: SocketLink) -> None:
        await self._stop.wait()
        with contextlib.suppress(LinkError):
            await link.send(Stop(new_id()))

    async def _leave(self) -> None:
        """Stay while somebody still reads from the agent: with this process the node may be gone."""
        deadline = time.monotonic() + LINGER_SECONDS
        while self._entry.agent() is not None and time.monotonic() < deadline:
            await asyncio.sleep(0.1)

    async def _await_cancel(self) -> None:
        """Whoever stopped the run has SkyPilot cancel its job next; one that is gone by then is listed as failed."""
        if self._state.phase is RunPhase.STOPPED and "SKYPILOT_TASK_ID" in os.environ:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), CANCEL_SECONDS)


def exit_code(phase: RunPhase) -> int:
    """0 only for success, so that no scheduler takes anything else for one."""
    return {RunPhase.SUCCEEDED: 0, RunPhase.STOPPED: STOPPED}.get(phase, 1)


def say(text: str) -> None:
    """A line of the job's own on its stdout."""
    to_stdout(f"distui: {text}\n".encode())


def main(argv: list[str]) -> int:
    """`job RUN [NODE]`: exit code, 2 with a sentence when nothing was started."""
    try:
        return job(argv[0], int(argv[1]) if len(argv) > 1 else None)
    except RunError as error:
        sys.stderr.write(f"distui: {error}\n")
        return 2
