"""The agent, a viewer or the terminal is gone: training goes on, and whoever looks next sees everything."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import signal
import subprocess
import sys
import termios
from pathlib import Path
from typing import Any

import pytest
from patience import HANG_S

from ..runs import DISTUI, Run, World, alive, gone, kill, until
from ..written import Attempt, write

COUNT = "import time\nfor n in range(100000):\n    print(n, flush=True)\n    time.sleep(0.05)\n"


def printed(run: Run) -> int:
    """Lines of the job so far, read from its file: no agent is asked."""
    return len(run.file("node-0/attempt-001/rank-0.out").splitlines())


def goes_on(run: Run) -> bool:
    """Whether the job prints further lines."""
    before = printed(run)
    return until(lambda: printed(run) > before)


def whole(told: list[dict[str, Any]]) -> None:
    """Every event once, in order, with no number left out."""
    assert [one["seq"] for one in told] == list(range(1, len(told) + 1))


@pytest.mark.real
def test_agent_killed(world: World) -> None:
    """Three times over, once while a command runs: same pids, same attempt, nothing lost, nothing doubled."""
    run = world.execute(COUNT)
    assert run.wait("running") == 0
    pids, runner, first = run.pids(), run.runner_pid(), run.agent_pid()
    seen, agents = run.events(), [first]
    for _ in range(2):
        kill(agents[-1])
        assert goes_on(run), "the job goes on without an agent"
        status = run.status()
        assert (status["state"], status["attempt"]) == ("running", 1)
        assert run.pids() == pids
        assert run.runner_pid() == runner
        agents.append(run.agent_pid())
        assert agents[-1] not in agents[:-1]
        told = run.events()
        whole(told)
        assert told[: len(seen)] == seen, "what was told stays as it was told"
        seen = told
    adoptions = [event for event in run.of("AgentStarted") if event.get("adopted")]
    assert [event["pid"] for event in adoptions] == agents[1:]
    run.stop().fine()
    whole(run.events())
    assert len(run.of("RunEnded")) == 1
    assert not run.marked()


@pytest.mark.real
def test_the_job_ends_while_no_agent_is_there(world: World) -> None:
    """The runner's file tells the next agent what happened meanwhile."""
    run = world.execute(
        "import pathlib, sys, time\nwhile not pathlib.Path('go').exists():\n    time.sleep(0.02)\nsys.exit(7)\n"
    )
    assert run.wait("running") == 0
    runner = run.runner_pid()
    kill(run.agent_pid())
    (world.work / "go").touch()
    assert gone(runner), "the runner ends by itself"
    assert run.wait() == 1
    status = run.status()
    assert (status["state"], status["exit_code"]) == ("failed", 7)
    assert status["attempts"][0]["outcome"] == "failed"
    whole(run.events())


@pytest.mark.long
def test_two_viewers_start_one_agent(world: World) -> None:
    """Whoever finds no agent starts one; the second waits for the first one's."""
    run = world.execute(COUNT)
    assert run.wait("running") == 0
    kill(run.agent_pid())
    looking = [world.start("status", run.id, "--json") for _ in range(4)]
    for look in looking:
        out, err = look.communicate(timeout=HANG_S)
        assert look.returncode == 0, err
        assert json.loads(out)["state"] == "running"
    whole(run.events())
    assert len(run.of("AgentStarted")) == 2


@pytest.mark.long
def test_sigterm_to_the_agent(world: World) -> None:
    """It goes quietly and leaves the run as it is, like a kill, also while somebody looks."""
    run = world.execute(COUNT)
    assert run.wait("running") == 0
    pids, agent = run.pids(), run.agent_pid()
    viewer = world.start("events", run.id, "-f", "--json")
    assert viewer.stdout is not None
    assert viewer.stdout.readline()
    os.kill(agent, signal.SIGHUP)
    os.kill(agent, signal.SIGINT)
    assert run.agent_pid() == agent
    os.kill(agent, signal.SIGTERM)
    assert gone(agent)
    assert "Traceback" not in run.file("agent.log").decode()
    assert run.status()["state"] == "running"
    assert run.pids() == pids
    whole(run.events())
    viewer.kill()
    viewer.communicate()


@pytest.mark.long
def test_a_killed_viewer(world: World) -> None:
    """SIGKILL to whoever follows: the agent forgets it, and serves the next."""
    run = world.execute(COUNT)
    viewers = [world.start("events", run.id, "-f", "--json"), world.start("logs", run.id, "-f")]
    for viewer in viewers:
        assert viewer.stdout is not None
        assert viewer.stdout.readline()
    agent = run.agent_pid()
    for viewer in viewers:
        viewer.kill()
        viewer.communicate()
    assert alive(agent)
    assert run.status()["state"] == "running"
    assert run.agent_pid() == agent
    run.stop().fine()
    assert gone(agent), "nobody looks any more, so it goes"


@pytest.mark.real
def test_the_terminal_is_closed(world: World) -> None:
    """SIGHUP to everything on the terminal that launched: the run goes on."""
    script = world.script("count.py", COUNT)
    master, slave = pty.openpty()
    shell = subprocess.Popen(
        ["bash", "-ic", f"{DISTUI} exec --name tty -- {sys.executable} {script}; true"],
        stdin=slave, stdout=slave, stderr=slave, env={**world.env, "TERM": "xterm-256color"},
        cwd=world.work, start_new_session=True, preexec_fn=_controlling,  # noqa: PLW1509 (one thread)
    )  # fmt: skip
    os.close(slave)
    assert until(lambda: list(world.runs.glob("*/runner.json")))
    path = next(world.runs.glob("*/runner.json")).parent
    run = Run(world, path.name, "tty", path)
    assert run.wait("running") == 0
    pids = run.pids()
    os.close(master)  # the kernel hangs up
    assert shell.wait(HANG_S) is not None
    viewers = [pid for pid, line in world.processes().items() if "exec --name tty" in line]
    assert all(gone(pid) for pid in viewers), "the cockpit goes with its terminal"
    assert goes_on(run)
    assert run.pids() == pids
    assert run.status()["state"] == "running"


def _controlling() -> None:
    """Make stdin the controlling terminal of this new session, as a login does."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def test_a_read_only_look_leaves_no_trace(world: World) -> None:
    """An ended run is read from its files: no agent is started for it."""
    run = write(world, "exec", "--", "true", attempts=[Attempt(out="done\n")])
    before = {path: path.stat().st_mtime_ns for path in Path(run.path).rglob("*") if path.is_file()}
    run.status()
    run.events()
    assert "done" in run.distui("logs").fine().out
    done = run.stop()
    assert done.code == 1
    assert "has ended" in done.err
    assert {path: path.stat().st_mtime_ns for path in Path(run.path).rglob("*") if path.is_file()} == before
