"""An agent in this process, on the test's own event loop, and a viewer's link to its socket."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import patience
import pytest

from distui.presets.load import load
from distui.presets.model import RestartPolicy
from distui.presets.plan import Plan, make_plan
from distui.presets.plan_json import plan_to_json
from distui.presets.request import Request
from distui.runners.agent.node_agent import Agent
from distui.runners.agent.runner_process import Runner, SpawnRunner
from distui.runners.node import local_agent
from distui.runners.run import environment, run_directories
from distui.runners.run.commands import Action, Stop
from distui.runners.run.model import CommandDone, Event, GpuTick, Stamped
from distui.runners.run.run_record import RunRecord
from distui.runners.run.samples import Gpu
from distui.runners.run.state import RunState
from distui.runners.run.wire.client import LinkError, SocketLink, ensure_socket_dir
from distui.runners.telemetry.gpus import GpuSource

from .fake_runner import FakeRunner, FakeRunners


class FakeGpus(GpuSource):
    """The GPUs of a node without a driver and without the sampler's process. `gpus`: what each tick has."""

    gpus: tuple[Gpu, ...] = ()

    async def run(self) -> None:
        if not self.gpus:
            self._on_event(GpuTick((), "no NVIDIA driver"))
        while self.gpus:
            self._on_event(GpuTick(self.gpus))
            await asyncio.sleep(self._interval)


class Served:
    """A run that an agent in this process serves."""

    def __init__(self, agent: Agent) -> None:
        self.agent, self.path = agent, agent.served.run_dir
        self.told: list[Stamped] = []
        """What the agent has published, telemetry included."""
        self.link: SocketLink
        agent.served.chronicle.listeners.append(self.told.append)

    @property
    def state(self) -> RunState:
        """The agent's own fold."""
        return self.agent.served.state

    async def until(self, wanted: Callable[[RunState], object], seconds: float = patience.HANG_S) -> None:
        """Wait until it is true of the state, on the clock of the loop."""
        mistakes: list[Exception] = []

        def happened() -> bool:
            try:
                return bool(wanted(self.state))
            except Exception as error:  # noqa: BLE001  # the test's mistake, which the agent must not meet
                mistakes.append(error)
                return True

        came = await self.agent.served.until(happened, seconds)
        if mistakes:
            raise mistakes[0]
        assert came, f"not within {seconds:g} s:\n{self.describe()}"

    async def hooked(self) -> None:
        """Wait until the hook of every rank counts steps."""
        await self.until(
            lambda state: state.ranks and all(rank.hook == "armed" for rank in state.ranks.values())
        )

    async def send(self, command: Action) -> CommandDone:
        return await self.link.send(command)

    def all_of(self, kind: type[Event]) -> list[Any]:
        """Every event of a kind so far."""
        return [stamped.event for stamped in self.told if isinstance(stamped.event, kind)]

    def describe(self) -> str:
        """What happened last, for the message of a failed assertion."""
        last = [repr(stamped.event)[:300] for stamped in self.told if stamped.seq][-12:]
        log = self.path / "runner.log"
        return "\n".join([*last, log.read_text()[-1500:] if log.exists() else ""])


@contextmanager
def own_directories() -> Iterator[Path]:
    """State, configuration and sockets below one short path: a unix socket's path holds 108 bytes."""
    base = Path(tempfile.mkdtemp(prefix="dt-"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(base / "state"))
        patch.setenv("XDG_CONFIG_HOME", str(base / "config"))
        patch.setenv("DISTUI_SOCKET_DIR", str(base / "s"))
        for name in ("VIRTUAL_ENV", "CONDA_PREFIX", "NCCL_DEBUG", "NCCL_DEBUG_SUBSYS"):
            patch.delenv(name, raising=False)
        try:
            yield base
        finally:
            shutil.rmtree(base, ignore_errors=True)


def planned(
    script: Path, *args: str, restart: RestartPolicy | None = None, **request: Any
) -> tuple[Plan, RunRecord]:
    """A script under torchrun, two ranks unless `request` says otherwise."""
    wanted: dict[str, Any] = {"nproc_per_node": 2, "grace_s": 5.0, "python": sys.executable, **request}
    record = run_directories.new_record("t")
    wish = Request(script=str(script), args=args, **wanted)
    plan = make_plan(load("ddp"), wish, local_agent.place(record, wish))
    return (plan if restart is None else dataclasses.replace(plan, restart=restart)), record


@asynccontextmanager
async def served(
    plan: Plan,
    record: RunRecord,
    spawn_runner: SpawnRunner = Runner.start,
    gpu_source: type[GpuSource] = FakeGpus,
) -> AsyncIterator[Served]:
    """Write the run down, serve it, and stop it at the end."""
    ensure_socket_dir()
    document = json.dumps(plan_to_json(plan, masked=True)).encode()
    with run_directories.start_lock():
        path = run_directories.create(record, document, plan.files)
    environment.write(path, environment.of_launch({"PATH": "/usr/bin:/bin"}, plan.env))
    entry = run_directories.Entry(path, record)
    agent = Agent(entry, plan, spawn_runner=spawn_runner, gpu_source=gpu_source)
    run, ready = Served(agent), asyncio.Event()
    serving = asyncio.create_task(agent.run(ready.set))
    try:
        await asyncio.wait({serving, asyncio.ensure_future(ready.wait())}, return_when="FIRST_COMPLETED")
        run.link = await SocketLink.connect(Path(f"{run.agent.served.stem}.sock"))
        yield run
    finally:
        if not run.state.phase.ended:
            with contextlib.suppress(LinkError):  # after a test that broke it on purpose
                await run.send(Stop("end", grace_s=2.0))
        await run.link.close()
        await asyncio.wait({serving}, timeout=patience.HANG_S)
        serving.cancel()


@asynccontextmanager
async def doubled(
    kind: type[FakeRunner] = FakeRunner, **request: Any
) -> AsyncIterator[tuple[Served, FakeRunners]]:
    """A run with two fake ranks, in directories of its own."""
    with own_directories() as base:
        script, runners = base / "train.py", FakeRunners(kind)
        script.write_text("import torch\n")
        async with served(*planned(script, **request), runners) as run:
            yield run, runners
