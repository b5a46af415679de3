"""The contract of the doubles: what an agent can see of a runner and its ranks, of the double and of torch's own.

The same assertions run on FakeRunner and FakeHook in virtual time, and on the real runner with real ranks.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import patience
import pytest

from distui.presets.model import RestartPolicy
from distui.runners.agent.runner_process import Runner
from distui.runners.diagnosis.stack_text import main_frames
from distui.runners.run import clock
from distui.runners.run.commands import Dump, Restart, SetNccl, Stop
from distui.runners.run.history import REPORT
from distui.runners.run.model import (
    AttemptStarted,
    EnvironmentReported,
    RankChanged,
    RestartDelayed,
    RunEnded,
    RunnerStarted,
    Stamped,
)
from distui.runners.run.state import RunState

from .fake_runner import FakeRunners
from .served import Served, own_directories, planned, served

TRAINS = """
import os, sys, time
import torch, torch.distributed as dist

def ordered(word):
    path = os.path.join(sys.argv[1], word + "-" + os.environ["RANK"])
    if os.path.exists(path):
        os.remove(path)
        return True

def hang():
    while True: time.sleep(60)

def train():
    dist.init_process_group("gloo")
    weight = torch.nn.Parameter(torch.zeros(20))
    optimizer = torch.optim.SGD([weight], 0.1)
    while True:
        if ordered("fail"): os._exit(3)
        if ordered("hang"): hang()
        weight.grad = torch.full((20,), float(bool(ordered("end"))))
        dist.all_reduce(weight.grad)
        if weight.grad.any(): break
        optimizer.step()
        time.sleep(0.02)

train()
"""


class Part:
    """A run with two ranks under the double or under torch, and what its script is made to do."""

    def __init__(self, run: Served, runners: FakeRunners | None, orders: Path) -> None:
        self.run, self._runners, self._orders = run, runners, orders
        self.runner_socket = f"{run.agent.served.stem}.run"

    def rank_socket(self, rank: int) -> str:
        return f"{self.run.agent.served.stem}.r{rank}"

    def fails(self, rank: int) -> None:
        """The rank ends with exit code 3."""
        self._order("fail", rank, lambda fake: fake.newest.exits(rank, 3))

    def hangs(self, rank: int) -> None:
        """The rank stands in its function `hang`, and the other one waits in all_reduce."""
        self._order("hang", rank, lambda fake: fake.newest.hangs(rank))

    def finishes(self) -> None:
        """All ranks come to the end of the script."""
        self._order("end", 0, lambda fake: fake.newest.finishes())

    def joined(self) -> None:
        """Another node joins that of the double."""
        assert self._runners is not None
        self._runners.newest.meets_another_node()

    def _order(self, word: str, rank: int, double: Callable[[FakeRunners], object]) -> None:
        if self._runners is not None:
            double(self._runners)
        else:
            (self._orders / f"{word}-{rank}").touch()

    def reported(self) -> list[Any]:
        return reports(self.run.path)


def reports(run_dir: Path) -> list[Any]:
    """The events of runner.jsonl in the order of their writing."""
    lines = (run_dir / REPORT).read_bytes().splitlines()
    return [msgspec.json.decode(line, type=Stamped).event for line in lines]


@asynccontextmanager
async def part(kind: str, **request: Any) -> AsyncIterator[Part]:
    with own_directories() as base:
        script = base / "train.py"
        script.write_text(TRAINS)
        runners = FakeRunners() if kind == "double" else None
        plan, record = planned(script, str(base), **request)
        async with served(plan, record, runners or Runner.start) as run:
            yield Part(run, runners, base)


class Wire:
    """A connection to a socket, apart from the agent's."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    @asynccontextmanager
    async def to(cls, path: str) -> AsyncIterator[Wire]:
        reader, writer = await asyncio.open_unix_connection(path)
        try:
            yield cls(reader, writer)
        finally:
            writer.close()

    async def line(self) -> bytes:
        """The next line; b"" at the end of the connection."""
        return await asyncio.wait_for(self._reader.readline(), patience.HANG_S)

    async def hear(self) -> dict[str, Any]:
        """The next line that is no poke."""
        while (line := await self.line()) == b"\n":
            pass
        said: dict[str, Any] = json.loads(line)
        return said

    async def ask(self, op: str, **fields: Any) -> dict[str, Any]:
        """A request and its answer, without the id."""
        self._writer.write(json.dumps({"op": op, "id": 7, **fields}).encode() + b"\n")
        while (said := await self.hear()).pop("id", None) != 7:
            pass
        return said


async def meets(wanted: Callable[[], Any]) -> Any:
    """Ask again until it is true; what it returned."""
    async with asyncio.timeout(patience.HANG_S):
        while not (answer := await wanted()):
            await asyncio.sleep(0.05)
    return answer


async def test_the_life_of_two_fake_ranks() -> None:
    await check_the_life_of_two_ranks("double")


@pytest.mark.real
@pytest.mark.torch
async def test_the_life_of_two_real_ranks() -> None:
    await check_the_life_of_two_ranks("torch")


async def check_the_life_of_two_ranks(kind: str) -> None:
    async with part(kind) as its, AsyncExitStack() as stack:
        run = its.run
        await run.hooked()

        started, attempt, *running = its.reported()
        assert isinstance(started, RunnerStarted)
        assert (started.kind, started.socket) == ("torchrun", its.runner_socket)
        assert started.torch is not None
        assert started.torch.startswith("2.")
        assert isinstance(attempt, AttemptStarted)
        assert (attempt.attempt, attempt.cause, attempt.world_size) == (1, "launch", 2)
        assert (attempt.env_diff, attempt.failures) == ({}, 0)
        assert [(place.rank, place.local_rank, place.node, place.gpu) for place in attempt.ranks] == [
            (0, 0, 0, None),
            (1, 1, 0, None),
        ]
        assert [Path(path).name for path in attempt.code] == ["train.py"]
        assert sorted((change.rank, str(change.state)) for change in running) == [
            (0, "running"),
            (1, "running"),
        ]
        pids = {change.rank: change.pid for change in running}

        # The runner's socket, beside the agent's own connection to it.
        runner = await stack.enter_async_context(Wire.to(its.runner_socket))
        assert await runner.ask("ping") == {"ok": True, "attempt": 1, "restarting": False}
        assert await runner.ask("dance") == {"ok": False, "text": "unknown command 'dance'"}
        late = await runner.ask("restart", env={}, until=clock.monotonic() - 1)
        assert late == {"ok": False, "text": "the request came too late, and was withdrawn"}
        refused = await runner.ask("env", env={"RANK": "3"})
        assert refused == {
            "ok": False,
            "text": "RANK is computed for each rank by the launcher: leave it out",
        }
        assert (await runner.ask("stop", grace_s="long"))["text"] == "grace_s is not a number of seconds"
        kept = await runner.ask("env", env={"KEPT": "for later"}, shown={"KEPT": "for later"})
        assert kept == {"ok": True, "attempt": 1, "restarting": False}

        # A rank's socket.
        rank = await stack.enter_async_context(Wire.to(its.rank_socket(0)))
        hello = await rank.hear()
        assert (hello["pid"], hello["rank"], hello["armed"], hello["faulthandler"]) == (
            pids[0],
            "0",
            True,
            True,
        )
        assert isinstance(hello["thread"], int)
        assert set(hello["nccl"]) == {"loaded", "live", "version", "debug", "backend"}
        assert hello["nccl"]["debug"] == "WARN"
        assert {**await rank.ask("hello"), "made": None, "nccl": None} == {
            **hello,
            "made": None,
            "nccl": None,
        }
        counted = await meets(lambda: _stepping(rank))
        assert set(counted) == {"count", "last", "first", "faulthandler"}
        assert 0 <= clock.now() - counted["last"] < 60
        assert "signals" not in await rank.ask("steps", signals=0)
        environ = await rank.ask("environ", names=["RANK", "WORLD_SIZE", "KEPT", "DISTUI_RUN_ID"])
        assert environ["env"] == {
            "RANK": "0",
            "WORLD_SIZE": "2",
            "KEPT": None,
            "DISTUI_RUN_ID": run.agent.served.record.run,
        }
        assert "max_rss_bytes" in json.loads((await rank.ask("memory"))["text"])
        assert await rank.ask("dance") == {"error": "unknown request 'dance'"}
        refused = await rank.ask("nccl", env={"PATH": "x"})
        assert refused == {"error": "ValueError: PATH is not a variable of NCCL's debug output"}
        limited = await rank.ask("nccl", env={"NCCL_DEBUG": "INFO"}, lasting=False)
        assert set(limited) == {"loaded", "live", "version", "debug", "backend", "changed"}
        assert (limited["debug"], limited["backend"], limited["live"]) == ("INFO", "gloo", None)
        await rank.ask("nccl", env={"NCCL_DEBUG": "TRACE"}, lasting=False)
        assert (await rank.ask("back"))["debug"] == "WARN"
        assert (await rank.ask("back"))["changed"] is False
        c10d = await rank.ask("c10d", level="INFO")
        assert c10d == {"text": "TORCH_DISTRIBUTED_DEBUG=INFO, c10d logging INFO"}
        healthy = await rank.ask("pulse", samples=2)
        assert {"stack", "sites", "loops", "cpu_s", "process_s", "step", "last_step", "recorder"} <= set(
            healthy
        )
        assert (healthy["torch"], healthy["samples"], healthy["world_size"]) == (True, 2, "2")
        assert healthy["master"].startswith(("127.0.0.1:", "localhost:"))

        # What the agent makes of both.
        answer = await run.send(SetNccl("nccl", "INFO", ""))
        assert answer.ok
        assert answer.text.startswith("the backend is gloo: NCCL_DEBUG=INFO is set for the next start")
        dumped = await run.send(Dump("stacks", "stacks"))
        assert dumped.text == "stacks of ranks 0, 1"
        for text in dumped.data.values():
            assert any("train" in frame for frame in main_frames(text))

        # A restart in place, with what was set for it before.
        answer = await run.send(Restart("again", {"SEEN": "by all"}))
        assert answer.ok, answer.text
        assert answer.text.startswith("restarted: attempt 2, 2 ranks running after ")
        assert (run.all_of(EnvironmentReported)[-1].ranks, run.all_of(EnvironmentReported)[-1].env) == (
            (0, 1),
            {"SEEN": "by all"},
        )
        assert (await runner.ask("ping"))["attempt"] == 2
        await rank_is_gone(rank)
        ended = [event for event in its.reported() if isinstance(event, RankChanged) and event.exit_code]
        assert sorted((event.rank, str(event.state), event.exit_code, event.signal) for event in ended) == [
            (0, "stopped", -15, "SIGTERM"),
            (1, "stopped", -15, "SIGTERM"),
        ]
        attempt = [event for event in its.reported() if isinstance(event, AttemptStarted)][-1]
        assert (attempt.attempt, attempt.cause, attempt.failures) == (2, "restart", 0)
        assert attempt.env_diff == {"KEPT": "for later", "SEEN": "by all", "NCCL_DEBUG": "INFO"}

        # A rank that hangs, and one that waits for it.
        await run.hooked()
        hanging = await stack.enter_async_context(Wire.to(its.rank_socket(1)))
        waiting = await stack.enter_async_context(Wire.to(its.rank_socket(0)))
        assert await meets(lambda: _stepping(hanging))
        its.hangs(1)
        pulse = await meets(lambda: _waits(waiting))
        (call,), (group,) = pulse["active"], pulse["groups"]
        assert set(group) == {"name", "desc", "ranks", "enqueued", "completed", "backend"}
        assert (call["group"], call["op"], call["seq"]) == ("0", "all_reduce", group["enqueued"])
        assert (call["done"], call["started"], call["p2p"]) == (False, None, False)
        assert 0 <= clock.now() - call["created"] < 60
        assert "train" in [name for _, _, name in call["sites"]]
        assert group["completed"] == group["enqueued"] - 1
        assert "all_reduce" in [name for _, _, name in pulse["stack"]]
        pulse = await hanging.ask("pulse", whole=True)
        assert (pulse["stack"][0][2], pulse["active"]) == ("hang", [])
        first, again = [await hanging.ask("steps") for _ in range(2)]
        assert (first["count"], first["last"]) == (again["count"], again["last"]), "its steps have stopped"
        assert pulse["groups"][0]["enqueued"] == group["completed"]
        text = (await hanging.ask("stacks"))["text"]
        assert "hang" in main_frames(text)[0]
        assert await hanging.ask("leave") == {"leaving": True}

        assert (await run.send(Stop("stop", grace_s=5.0))).ok
        assert (str(run.state.phase), run.state.end_text) == ("stopped", "stopped")
        assert its.reported()[-1] == RunEnded(run.state.phase, 1, "stopped")
        states = {
            str(event.state)
            for event in its.reported()
            if isinstance(event, RankChanged) and event.attempt == 2
        }
        assert states == {"running", "stopped"}
        while await runner.line():
            pass  # until the runner has closed its socket


async def _stepping(rank: Wire) -> dict[str, Any] | None:
    answer = await rank.ask("steps")
    return answer if answer["count"] else None


async def _waits(rank: Wire) -> dict[str, Any] | None:
    pulse = await rank.ask("pulse", whole=True, sites=True)
    active = pulse["active"]
    return pulse if active and clock.now() - active[0]["created"] > 1.0 else None


async def rank_is_gone(rank: Wire) -> None:
    """The connection to a rank ends with its process."""
    while await rank.line():
        pass


async def test_a_fake_rank_that_fails_is_started_again() -> None:
    await check_a_rank_that_fails("double")


@pytest.mark.real
@pytest.mark.torch
async def test_a_real_rank_that_fails_is_started_again() -> None:
    await check_a_rank_that_fails("torch")


async def check_a_rank_that_fails(kind: str) -> None:
    once = RestartPolicy(limit=1, backoff_s=0.3, backoff_max_s=0.3, reset_after_s=600.0)
    async with part(kind, restart=once) as its:
        run = its.run
        await run.hooked()
        its.fails(1)
        await run.until(lambda state: state.attempt == 2 and str(state.phase) == "running")
        await run.hooked()
        its.finishes()
        await run.until(lambda state: state.phase.ended)
        by_kind = itertools.groupby(map(_word, its.reported()), lambda word: word.partition(" ")[2])
        story = [word for _, words in by_kind for word in sorted(words)]  # two ranks come in any order
        assert story == [
            "RunnerStarted", "AttemptStarted 1 launch 0",
            "1.0 running", "1.1 running", "1.1 failed 3", "1.0 stopped -15",
            "RestartDelayed 0.3 1 of 1", "AttemptStarted 2 failure 1",
            "2.0 running", "2.1 running", "2.0 succeeded 0", "2.1 succeeded 0",
            "RunEnded succeeded 0 every rank ended with exit code 0",
        ]  # fmt: skip
        first = run.state.attempts[0].first_cause
        assert first is not None
        assert (first.rank, first.exit_code, first.victims) == (1, 3, ())


async def test_a_fake_node_that_is_joined() -> None:
    async with part("double", nproc_per_node=1) as its:
        await its.run.hooked()
        its.joined()
        await its.run.until(lambda state: state.attempt == 2 and str(state.phase) == "running")
        check_a_membership(its.reported(), its.run.state, 1)


def check_a_membership(reported: list[Any], state: RunState, attempt: int) -> None:
    """Another node joins that of rank 0: its attempt ends, and both begin the next one.

    tests/runners/node/test_node_relay.py calls it for two nodes of torch's.
    """
    words = list(map(_word, reported))
    assert words[words.index(f"{attempt}.0 running") :] == [
        f"{attempt}.0 running", f"{attempt}.0 stopped -15",
        f"AttemptStarted {attempt + 1} membership 0", f"{attempt + 1}.0 running",
    ]  # fmt: skip
    before, begun, after = reported[-3:]
    assert (before.signal, begun.env_diff, [place.rank for place in begun.ranks]) == ("SIGTERM", {}, [0])
    assert before.pid != after.pid
    ended, now = state.attempts[-2:]
    assert (str(ended.outcome), ended.first_cause) == ("restarted", None)
    assert (now.number, str(now.cause), now.outcome) == (attempt + 1, "membership", None)
    assert str(state.phase) == "running"


def _word(event: Any) -> str:
    match event:
        case AttemptStarted():
            return f"AttemptStarted {event.attempt} {event.cause} {event.failures}"
        case RankChanged():
            code = "" if event.exit_code is None else f" {event.exit_code}"
            return f"{event.attempt}.{event.rank} {event.state}{code}"
        case RestartDelayed():
            return f"RestartDelayed {event.wait_s} {event.failures} of {event.limit}"
        case RunEnded():
            return f"RunEnded {event.phase} {event.exit_code} {event.text}"
    return type(event).__name__
