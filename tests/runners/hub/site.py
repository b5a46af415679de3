"""A run on several nodes that all are this machine: real agents, real ranks, a real hub, and a user of their own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import select
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from patience import HANG_S

from distui.presets.node_plans import for_node, part_id, part_run8
from distui.presets.plan import Place, Plan, command_plan
from distui.presets.plan_json import plan_to_json
from distui.presets.request import Request
from distui.runners.inrank.secure_channel import KEY_FILE
from distui.runners.node import local_agent, routes
from distui.runners.node.routes import Route
from distui.runners.run import environment, file_io, journal, run_directories
from distui.runners.run.commands import Stop
from distui.runners.run.host_processes import StartMode
from distui.runners.run.model import Stamped
from distui.runners.run.run_record import RunRecord
from distui.runners.run.state import RunState
from distui.runners.run.wire.client import Link, LinkError, new_id, stem

WORKER = """
import os, signal, sys, time
signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # which would end it
print("node", os.environ["DISTUI_NODE"], "begins", flush=True)
while True:
    time.sleep(0.05)
    print("tick", time.time_ns(), flush=True)
"""


class Site:
    """Directories and sockets of one user for one test."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="dh-", dir="/tmp"))  # short: socket paths hold 108 bytes
        monkeypatch.setenv("XDG_STATE_HOME", str(self.root / "state"))
        monkeypatch.setenv("DISTUI_SOCKET_DIR", str(self.root / "s"))
        monkeypatch.setenv("HOME", str(self.root))
        (self.root / "s").mkdir(mode=0o700)

    def script(self, text: str = WORKER) -> tuple[str, ...]:
        """A command that executes this Python text."""
        path = self.root / "worker.py"
        path.write_text(text)
        return (sys.executable, "-u", str(path))

    def close(self) -> dict[int, str]:
        """End every process of this user; those that a stopped run should not have left."""
        left = having(f"XDG_STATE_HOME={self.root / 'state'}")
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.root, ignore_errors=True)
        return left


class Whole:
    """A run on `nodes` nodes, with a hub that is not started yet."""

    def __init__(self, site: Site, command: Sequence[str], nodes: int = 2, name: str = "many") -> None:
        self.site = site
        record = run_directories.new_record(name)
        self.record = replace_record(record, kind="hub", nnodes=nodes)
        run_dir = run_directories.runs_dir() / record.run
        place = Place(
            run=record.run, run_dir=str(run_dir), port=1, ras_port=2, gpus=0, cores=2, cwd=str(site.root),
            python="", user_env={},
        )  # fmt: skip
        self.plan = self.planned(tuple(command), name, place, nodes)
        document = json.dumps(plan_to_json(self.plan)).encode()
        self.key = secrets.token_hex(32)
        self.entry = run_directories.Entry(run_directories.create(self.record, document, {}), self.record)
        self.part_plans: list[Plan] = []
        self.parts = [self._part(node) for node in range(nodes)]

    def planned(self, command: tuple[str, ...], name: str, place: Place, nodes: int) -> Plan:
        """For all nodes: here the command on each of them, without hooks."""
        request = Request(name=name, hook=False, grace_s=2.0)
        return replace(command_plan(command, request, place), nnodes=nodes)

    def _part(self, node: int) -> run_directories.Entry:
        run = part_id(self.record.run, node)
        path = run_directories.runs_dir() / run
        hosts = ["127.0.0.1"] * self.plan.nnodes
        plan: Plan = for_node(self.plan, node, hosts, str(path), self.plan.cwd, "")
        record = replace_record(
            self.record, run=run, run8=part_run8(self.record.run8, node), kind="node", node=node,
            whole=self.record.run,
        )  # fmt: skip
        self.part_plans.append(plan)
        run_directories.create(record, json.dumps(plan_to_json(plan)).encode(), {})
        environment.write(path, environment.of_launch(os.environ, plan.env))
        file_io.write_atomically(path / KEY_FILE, self.key.encode())
        return run_directories.Entry(path, record)

    def socket(self, node: int) -> str:
        return f"{stem(self.parts[node].record.run8)}.sock"

    def start(self, ways: Sequence[Route] | None = None) -> None:
        """Start every node's agent, and say how they are reached."""
        for part in self.parts:
            local_agent.start_agent(part, mode=StartMode.START)
        routes.write(self.entry.path, ways or self.unix())

    async def begin(self, ways: Sequence[Route] | None = None) -> None:
        """The same, for scenarios that are also rehearsed."""
        self.start(ways)

    def unix(self) -> list[Route]:
        return [Route(part.record.node, f"host{part.record.node}", "unix", self.socket(part.record.node))
                for part in self.parts]  # fmt: skip

    def agent_pid(self, node: int) -> int:
        who = file_io.read(self.parts[node].path / run_directories.AGENT_FILE)
        assert who is not None
        return who.pid

    def hub_pid(self) -> int:
        who = file_io.read(self.entry.path / run_directories.AGENT_FILE)
        assert who is not None
        return who.pid

    async def kill_hub(self) -> None:
        await kill(self.hub_pid())

    def journal(self) -> list[Stamped]:
        return list(journal.read(self.entry.path))

    def part_journal(self, node: int) -> list[Stamped]:
        return list(journal.read(self.parts[node].path))

    @contextlib.asynccontextmanager
    async def viewer(self) -> AsyncIterator[Viewer]:
        """A viewer that follows the run through the hub, which is started for it."""
        viewer = Viewer(await local_agent.open_link(self.entry))
        try:
            yield viewer
        finally:
            await viewer.close()


class Viewer:
    """Folds what a link tells."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.state = RunState()
        self.stamped: list[Stamped] = []
        self.problem = ""
        self._changed = asyncio.Event()
        self._task = asyncio.create_task(self._follow())

    async def _follow(self) -> None:
        try:
            async for stamped in self.link.events():
                self.state.apply(stamped)
                self.stamped.append(stamped)
                self._changed.set()
                await asyncio.sleep(0)  # who waits sees each state
        except LinkError as error:
            self.problem = str(error)
        self._changed.set()

    async def until(self, wanted: Callable[[RunState], object]) -> RunState:
        """Wait until something is true of the state."""
        try:
            async with asyncio.timeout(HANG_S):
                while not wanted(self.state):
                    self._changed.clear()
                    if self._task.done():
                        break
                    await self._changed.wait()
        except TimeoutError:
            pass
        if self._task.done():
            self._task.result()
        assert wanted(self.state), (self.problem, self.state)
        return self.state

    async def stop(self) -> str:
        done = await self.link.send(Stop(new_id()))
        return done.text

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.wait({self._task})
        await self.link.close()


def replace_record(record: RunRecord, **fields: object) -> RunRecord:
    import msgspec

    return msgspec.structs.replace(record, **fields)


def having(entry: str) -> dict[int, str]:
    """Living processes with this `NAME=VALUE` in their environment: pid → command line."""
    needle, found = entry.encode(), {}
    for name in filter(str.isdecimal, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if needle in Path(f"/proc/{name}/environ").read_bytes().split(b"\0"):
                words = Path(f"/proc/{name}/cmdline").read_bytes().replace(b"\0", b" ")
                if words:
                    found[int(name)] = words.decode("utf-8", "replace").strip()
    found.pop(os.getpid(), None)
    return found


async def kill(pid: int) -> None:
    """SIGKILL, and wait until nothing of the process is left but its name."""
    descriptor = os.pidfd_open(pid)
    try:
        os.kill(pid, signal.SIGKILL)
        ready, _, _ = await asyncio.to_thread(select.select, [descriptor], [], [], HANG_S)
        assert ready, pid
    finally:
        os.close(descriptor)


def until(wanted: Callable[[], object]) -> bool:
    """Ask again until it is true: for what other processes do and no event tells."""
    began = time.monotonic()
    while not wanted():
        if time.monotonic() - began > HANG_S:
            return False
        time.sleep(0.05)
    return True
