"""Ranks that die, will not die, hide, or hang."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from doubles.served import doubled

from distui.runners.run.commands import Signal
from distui.runners.run.model import RankPhase

from ..runs import DISTUI, World, alive, until

HIDES = """
import os, subprocess, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for n in range(3):
            os.close(n)
        time.sleep(600)
    os._exit(0)
os.wait()
"""
"""Leaves a daemon behind that only its environment gives away."""
STAYS = (
    HIDES
    + """
import signal
signal.signal(signal.SIGTERM, lambda *_: print("not me", flush=True))
bare = subprocess.Popen(["env", "-i", "sleep", "600"], start_new_session=True)
print(bare.pid, flush=True)
while True:
    time.sleep(0.1)
"""
)
"""Ignores SIGTERM, and has a child that left its session and dropped its environment."""


LAUNCHES = """
import subprocess, time
subprocess.run(["{}", "exec", "--name", "inner", "--", "sleep", "600"])
time.sleep(600)
"""


@pytest.mark.real
def test_one_that_ignores_sigterm_and_processes_that_hide(world: World) -> None:
    """Grace, then SIGKILL, for the rank, its daemon and its child."""
    run = world.execute(STAYS)
    assert run.wait("running") == 0
    out = "node-0/attempt-001/rank-0.out"
    assert until(lambda: b"\n" in run.file(out))
    child, marked, (rank,) = int(run.file(out)), run.marked(), run.pids()
    assert child not in marked
    sessions = [os.getsid(pid) for pid in (rank, run.runner_pid())]
    daemons = [pid for pid in marked if os.getsid(pid) not in sessions]
    assert daemons
    began = time.monotonic()
    run.stop("--grace", "2").fine()
    assert time.monotonic() - began >= 2, "it has its grace"
    assert b"not me" in run.file(out), "it was asked first"
    assert not any(alive(pid) for pid in (rank, child, *daemons))
    assert run.status()["state"] == "stopped"
    assert not run.marked()


@pytest.mark.long
def test_a_daemon_ends_with_its_job(world: World) -> None:
    """Also if nobody stops the run."""
    run = world.execute(HIDES)
    assert run.wait() == 0
    assert not run.marked()


@pytest.mark.long
def test_a_run_that_a_rank_launched_outlives_it(world: World) -> None:
    """Its agent is a descendant of the rank; it is a run of its own."""
    outer = world.execute(LAUNCHES.format(DISTUI), name="outer")
    assert until(lambda: "inner" in world.distui("ls").out)
    assert world.distui("wait", "inner", "--until", "running").code == 0
    outer.stop("--grace", "2").fine()
    assert "inner" in world.distui("ls").out
    assert world.distui("status", "inner", "--json").json()["state"] == "running"
    world.distui("stop", "inner", "--yes", "--grace", "2").fine()


async def test_a_signal_to_a_rank_that_has_ended() -> None:
    """It is refused, and reaches nobody: not the agent's own group, which pid 0 would mean."""
    async with doubled() as (run, runners):
        await run.hooked()
        runners.newest.exits(1)
        await run.until(lambda state: state.ranks[1].phase is RankPhase.SUCCEEDED)
        done = await run.send(Signal("s", "TERM", (1,)))
        assert (done.ok, done.text) == (False, "there is no running rank 1")
        assert run.state.ranks[0].phase is RankPhase.RUNNING


@pytest.mark.real
def test_signals(world: World) -> None:
    text = (
        "import signal, time\nsignal.signal(signal.SIGUSR1, lambda *_: print('heard', flush=True))\n"
        "print('up', flush=True)\nwhile True:\n    time.sleep(0.1)\n"
    )
    run = world.execute(text)
    assert run.wait("running") == 0
    out = "node-0/attempt-001/rank-0.out"
    assert until(lambda: run.file(out))
    run.distui("signal", "USR1").fine()
    assert until(lambda: b"heard" in run.file(out))
    run.distui("signal", "SIGNONSENSE").refused(2, "SIGNONSENSE")
    run.distui("signal", "USR1", "--rank", "3").refused(2, "no rank 3", "it has rank 0")
    run.distui("signal", "USR2").refused(2, "USR2 ends rank 0", "no handler", "--yes")
    run.distui("signal", "KILL").refused(2, "KILL ends rank 0", "--yes")
    run.world.distui("signal", run.name).refused(2, f"no signal {run.name}", "USR1")
    run.world.distui("nccl", run.name).refused(2, "is not a level of NCCL_DEBUG", "INFO")
    run.distui("nccl", "LOUD").refused(2, "LOUD", "TRACE")
    run.distui("dump", "stacks", "--rank", "42").refused(2, "no rank 42", "it has rank 0")
    run.distui("nccl", "INFO", "--rank", "42").refused(2, "no rank 42")
    run.distui("logs", "--rank", "77").refused(2, "rank 77", "rank 0")
    run.distui("logs", "--attempt", "9").refused(2, "attempt 9", "attempt 1")
    run.distui("logs", "--node", "4").refused(2, "node 4", "node 0")
    run.distui("wait", "--timeout", "0.2").refused(124, "Not done after 0.2 s")
    assert run.status()["ranks"][0]["state"] == "running", "none of these changed anything"
    run.distui("signal", "STOP").fine()
    run.distui("signal", "CONT").fine()
    run.distui("dump", "memory").refused(1, "no hook")
    asked = run.distui("signal", "USR2", terminal=True, stdin="n\n")
    assert "USR2 ends rank 0, which has no handler for it. Really? [y/N]" in asked.out + asked.err
    assert asked.code == 1
    assert run.status()["ranks"][0]["state"] == "running"
    run.distui("signal", "USR2", terminal=True, stdin="y\n").fine()
    assert run.wait() == 1
    assert run.status()["attempts"][0]["first_cause"]["signal"] == "SIGUSR2"
    run.distui("signal", "USR1").refused(1, "has ended")


@pytest.fixture
def cgroup() -> Iterator[Path]:
    """A memory cgroup of 48 MiB, to put a process into."""
    line = next(
        (line for line in Path("/proc/self/cgroup").read_text().splitlines() if ":memory:" in line), ""
    )
    base = Path("/sys/fs/cgroup/memory") / line.partition(":memory:")[2].lstrip("/")
    unified = Path("/sys/fs/cgroup")
    legacy = bool(line)
    group = (base if legacy else unified) / f"distui-test-{os.getpid()}"
    try:
        group.mkdir()
        limit = group / ("memory.limit_in_bytes" if legacy else "memory.max")
        limit.write_text(str(48 << 20))
    except OSError as error:
        with contextlib.suppress(OSError):
            group.rmdir()
        pytest.skip(f"no memory cgroup can be made here: {error}")
    try:
        yield group
    finally:
        assert until(lambda: not (group / "cgroup.procs").read_text())
        group.rmdir()


@pytest.mark.real
def test_killed_for_memory(world: World, cgroup: Path) -> None:
    """The report says that the kernel did it, and where the kernel says so."""
    text = (
        f"import pathlib\npathlib.Path({str(cgroup / 'cgroup.procs')!r}).write_text('0')\n"
        "hoard = []\nwhile True:\n    hoard.append(bytearray(b'x' * (1 << 20)))\n"
    )
    run = world.execute(text)
    assert run.wait() == 1
    cause = run.status()["attempts"][0]["first_cause"]
    assert cause["signal"] == "SIGKILL"
    if not os.access("/dev/kmsg", os.R_OK):
        pytest.skip("the kernel's log cannot be read here")
    assert cause["oom"], cause
    assert str(cause["pid"]) in cause["oom"]
    assert "memory" in run.status()["text"]
