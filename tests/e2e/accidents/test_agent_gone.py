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
import time
from pathlib import Path
from typing import Any

import pytest
from patience import HANG_S

from ..runs import DISTUI, Run, World, gone, kill, until
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
    """By SIGKILL and by SIGTERM: same pids, same attempt, no event lost or doubled; several viewers start one agent."""
    run = world.execute(COUNT)
    assert run.wait("running") == 0
    pids, runner, first = run.pids(), run.runner_pid(), run.agent_pid()
    for number in (signal.SIGHUP, signal.SIGINT):
        os.kill(first, number)
    assert run.status()["agent_pid"] == first, "a terminal that closes or a Ctrl-C does not end it"
    seen, agents = run.events(), [first]
    for number in (signal.SIGKILL, signal.SIGTERM):
        os.kill(agents[-1], number)
        assert gone(agents[-1])
        assert goes_on(run), "the job goes on without an agent"
        viewers = [world.start("status", run.id, "--json") for _ in range(3)]
        for viewer in viewers:
            out, err = viewer.communicate(timeout=HANG_S)
            assert viewer.returncode == 0, err
            status = json.loads(out)
            assert (status["state"], status["attempt"]) == ("running", 1)
        assert run.pids() == pids
        assert run.runner_pid() == runner
        agents.append(run.agent_pid())
        assert agents[-1] not in agents[:-1]
        told = run.events()
        whole(told)
        assert told[: len(seen)] == seen, "what was told stays as it was told"
        seen = told
    assert [event["pid"] for event in run.of("AgentStarted")] == agents
    run.stop().fine()


@pytest.mark.real
def test_an_attempt_that_ended_without_an_agent_took_as_long_as_it_ran(world: World) -> None:
    run = world.execute("import time; time.sleep(2)")
    assert run.wait("running") == 0
    kill(run.agent_pid())
    assert until(lambda: b"RunEnded" in run.file("runner.jsonl"))
    time.sleep(4.0)  # nobody looks
    assert run.wait() == 0
    (attempt,) = run.status()["attempts"]
    assert attempt["ended"] - attempt["began"] < 3.9
    assert attempt["lasted_s"] < 3.9
    whole(run.events())
    assert len(run.of("RunEnded")) == 1
    assert not run.marked()
    assert b"Traceback" not in run.file("agent.log")


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
