"""The job of one node of a run: it starts the agent of the node's part, and another if that ends.

The job lives as long as its part. Its launcher (SkyPilot under Slurm, for example) ends all nodes if one process exits
with an error, and a session's other processes with the session. So this process exits last, with the part's outcome.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import signal
from collections.abc import Iterator
from pathlib import Path

from ...presets import seats
from ...presets.finding import PlanError
from ..run import clock, run_directories
from ..run.commands import Stop
from ..run.errors import RunError
from ..run.host_processes import StartMode
from ..run.model import LogGrew, RunEnded, RunPhase
from ..run.parts import Parts, failure
from ..run.state import RunState
from ..run.wire.client import LinkError, SocketLink, new_id
from .job_document import read_document
from .job_output import Echo, to_stdout
from .local_agent import start_agent
from .node_part import establish, keep_relay_key, own_environment, runner_lives, secrets_of, work_directory

STOPPED = 143
"""Exit code of a stopped job: a shell's code for SIGTERM."""
RETRY_SECONDS = 5.0
"""Seconds between two tries to start an agent for living ranks (full disk)."""
LINGER_SECONDS = 30.0
"""Maximum seconds to wait after the end for the agent, which waits for its viewers and its hub."""
CANCEL_SECONDS = 180.0
"""Maximum seconds that a stopped job waits for its cancellation; longer than the hub gives SkyPilot."""


def job(run: str, node: int | None = None) -> int:
    """Run this node's part to its end, and return the job's exit code. Raises RunError.

    `node` is given if the launch itself numbered the nodes (the document then has their addresses); otherwise SkyPilot's
    variables determine it.
    """
    ours = own_environment()
    doc = read_document(run)
    plan = doc.whole()
    try:
        if node is None:
            seat = seats.seat(os.environ, plan.nnodes, plan.nnodes_min)
        else:
            seat = seats.given_seat(node, doc.addresses or (), plan.nnodes, plan.nnodes_min)
    except PlanError as error:
        raise RunError(str(error)) from None
    entry = establish(doc, seat, work_directory(plan, own=node is None))
    keep_relay_key(entry)
    with job_lock(entry):
        return asyncio.run(NodeJob(entry, {**ours, **secrets_of(entry)}).run())


class NodeJob:
    """One part, from its start to its end."""

    def __init__(self, entry: run_directories.Entry, env: dict[str, str]) -> None:
        self._entry, self._env = entry, env
        self._state = RunState()
        self._echo = Echo(entry.path, to_stdout)
        self._stop = asyncio.Event()
        self._parts = Parts(lambda name, error, follows: say(failure(name, error, follows, None, "").text))
        self._followed = False
        """Whether an agent answered this job at least once."""

    async def run(self) -> int:
        """Return the exit code of the job. Raises RunError if nothing could be started."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        loop.add_signal_handler(signal.SIGHUP, lambda: None)
        self._continue()
        self._parts.start("output", self._echo.run)
        try:
            while not self._state.phase.ended:
                await self._follow()
        finally:
            await self._parts.stop("output")
        await self._echo.rest(5.0)
        await self._leave()
        await self._await_cancel()
        return exit_code(self._state.phase)

    def _continue(self) -> None:
        """Skip old output, and let a part that has ended continue with its next attempt."""
        self._echo.skip()
        if self._entry.state().phase.ended and not runner_lives(self._entry):
            self._env = {**self._env, "DISTUI_AGAIN": "1"}

    async def _follow(self) -> None:
        """Start or find an agent, and follow it until it ends or the part has ended."""
        try:
            link = await self._link()
        except (RunError, LinkError) as error:
            if not self._followed and not runner_lives(self._entry):
                raise RunError(str(error)) from None
            say(f"{error}: trying again in {RETRY_SECONDS:g} s")
            await asyncio.sleep(RETRY_SECONDS)
            return
        stopping = self._parts.once("stop", self._pass_on_stop(link))
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
        """Connect to the agent, or start one before. Raises RunError and LinkError."""
        who = self._entry.agent()
        if who is None:
            await asyncio.to_thread(start_agent, self._entry, self._env, StartMode.START)
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
        """Wait while viewers read from the agent: the node may be lost with this process."""
        deadline = clock.monotonic() + LINGER_SECONDS
        while self._entry.agent() is not None and clock.monotonic() < deadline:
            await asyncio.sleep(0.1)

    async def _await_cancel(self) -> None:
        """Wait until the hub lets SkyPilot cancel a stopped job: SkyPilot lists a job that exited before as failed."""
        if self._state.phase is RunPhase.STOPPED and "SKYPILOT_TASK_ID" in os.environ:
            await clock.wait_set(self._stop, CANCEL_SECONDS)


def exit_code(phase: RunPhase) -> int:
    """Exit code of the job: 0 only for success, so that no scheduler mistakes another outcome for it."""
    return {RunPhase.SUCCEEDED: 0, RunPhase.STOPPED: STOPPED}.get(phase, 1)


def say(text: str) -> None:
    """Print a line of the job itself on stdout."""
    to_stdout(f"distui: {text}\n".encode())


@contextlib.contextmanager
def job_lock(entry: run_directories.Entry) -> Iterator[None]:
    """Hold the lock of a part's job process. Raises RunError if another process has it."""
    lock = os.open(entry.path / "job.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise RunError(f"another job process of {entry.record.run} lives on this node") from None
    finally:
        os.close(lock)
