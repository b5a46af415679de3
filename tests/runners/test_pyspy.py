"""Stacks from outside: real processes without a hook, real py-spy, and what is said where it cannot be used."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from patience import slowness

from distui.runners.agent import pulses, pyspy
from distui.runners.agent.hook_clients import HookClient, HookError, HookRefusal, Hooks
from distui.runners.agent.processes import state_of
from distui.runners.agent.pulses import Pulses
from distui.runners.agent.pyspy import PySpy, PySpyError, Unseen, alike, find, read, spoken, stacks
from distui.runners.diagnosis.rank_dumps import main_frames, threads
from distui.runners.model import RankChanged, RankPhase, Site
from distui.runners.state import RunState
from distui.runners.telemetry.proc import read_stat

pytestmark = pytest.mark.timeout(30)

SLEEPS = """
import sys, threading, time
def load(event, main=threading.get_ident()):
    while sys._current_frames()[main].f_code.co_name != "doze": time.sleep(0.01)
    print("here", flush=True); event.wait()
threading.Thread(target=load, args=(threading.Event(),), name="loader [0]", daemon=True).start()
class Trainer:
    def doze(self):
        time.sleep(600)
Trainer().doze()
"""
SPINS = """
def spin():
    print("here", flush=True)
    while True:
        pass
spin()
"""
Start = Callable[..., int]


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also on a busy machine py-spy is done in time."""
    monkeypatch.setattr(pyspy, "LIMIT_S", pyspy.LIMIT_S * slowness())


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a script by `python -I` and wait until it is where it stays; its pid."""
    made: list[subprocess.Popen[bytes]] = []

    def begin(text: str, python: str = sys.executable) -> int:
        script = tmp_path / "job.py"
        script.write_text(text)
        made.append(subprocess.Popen([python, "-I", str(script)], stdout=subprocess.PIPE))
        assert made[-1].stdout is not None
        assert made[-1].stdout.readline() == b"here\n"
        return made[-1].pid

    yield begin
    for process in made:
        process.kill()
        process.communicate()


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An interpreter that has no py-spy beside it, and a PATH without one."""
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.symlink_to(os.path.realpath(sys.executable))
    monkeypatch.setenv("PATH", str(python.parent))
    return str(python)


def hookless(pid: int) -> HookClient:
    """The hook of a rank that never connects."""
    return HookClient(Path("/nowhere"), RankChanged(1, 0, RankPhase.RUNNING, 0, pid), lambda event: None)


def stop(pid: int) -> None:
    """Stop a child of this process, and wait until it is."""
    os.kill(pid, signal.SIGSTOP)
    os.waitid(os.P_PID, pid, os.WSTOPPED)


def program(directory: Path, text: str) -> None:
    """A `py-spy` of the test's in this directory."""
    file = directory / "py-spy"
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o755)


@pytest.mark.real
async def test_a_process_that_sleeps_is_read_as_faulthandler_would_tell_it(start: Start) -> None:
    pid = start(SLEEPS)
    seen = await PySpy().dump(pid)
    job = seen.sites()[0].file
    assert seen.sites() == (Site(job, 9, "doze"), Site(job, 10, "<module>"))
    text = seen.text()
    assert main_frames(text) == (f"{job}:9 doze", f"{job}:10 <module>")
    loader, main = threads(text)
    assert loader.label.endswith("[loader [0]]")
    assert f"{job}:5 load" in loader.frames
    assert main.label.endswith("[MainThread]")


@pytest.mark.real
async def test_a_process_that_runs_is_read_and_goes_on(start: Start) -> None:
    pid = start(SPINS)
    seen = await PySpy().dump(pid)
    assert seen.sites()[0].name == "spin"
    assert state_of(pid) == "R"


@pytest.mark.real
async def test_a_stopped_process_is_read_and_stays_stopped(start: Start) -> None:
    pid = start(SLEEPS)
    stop(pid)
    assert (await PySpy().dump(pid)).sites()[0].name == "doze"
    assert state_of(pid) == "T"


@pytest.mark.real
async def test_who_asks_again_gets_the_one_before(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    pid, spy = start(SLEEPS), PySpy()
    first = await spy.dump(pid)
    assert await spy.dump(pid) is first
    monkeypatch.setattr(pyspy, "EVERY_S", 0.0)
    assert await spy.dump(pid) is not first


@pytest.mark.real
async def test_one_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: Start) -> None:
    program(tmp_path, f'mkdir "{tmp_path}/lock" || exit 1\nsleep 0.2\nrmdir "{tmp_path}/lock"\necho "[]"')
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    spy, pids = PySpy(), [start(SLEEPS), start(SLEEPS), start(SLEEPS)]
    said = await asyncio.gather(*(spy.dump(pid) for pid in pids), return_exceptions=True)
    assert {str(one) for one in said} == {"py-spy found no thread that runs Python"}


@pytest.mark.real
async def test_who_does_not_end_is_ended_and_the_rank_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: Start
) -> None:
    pid = start(SPINS)
    program(tmp_path, f"kill -STOP {pid}\necho $$ > {tmp_path}/pid\nexec sleep 60")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    limit, pid_file = asyncio.Timeout(None), tmp_path / "pid"  # it ends once the program is there
    with monkeypatch.context() as patched:
        patched.setattr(asyncio, "timeout", lambda seconds: limit)
        asking = asyncio.create_task(PySpy().dump(pid))
        await asyncio.sleep(0)
    async with asyncio.timeout(20 * slowness()):
        while not pid_file.exists() or not pid_file.read_text() or state_of(pid) != "T":
            await asyncio.sleep(0.01)
    limit.reschedule(asyncio.get_running_loop().time())
    with pytest.raises(PySpyError, match=rf"py-spy was not done within {pyspy.LIMIT_S:g} s"):
        await asking
    assert state_of(pid) == "R"
    assert state_of(int((tmp_path / "pid").read_text())) is None


@pytest.mark.real
async def test_it_is_found_beside_the_interpreter(start: Start, elsewhere: str) -> None:
    pid = start(SLEEPS, elsewhere)
    assert find(pid) is None
    program(Path(elsewhere).parent, "exit 1")
    assert find(pid) == str(Path(elsewhere).with_name("py-spy"))


@pytest.mark.real
async def test_without_it_what_is_missing_is_said(start: Start, elsewhere: str) -> None:
    with pytest.raises(Unseen) as raised:
        await stacks(hookless(start(SLEEPS, elsewhere)), PySpy(), {})
    assert str(raised.value) == (
        "rank 0 has no hook (a launcher itself, with --no-hook or python -I, or without torch), "
        "and py-spy is not on PATH nor beside its Python (pip install py-spy)"
    )


@pytest.mark.real
@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="needs root to have less")
async def test_without_the_right_to_trace_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: Start
) -> None:
    pid = start(SLEEPS)
    real = tmp_path / "real"
    shutil.copy(find(pid) or "", real)
    tmp_path.chmod(0o755)
    program(
        tmp_path,
        f'exec setpriv --bounding-set=-sys_ptrace --inh-caps=-all --reuid 65534 --clear-groups {real} "$@"',
    )
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    for parent in (tmp_path.parent, tmp_path.parent.parent):
        parent.chmod(0o755)
    with pytest.raises(PySpyError, match="may not trace it: that needs root, CAP_SYS_PTRACE"):
        await PySpy().dump(pid)


@pytest.mark.real
async def test_what_is_no_python_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    other = await asyncio.create_subprocess_exec("sleep", "60")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    with pytest.raises(PySpyError, match=r"^py-spy failed: .*python"):
        await PySpy().dump(other.pid)
    other.kill()
    await other.wait()


@pytest.mark.real
async def test_of_a_rank_that_is_gone_only_that_is_said() -> None:
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", "")
    await process.wait()
    with pytest.raises(HookError) as raised:
        await stacks(hookless(process.pid), PySpy(), {})
    assert "py-spy" not in str(raised.value)


@pytest.mark.real
async def test_an_old_answer_tells_its_age(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    old: dict[int, float] = {}
    spy, pid = PySpy(), start(SLEEPS)
    assert "in doze" in await stacks(hookless(pid), spy, old)
    assert old == {}
    later, seen = time.monotonic() + 12.0, spy._seen[pid].at
    monkeypatch.setattr(time, "monotonic", lambda: later)
    assert "in doze" in await stacks(hookless(pid), spy, old)
    assert old[0] == later - seen > 11.0


def test_the_same_reason_is_said_once() -> None:
    gone, absent, forbidden = (
        HookError("rank 2 is gone"),
        PySpyError("it is absent"),
        PySpyError("it may not"),
    )
    zero, one = (Unseen(HookError(f"rank {rank} has no hook"), absent) for rank in (0, 1))
    assert spoken([zero, one, gone]) == [
        "rank 0 has no hook",
        "rank 1 has no hook, and it is absent",
        "rank 2 is gone",
    ]
    other = Unseen(HookError("rank 1 is mute"), forbidden)
    assert spoken([zero, other]) == [
        "rank 0 has no hook, and it is absent",
        "rank 1 is mute, and it may not",
    ]
    assert spoken([gone]) == ["rank 2 is gone"]


def test_what_cannot_be_read_is_refused() -> None:
    with pytest.raises(PySpyError, match="cannot be read"):
        read(b"{", 1)
    worker = {"thread_id": 1, "thread_name": "worker", "os_thread_id": 8, "frames": []}
    with pytest.raises(PySpyError, match="main thread"):
        read(json.dumps([worker]).encode(), 7)
    main = {
        "thread_id": 2,
        "thread_name": "MainThread",
        "os_thread_id": None,
        "frames": [{"name": "a.b", "filename": "x"}],
    }
    seen = read(json.dumps([main, worker]).encode(), 7)
    assert seen.sites() == (Site("x", 0, "b"),)
    assert main_frames(seen.text()) == ("x:??? b",)


async def pulse_with_a_stack(taking: Pulses, pids: dict[int, int]) -> tuple[Site, ...]:
    """The stack of rank 0 as soon as a look has one."""
    async with asyncio.timeout(15 * slowness()):
        while True:
            pulse: Any = (await taking.take(pids))[0]
            if pulse.stack:
                return tuple(pulse.stack)
            await asyncio.sleep(0.1)


def without_hooks() -> Pulses:
    """Of ranks none of which has a hook."""
    hooks = Hooks(Path("/nowhere"), "/nowhere/h", lambda event: None)
    return Pulses(RunState(), hooks, lambda event: None)


async def until_done(spy: PySpy) -> None:
    """Wait for the look that is under way."""
    assert spy._task is not None
    await spy._task


@pytest.mark.real
async def test_the_pulse_of_a_rank_without_a_hook_that_stands_still_has_a_stack(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pulses, "STILL_S", 0.5)
    taking, pid = without_hooks(), start(SLEEPS)
    assert (await pulse_with_a_stack(taking, {0: pid}))[0].name == "doze"
    await taking.spy.close()


def cpu_of(pid: int) -> float:
    """Processor seconds of a process so far."""
    stat = read_stat(pid)
    assert stat is not None
    return stat.cpu_s


@pytest.mark.real
async def test_who_works_is_left_alone(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulses, "STILL_S", 0.5)
    pid = start(SPINS)
    for _ in range(5):
        taking, stalled = without_hooks(), False
        until, cpu_s = time.monotonic() + 1.5, -1.0
        while time.monotonic() < until and not stalled:
            stack = (await taking.take({0: pid}))[0].stack
            before, cpu_s = cpu_s, cpu_of(pid)
            stalled = (
                cpu_s == before
            )  # it was not given the processor: nobody can tell that from standing still
            assert stack == () or stalled
            await asyncio.sleep(0.3)
        if not stalled:
            break
        await taking.spy.close()
    assert taking.spy._seen == {}
    taking._waiting = True  # as a rank beside it does
    await taking.take({0: pid})
    await until_done(taking.spy)
    assert taking.spy.sites(pid, True)[0].name == "spin"
    assert taking.spy.sites(pid, False) == ()
    assert taking.spy.sites(pid, True) == ()  # what it did before it moved is no answer
    await taking.spy.close()


def test_what_several_ranks_answer_alike_is_one_sentence() -> None:
    refused = [HookRefusal(rank, "there is no {group}") for rank in (0, 1)]
    clauses = alike([*refused, HookError("rank 2 is gone")])
    assert [clause.words() for clause in clauses] == ["ranks 0, 1: there is no {group}", "rank 2 is gone"]
