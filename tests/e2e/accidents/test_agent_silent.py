"""The agent, the runner or both are stopped (SIGSTOP): stop works all the same, and other verbs name the process."""

from __future__ import annotations

import os
import signal

import pytest

from ..runs import DISTUI, Run, World, kill, until
from ..screen import Screen

COUNT = "import time\nfor n in range(100000):\n    print(n, flush=True)\n    time.sleep(0.05)\n"


def stopped(run: Run) -> None:
    """It is recorded as stopped, and nothing of it is left."""
    assert not run.marked()
    assert run.status()["state"] == "stopped"
    told = run.events()
    assert [one["seq"] for one in told] == list(range(1, len(told) + 1))
    assert len(run.of("RunEnded")) == 1
    assert run.status()["attempts"][-1]["outcome"] == "stopped"


@pytest.mark.real
@pytest.mark.parametrize(
    "which", ["both", *(pytest.param(one, marks=pytest.mark.long) for one in ("agent", "runner"))]
)
def test_stop_with_stopped_processes(world: World, which: str) -> None:
    run = world.execute(COUNT)
    assert run.wait("running") == 0
    if which != "agent":
        os.kill(run.runner_pid(), signal.SIGSTOP)
    if which != "runner":
        os.kill(run.agent_pid(), signal.SIGSTOP)
    done = run.stop("--grace", "3")
    assert done.code == 0, (done, run.describe())
    if which != "runner":
        assert f"pid {run.agent_pid()}" in done.err, done.err
        assert "without the agent" in done.err, done.err
    stopped(run)


@pytest.mark.long
def test_stop_where_the_agent_is_gone_and_the_rank_stopped(world: World) -> None:
    run = world.execute(COUNT)
    assert run.wait("running") == 0
    (rank,) = run.pids()
    os.kill(rank, signal.SIGSTOP)
    kill(run.agent_pid())
    assert run.stop("--grace", "2").code == 0
    stopped(run)


@pytest.mark.real
@pytest.mark.parametrize(
    "verb", ["status", *(pytest.param(one, marks=pytest.mark.long) for one in ("restart", "logs"))]
)
def test_a_stopped_agent_is_named(world: World, verb: str) -> None:
    """Also the state, and both remedies; `ls` needs no agent."""
    run = world.execute(COUNT)
    assert run.wait("running") == 0
    agent = run.agent_pid()
    os.kill(agent, signal.SIGSTOP)
    words = ("--yes",) if verb == "restart" else ()
    said = run.distui(verb, *words).refused(4, f"pid {agent}", "state T", f"kill -CONT {agent}")
    assert f"kill -KILL {agent}" in said
    assert run.name in world.distui("ls").fine().out
    os.kill(agent, signal.SIGCONT)
    assert run.status()["state"] == "running"
    pids = run.pids()
    os.kill(agent, signal.SIGSTOP)
    kill(agent)
    assert run.pids() == pids, "the next command starts another agent"
    run.stop().fine()


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
def test_the_cockpit_stops_a_run_whose_agent_does_not_answer(world: World, number: signal.Signals) -> None:
    """Also where the agent was stopped after the cockpit had connected, as it always is here."""
    run = world.execute(COUNT)
    assert run.wait("running") == 0
    screen = Screen([DISTUI, "attach", run.id], world.env, world.work)
    try:
        screen.until("RUNNING")
        kill(run.agent_pid(), number)
        screen.press("x")
        screen.until("Stop job?")
        screen.press("y")
        assert until(lambda: not screen.read(0.05) or not run.marked()), screen.text
        screen.until("STOPPED")
    finally:
        screen.close()
    stopped(run)


@pytest.mark.long
def test_the_cockpit_names_an_agent_that_was_stopped(world: World) -> None:
    """Of a command that only the agent can do."""
    run = world.execute(COUNT)
    assert run.wait("running") == 0
    agent = run.agent_pid()
    screen = Screen([DISTUI, "attach", run.id], world.env, world.work)
    try:
        screen.until("RUNNING")
        os.kill(agent, signal.SIGSTOP)
        screen.press("r")
        screen.until("Restart 1 rank of job?")
        screen.press("y")
        screen.until(lambda text: f"(pid {agent})" in text and "CONT" in text)
    finally:
        os.kill(agent, signal.SIGCONT)
        screen.close()
    run.stop().fine()
