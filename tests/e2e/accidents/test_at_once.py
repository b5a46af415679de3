"""Two things asked at once, or one at the worst moment."""

from __future__ import annotations

import asyncio

import pytest
from doubles.served import doubled
from patience import HANG_S

from distui.runners.run.commands import Restart, Stop
from distui.runners.run.model import RunPhase

from ..runs import World, kill, until
from ..written import Attempt, write

LEAVES_LATE = """
import os, signal, sys, time
def leave(*_):
    while not os.path.exists("go"):
        time.sleep(0.02)
    sys.exit(1)
signal.signal(signal.SIGTERM, leave)
print("up", flush=True)
time.sleep(600)
"""
UP = "import time\nprint('up', flush=True)\ntime.sleep(600)\n"


async def test_two_restarts_at_once() -> None:
    """One after the other, each with its own environment in the ledger."""
    async with doubled() as (run, _):
        await run.hooked()
        asked = [run.send(Restart(who, {"WHO": who})) for who in ("anna", "bert")]
        assert all(done.ok for done in await asyncio.gather(*asked))
        assert [attempt.cause for attempt in run.state.attempts] == ["launch", "restart", "restart"]
        assert [attempt.env_diff["WHO"] for attempt in run.state.attempts[1:]] == ["anna", "bert"]


async def test_stop_and_restart_at_once() -> None:
    """Whatever comes first, the run ends, and both are answered."""
    async with doubled() as (run, _):
        await run.hooked()
        asked = (run.send(Restart("restart")), run.send(Stop("stop", grace_s=2.0)))
        _, stopped = await asyncio.gather(*asked)
        assert stopped.ok
        assert run.state.phase is RunPhase.STOPPED


@pytest.mark.real
@pytest.mark.torch
def test_stop_while_torch_is_imported(world: World) -> None:
    """Before any rank is there: stopped, without a traceback."""
    run = world.ddp()
    run.stop("--grace", "5").fine()
    status = run.status()
    assert status["state"] == "stopped"
    assert not run.marked()
    assert "Traceback" not in run.file("runner.log").decode()
    assert "Traceback" not in run.file("agent.log").decode()
    assert run.wait() == 1


@pytest.mark.real
def test_stop_twice_at_once(world: World) -> None:
    """Both are told that it has stopped, or that it had."""
    run = world.execute(UP)
    assert run.wait("running") == 0
    asked = [world.start("stop", run.id, "--yes") for _ in range(3)]
    codes = []
    for one in asked:
        _, err = one.communicate(timeout=HANG_S)
        assert b"Traceback" not in err
        codes.append(one.returncode)
        assert one.returncode == 0 or b"has ended" in err, err
    assert 0 in codes
    assert run.status()["state"] == "stopped"
    assert len(run.of("RunEnded")) == 1


@pytest.mark.real
def test_the_agent_dies_while_it_stops_the_run(world: World) -> None:
    """What was begun is finished by who asked for it, without the agent."""
    run = world.execute(LEAVES_LATE, "--grace", "60")
    assert run.wait("running") == 0
    assert until(lambda: run.file("node-0/attempt-001/rank-0.out"))
    stop = world.start("stop", run.id, "--yes")
    assert until(lambda: b"stop requested" in run.file("journal.jsonl"))
    kill(run.agent_pid())
    (world.work / "go").touch()
    _, err = stop.communicate(timeout=HANG_S)
    assert stop.returncode == 0, err
    assert run.status()["state"] == "stopped"
    assert not run.marked()


def test_refused_variables_change_nothing(world: World) -> None:
    run = write(world, "exec", "--", "true", attempts=[Attempt(outcome=None)])
    before = run.file("journal.jsonl")
    for words in (
        ["--env", "RANK=3"],
        ["--env", "DISTUI_RUN_ID=x"],
        ["--env", "novalue"],
        ["--unset", "WORLD_SIZE"],
    ):
        run.distui("restart", "--yes", *words).refused(2, words[1].partition("=")[0])
    run.distui("restart").refused(2, "--yes")
    run.distui("stop").refused(2, "--yes")
    assert run.file("journal.jsonl") == before
