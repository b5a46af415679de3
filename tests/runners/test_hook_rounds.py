"""A round of the hooks: all ranks asked at once, and nobody waited for long."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from owner import owner

from distui.runners.agent import hook_clients
from distui.runners.agent.hook_clients import HookError, Hooks
from distui.runners.run import clock
from distui.runners.run.model import HookChanged, RankChanged, RankPhase


class Rank:
    """The hook's end of a socket, answering when the test says so: a rank whose interpreter may be busy."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.free = asyncio.Event()
        self.free.set()
        self.count = 0
        self.next_line = b""
        """Sent instead of the next answer."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(json.dumps({"pid": 1, "armed": True, "nccl": {}}).encode() + b"\n")
        while line := await reader.readline():
            request = json.loads(line)
            self.asked.append(request)
            await self.free.wait()
            if self.next_line:
                writer.write(self.next_line + b"\n")
                self.next_line = b""
                continue
            answer: dict[str, Any] = {"text": "memory"}
            if request["op"] == "steps":
                self.count += 1
                answer = {
                    "count": self.count,
                    "last": 100.0 + self.count,
                    "first": 1.0,
                    "faulthandler": True,
                }
            writer.write(json.dumps(dict(answer, id=request["id"])).encode() + b"\n")
        writer.close()


@asynccontextmanager
async def ranks(socket_folder: Path, number: int) -> AsyncIterator[tuple[Hooks, list[Rank]]]:
    """Hooks connected to as many ranks."""
    armed = asyncio.Event()

    def changed(event: HookChanged) -> None:
        if all(hook.up for hook in hooks.by_rank.values()):
            armed.set()

    hooks = Hooks(socket_folder, str(socket_folder / "h"), changed, owner())
    found = [Rank() for _ in range(number)]
    servers = [
        await asyncio.start_unix_server(rank.serve, socket_folder / f"h.r{one}")
        for one, rank in enumerate(found)
    ]
    for one in range(number):
        hooks.follow(RankChanged(1, one, RankPhase.RUNNING, one, 1))
    try:
        await armed.wait()
        yield hooks, found
    finally:
        for one in range(number):
            hooks.forget(one)
        for server in servers:
            server.close()


async def test_every_rank_answers(socket_folder: Path) -> None:
    began = clock.monotonic()
    async with ranks(socket_folder, 3) as (hooks, _):
        for count in (1, 2):
            hooks.ask_steps()
            steps = await hooks.steps()
            assert steps == dict.fromkeys(range(3), (count, 100.0 + count))
        assert hooks.by_rank[0].hello["faulthandler"] is True
        assert clock.monotonic() == began


async def test_a_busy_rank_is_waited_for_a_moment_and_counted_with_the_next_sample(
    socket_folder: Path,
) -> None:
    async with ranks(socket_folder, 2) as (hooks, (_, busy)):
        busy.free.clear()
        for count in (1, 2, 3):
            began = clock.monotonic()
            hooks.ask_steps()
            assert await hooks.steps() == {0: (count, 100.0 + count)}
            assert clock.monotonic() - began == pytest.approx(hook_clients.ROUND_S)
        assert len(busy.asked) == 1  # it owes an answer
        busy.free.set()
        while hooks.by_rank[1].awaits_steps:
            await asyncio.sleep(0.01)
        busy.free.clear()
        hooks.ask_steps()
        assert await hooks.steps() == {0: (4, 104.0), 1: (1, 101.0)}


async def test_other_questions_do_not_mix_with_the_round(socket_folder: Path) -> None:
    async with ranks(socket_folder, 1) as (hooks, (rank,)):
        rank.free.clear()
        hooks.ask_steps()
        asked = asyncio.create_task(hooks.by_rank[0].ask("memory"))
        await asyncio.sleep(0)
        rank.free.set()
        assert (await asked)["text"] == "memory"
        assert await hooks.steps() == {0: (1, 101.0)}


async def test_a_rank_that_ends_owes_nothing(socket_folder: Path) -> None:
    async with ranks(socket_folder, 1) as (hooks, (rank,)):
        rank.free.clear()
        hooks.ask_steps()
        asked = asyncio.create_task(hooks.by_rank[0].ask("memory"))
        await asyncio.sleep(0)
        hooks.forget(0)
        with pytest.raises(HookError, match="rank 0 is gone"):
            await asked
        hooks.ask_steps()
        assert await hooks.steps() == {}


async def test_a_line_that_is_no_message_ends_the_connection_and_what_was_asked(
    socket_folder: Path,
) -> None:
    lines = [
        b"[1]",
        b"3",
        b'"x"',
        b"[" * 100_000,
        b"\xff",
        b'{"id": [1]}',
        b'{"push": "armed", "nccl": "x"}',
    ]
    async with ranks(socket_folder, 1) as (hooks, (rank,)):
        hook = hooks.by_rank[0]
        for line in lines:
            rank.next_line = line
            with contextlib.suppress(HookError):
                await hook.ask("memory", 1.0)
            while not hook.up:
                await asyncio.sleep(0.01)
            assert (await hook.ask("memory"))["text"] == "memory"


async def test_without_ranks_nothing_is_waited_for(socket_folder: Path) -> None:
    hooks = Hooks(socket_folder, str(socket_folder / "h"), lambda event: None, owner())
    began = clock.monotonic()
    hooks.ask_steps()
    assert await hooks.steps() == {}
    assert clock.monotonic() == began
