"""Samples are gathered before they are written to a viewer; nothing else waits for them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from msgspec import json
from owner import owner

from distui.runners.agent.server import GROWTH_S, AgentServer
from distui.runners.run import clock
from distui.runners.run.chronicle import Chronicle
from distui.runners.run.commands import Action, Hello, Stop
from distui.runners.run.model import (
    CaughtUp,
    CommandDone,
    GpuTick,
    HostTick,
    LogGrew,
    PlanSummary,
    RunCreated,
    RunnerLost,
    Stamped,
)
from distui.runners.run.run_record import RunRecord
from distui.runners.run.samples import Host as HostSample
from distui.runners.run.wire.frames import encode

_decode = json.Decoder(Stamped).decode


class Viewer:
    """A viewer's end of the socket: what came with each read."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self.writer = reader, writer
        self.reads: list[float] = []
        self._rest = b""
        self.said: list[Stamped] = []

    async def read(self) -> list[Stamped]:
        """What one read brings; () where that is no event."""
        data = await self._reader.read(1 << 20)
        assert data, "the server closed the connection"
        self.reads.append(clock.monotonic())
        *lines, self._rest = (self._rest + data).split(b"\n")
        fresh = [_decode(line) for line in lines if line.startswith(b'{"time"')]
        self.said += fresh
        return fresh

    async def until(self, kind: type) -> list[Stamped]:
        """Read until an event of this kind came; all that came."""
        start = len(self.said)
        while not any(isinstance(stamped.event, kind) for stamped in self.said[start:]):
            await self.read()
        return self.said[start:]


@asynccontextmanager
async def serving(tmp_path: Path, hello: Hello) -> AsyncIterator[tuple[Chronicle, Viewer]]:
    chronicle = Chronicle(tmp_path)
    chronicle.emit(RunCreated("r", "r", "here", PlanSummary("", "", "", "")))
    record = RunRecord("r", "0" * 8, "r", 0.0, "here")

    async def execute(action: Action) -> CommandDone:
        return CommandDone(action.id, True, "done")

    async def window(*asked: object) -> object:
        raise AssertionError

    server = AgentServer(tmp_path / "s", record, chronicle, owner(), execute, window, window)  # type: ignore[arg-type]
    await server.start("0")
    reader, writer = await asyncio.open_unix_connection(str(tmp_path / "s"), limit=1 << 22)
    try:
        writer.write(encode(hello))
        viewer = Viewer(reader, writer)
        await viewer.until(CaughtUp)
        yield chronicle, viewer
    finally:
        writer.close()
        await server.close()
        chronicle.journal.close()


def sample(chronicle: Chronicle, node: int) -> None:
    chronicle.emit(GpuTick(()), node=node)
    chronicle.emit(HostTick(HostSample(cpu_percent=float(node))), node=node)
    chronicle.emit(LogGrew({f"node-{node}/attempt-001/rank-0.out": node + 1}), node=node)


async def test_samples_of_many_nodes_come_together(tmp_path: Path) -> None:
    async with serving(tmp_path, Hello()) as (chronicle, viewer):
        before, began = len(viewer.reads), clock.monotonic()
        for node in range(64):
            sample(chronicle, node)
            await asyncio.sleep(0)  # each by itself, as samples of nodes come
        while len({stamped.node for stamped in viewer.said if isinstance(stamped.event, LogGrew)}) < 64:
            await viewer.read()
        assert viewer.reads[-1] - began == pytest.approx(GROWTH_S)
        assert len(viewer.reads) - before <= 4, "one wake-up per sample is what gathering is to spare"
        of = {(type(stamped.event), stamped.node) for stamped in viewer.said[1:]}
        assert (
            len(of & {(kind, node) for kind in (GpuTick, HostTick, LogGrew) for node in range(64)}) == 192
        )


async def test_an_event_goes_at_once_and_takes_the_samples_along(tmp_path: Path) -> None:
    async with serving(tmp_path, Hello()) as (chronicle, viewer):
        sample(chronicle, 3)
        chronicle.emit(RunnerLost(7, "it is gone"))
        begun = clock.monotonic()
        came = await viewer.until(RunnerLost)
        assert clock.monotonic() == begun
        assert any(isinstance(stamped.event, GpuTick) for stamped in came)


async def test_an_answer_goes_at_once(tmp_path: Path) -> None:
    async with serving(tmp_path, Hello()) as (chronicle, viewer):
        sample(chronicle, 3)
        begun = clock.monotonic()
        viewer.writer.write(encode(Stop("a")))
        await viewer.until(CommandDone)
        assert clock.monotonic() == begun


async def test_samples_go_on_after_they_were_gathered_once(tmp_path: Path) -> None:
    async with serving(tmp_path, Hello()) as (chronicle, viewer):
        for node in range(3):
            sample(chronicle, node)
            await viewer.until(LogGrew)
