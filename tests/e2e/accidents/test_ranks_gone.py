"""Ranks that die, will not die, hide, or hang."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ..runs import DISTUI, World, alive, gone, until
from ..screen import Screen

STUBBORN = (
    "import signal, time\n"
    "signal.signal(signal.SIGTERM, lambda *_: print('not me', flush=True))\n"
    "print('up', flush=True)\n"
    "while True:\n    time.sleep(0.1)\n"
)

DAEMON = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for n in range(3):
            os.close(n)
        time.sleep(600)
    os._exit(0)
os.wait()
print('up', flush=True)
time.sleep(600)
"""

STUCK = """
import ctypes, os, sys, time
import torch.distributed as dist
dist.init_process_group("gloo")
def stuck_in_c():
    libc, mutex = ctypes.PyDLL(None), ctypes.create_string_buffer(64)
    libc.pthread_mutex_lock(mutex)
    print("up", flush=True)
    libc.pthread_mutex_lock(mutex)  # waits for itself, keeps the GIL, and no signal ends it
if dist.get_rank() == 1:
    stuck_in_c()
print("up", flush=True)
time.sleep(600)
"""


UNMARKED = """
import subprocess, time
print(subprocess.Popen(["env", "-i", "sleep", "600"], start_new_session=True).pid, flush=True)
time.sleep(600)
"""


LAUNCHES = """
import subprocess, time
subprocess.run(["{}", "exec", "--name", "inner", "--", "sleep", "600"])
time.sleep(600)
"""


@pytest.mark.real
def test_one_that_ignores_sigterm(world: World) -> None:
    """Grace, then SIGKILL."""
    run = world.execute(STUBBORN)
    assert run.wait("running") == 0
    assert until(lambda: run.file("node-0/attempt-001/rank-0.out"))
    (pid,) = run.pids()
    began = time.monotonic()
    run.stop("--grace", "2").fine()
    assert time.monotonic() - began >= 2, "it has its grace"
    assert not alive(pid)
    assert b"not me" in run.file("node-0/attempt-001/rank-0.out"), "it was asked first"
    assert run.status()["state"] == "stopped"
    assert not run.marked()


@pytest.mark.real
def test_a_daemonised_grandchild(world: World) -> None:
    """It has left its session, its parent and its descriptors; the marker in its environment remains."""
    run = world.execute(DAEMON)
    assert run.wait("running") == 0
    assert until(lambda: run.file("node-0/attempt-001/rank-0.out"))
    hidden = [
        pid
        for pid in run.marked()
        if os.getsid(pid) not in (os.getsid(run.pids()[0]), os.getsid(run.runner_pid()))
    ]
    assert hidden
    run.stop("--grace", "2").fine()
    assert not any(alive(pid) for pid in hidden)
    assert not run.marked()


@pytest.mark.long
def test_a_grandchild_outlives_its_job(world: World) -> None:
    """The same where nobody stops the run: its end is the end of all of it."""
    run = world.execute(
        DAEMON.replace("time.sleep(600)\n", "time.sleep(600)\n", 1).rsplit("time.sleep", 1)[0]
    )
    assert run.wait() == 0
    assert not run.marked()


@pytest.mark.long
@pytest.mark.parametrize("agent", ["stopped", "lives"])
def test_a_child_without_the_marker(world: World, agent: str) -> None:
    """It has left its session and dropped its whole environment; it is a child of a rank all the same."""
    run = world.execute(UNMARKED)
    assert run.wait("running") == 0
    assert until(lambda: b"\n" in run.file("node-0/attempt-001/rank-0.out"))
    child = int(run.file("node-0/attempt-001/rank-0.out"))
    assert child not in run.marked()
    if agent == "stopped":
        os.kill(run.agent_pid(), signal.SIGSTOP)
    run.stop("--grace", "2").fine()
    assert not alive(child)


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


@pytest.mark.long
@pytest.mark.torch
def test_a_signal_to_a_rank_that_has_ended(world: World) -> None:
    """It is refused, and reaches nobody: not the agent's own group, which pid 0 would mean."""
    text = "import os, time\nprint('up', flush=True)\nif os.environ['RANK'] == '0':\n    time.sleep(600)\n"
    run = world.run(
        "launch", "ddp", "--nproc-per-node", "2", "--grace", "1", "--", world.script("one_ends.py", text)
    )
    run.eventually(lambda now: [rank["state"] for rank in now["ranks"]] == ["running", "succeeded"])
    agent = run.agent_pid()
    run.distui("signal", "TERM", "--rank", "1", "--yes").refused(1, "There is no running rank 1")
    assert alive(agent)
    assert run.status()["ranks"][0]["state"] == "running"
    run.stop().fine()


@pytest.mark.long
@pytest.mark.torch
def test_stacks_of_a_rank_stuck_in_c(world: World) -> None:
    """Its Python cannot run, so its hook is silent: the signal's handler in C answers."""
    script = world.script("stuck.py", STUCK)
    run = world.run("launch", "ddp", "--nproc-per-node", "2", "--grace", "2", "--", script)
    assert run.wait("running") == 0
    assert until(lambda: all(run.file(f"node-0/attempt-001/rank-{rank}.out") for rank in (0, 1)))
    said = run.distui("dump", "stacks", "--raw").fine().out
    assert "--- rank 0" in said
    stuck = said[said.index("--- rank 1") :]
    assert "stuck_in_c" in stuck, said
    assert "stuck.py" in stuck
    assert "stuck_in_c" in run.distui("dump", "stacks", "--rank", "1", "--json").fine().json()["data"]["1"]
    assert all(alive(pid) for pid in run.pids())
    run.distui("dump", "stacks", "--rank", "7").refused(2, "There is no rank 7")
    run.stop("--grace", "2").fine()
    assert not run.marked()


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
    run.world.distui("signal", run.name).refused(2, "Which signal?", f"distui signal {run.name} USR1")
    run.world.distui("nccl", run.name).refused(2, "Which level?", f"distui nccl {run.name} INFO")
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
    run.distui("signal", "USR2", "--yes").fine()
    assert run.wait() == 1
    assert run.status()["attempts"][0]["first_cause"]["signal"] == "SIGUSR2"
    run.distui("signal", "USR1").refused(1, "has ended")


@pytest.mark.long
def test_a_signal_is_asked_about_by_what_the_rank_does_with_it(world: World) -> None:
    """On a terminal, and no changes nothing."""
    run = world.execute("import time\nprint('up', flush=True)\ntime.sleep(600)\n", "--restarts", "0")
    assert run.wait("running") == 0
    assert until(lambda: run.file("node-0/attempt-001/rank-0.out"))
    for answer, code in (("n", 1), ("y", 0)):
        assert run.status()["ranks"][0]["state"] == "running"
        screen = Screen((DISTUI, "signal", run.id, "USR1"), world.env, world.work)
        try:
            screen.until("USR1 ends rank 0, which has no handler for it. Really? [y/N]")
            screen.press(answer, "enter")
            assert screen.ended() == code, screen.text
        finally:
            screen.close()
    assert run.wait() == 1
    assert run.status()["attempts"][0]["first_cause"]["signal"] == "SIGUSR1"


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


@pytest.mark.long
def test_the_interpreter_is_gone_at_a_restart(world: World) -> None:
    """What could be started once may be missing later: the run fails with a sentence."""
    tool = world.work / "tool"
    tool.write_text("#!/bin/sh\necho up\nsleep 600\n")
    tool.chmod(0o755)
    run = world.run("exec", "--name", "tool", "--", str(tool))
    assert run.wait("running") == 0
    tool.unlink()
    done = run.distui("restart", "--yes")
    done.refused(1, str(tool), "No such file")
    status = run.status()
    assert status["state"] == "failed"
    assert str(tool) in status["text"]
    assert not run.marked()
    assert gone(run.agent_pid())
