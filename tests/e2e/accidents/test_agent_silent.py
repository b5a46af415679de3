"""The agent, the runner or both are stopped (SIGSTOP): stop works all the same, and other verbs name the process."""

from __future__ import annotations

import os
import signal

import pytest

from ..runs import DISTUI, Run, World, kill, until
from ..screen import Screen

COUNT = "import time\nfor n in range(100000):\n    print(n, flush=True)\n    time.sleep(0.05)\n"


def live(world: World) -> Run:
    run = world.execute(COUNT)
    assert run.wait("running") == 0
    return run


def stopped(run: Run) -> None:
    """It is recorded as stopped, and nothing of it is left."""
    assert not run.marked()
    assert run.status()["state"] == "stopped"
    told = run.events()
    assert [one["seq"] for one in told] == list(range(1, len(told) + 1))
    assert len(run.of("RunEnded")) == 1
    assert run.status()["attempts"][-1]["outcome"] == "stopped"


@pytest.mark.real
def test_stop_with_stopped_processes(world: World) -> None:
    """A stopped agent is named with its state and both remedies; `ls` needs none, and `stop` no runner either."""
    run = live(world)
    agent, pids = run.agent_pid(), run.pids()
    os.kill(agent, signal.SIGSTOP)
    said = run.distui("status").refused(4, f"pid {agent}", "state T", f"kill -CONT {agent}")
    assert f"kill -KILL {agent}" in said
    assert run.name in world.distui("ls").fine().out
    os.kill(agent, signal.SIGCONT)
    assert run.status()["state"] == "running"
    os.kill(agent, signal.SIGSTOP)
    kill(agent)
    assert run.pids() == pids, "the next command starts another agent"
    for pid in (run.runner_pid(), run.agent_pid()):
        os.kill(pid, signal.SIGSTOP)
    done = run.stop("--grace", "3")
    assert done.code == 0, (done, run.describe())
    assert f"pid {run.agent_pid()}" in done.err, done.err
    assert "without the agent" in done.err, done.err
    stopped(run)


@pytest.mark.real
def test_a_stopped_runner_is_asked_for_no_restart_and_obeys_a_stop(world: World) -> None:
    run = live(world)
    runner, pids = run.runner_pid(), run.pids()
    os.kill(runner, signal.SIGSTOP)
    said = run.distui("restart", "--yes").refused(1, f"pid {runner}", f"kill -CONT {runner}")
    assert "no command was sent" in said
    assert (run.status()["attempt"], run.pids()) == (1, pids)
    assert run.stop("--grace", "3").code == 0
    stopped(run)


@pytest.mark.long
def test_the_cockpit_names_a_stopped_agent_and_stops_its_run(world: World) -> None:
    """It had connected before; a restart only the agent can do, a stop goes without it."""
    run = live(world)
    agent = run.agent_pid()
    screen = Screen([DISTUI, "attach", run.id], world.env, world.work)
    try:
        screen.until("RUNNING")
        os.kill(agent, signal.SIGSTOP)
        screen.press("r")
        screen.until("Restart 1 rank of job?")
        screen.press("y")
        screen.until(lambda text: f"(pid {agent})" in text and "CONT" in text)
        screen.press("x")
        screen.until("Stop job?")
        screen.press("y")
        assert until(lambda: not screen.read(0.05) or not run.marked()), screen.text
        screen.until("STOPPED")
    finally:
        screen.close()
    stopped(run)
