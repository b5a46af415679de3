"""Stacks from outside: real processes without a hook, real py-spy, and what is said where it cannot be used."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import patience
import pytest
from owner import owner

from distui.runners.agent import pulses, pyspy
from distui.runners.agent.hook_clients import HookClient, HookError, HookRefusal, Hooks
from distui.runners.agent.process_samples import Outside
from distui.runners.agent.pulses import Pulses
from distui.runners.agent.pyspy import PySpy, PySpyError, Unseen, alike, find, read, spoken, stacks
from distui.runners.agent.rank_lines import RankLines
from distui.runners.diagnosis.stack_text import main_frames, threads
from distui.runners.run.model import RankChanged, RankPhase
from distui.runners.run.parts import in_background
from distui.runners.run.processes import state_of
from distui.runners.run.pulse import Site
from distui.runners.run.state import RunState

NOBODY = 4_200_000
"""Above the largest pid of Linux."""
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
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also on a busy machine py-spy is done in time."""
    monkeypatch.setattr(pyspy, "LIMIT_S", patience.HANG_S)


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
    change = RankChanged(1, 0, RankPhase.RUNNING, 0, pid)
    return HookClient(Path("/nowhere"), change, lambda event: None, lambda: None)


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
async def test_processes_are_read_as_faulthandler_would_tell_it_and_stay_as_they_were(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    stop(pid)
    assert (await PySpy().dump(pid)).sites()[0].name == "doze"
    assert state_of(pid) == "T"
    runs = start(SPINS)
    assert (await PySpy().dump(runs)).sites()[0].name == "spin"
    assert state_of(runs) == "R"
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    other = await asyncio.create_subprocess_exec("sleep", "60")
    with pytest.raises(PySpyError, match=r"^py-spy failed: .*python"):
        await PySpy().dump(other.pid)
    other.kill()
    await other.wait()


MAIN = json.dumps([{
    "thread_id": 1, "thread_name": "MainThread", "os_thread_id": None, "frames": [{"name": "doze", "filename": "x"}],
}])  # fmt: skip


class Program:
    """py-spy without a process: it takes a second, and counts how often it runs at once."""

    def __init__(self) -> None:
        self.running = self.most = self.runs = 0

    async def dump(self, program: str, pid: int) -> bytes:
        self.runs += 1
        self.running += 1
        self.most = max(self.most, self.running)
        await asyncio.sleep(1.0)
        self.running -= 1
        return MAIN.encode()


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Program:
    made = Program()
    monkeypatch.setattr(pyspy, "find", lambda pid: "py-spy")
    monkeypatch.setattr(pyspy, "_dump_json", made.dump)
    return made


async def test_one_at_a_time_and_who_asks_again_gets_the_one_before(fake: Program) -> None:
    spy = PySpy()
    first, *_ = await asyncio.gather(*(spy.dump(pid) for pid in (7, 8, 9)))
    assert (fake.runs, fake.most) == (3, 1)
    assert await spy.dump(7) is first
    await asyncio.sleep(pyspy.EVERY_S)
    assert await spy.dump(7) is not first


async def test_an_old_answer_tells_its_age(fake: Program) -> None:
    old: dict[int, float] = {}
    spy, hook = PySpy(), hookless(os.getpid())
    assert "in doze" in await stacks(hook, spy, old)
    assert old == {}
    await asyncio.sleep(12.0)
    assert "in doze" in await stacks(hook, spy, old)
    assert old == {0: pytest.approx(13.0)}, "one second of the program, and twelve since"
    assert fake.runs == 1


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
    while not pid_file.exists() or not pid_file.read_text() or state_of(pid) != "T":
        await asyncio.sleep(0.01)
    limit.reschedule(asyncio.get_running_loop().time())
    with pytest.raises(PySpyError, match=rf"py-spy was not done within {pyspy.LIMIT_S:g} s"):
        await asking
    assert state_of(pid) == "R"
    assert state_of(int((tmp_path / "pid").read_text())) is None


@pytest.mark.real
async def test_it_is_found_beside_the_interpreter_or_what_is_missing_is_said(
    start: Start, elsewhere: str
) -> None:
    pid = start(SLEEPS, elsewhere)
    assert find(pid) is None
    with pytest.raises(Unseen) as raised:
        await stacks(hookless(pid), PySpy(), {})
    assert str(raised.value) == (
        "rank 0 has no hook (it is a launcher, runs with --no-hook or python -I, or does not import torch), "
        "and py-spy is neither on PATH nor next to its Python (pip install py-spy)"
    )
    program(Path(elsewhere).parent, "exit 1")
    assert find(pid) == str(Path(elsewhere).with_name("py-spy"))


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


async def test_of_a_rank_that_is_gone_only_that_is_said() -> None:
    with pytest.raises(HookError) as raised:
        await stacks(hookless(NOBODY), PySpy(), {})
    assert "py-spy" not in str(raised.value)


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


async def test_of_ranks_without_a_hook_only_those_that_stand_still_are_read(
    fake: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or all of them, while a rank beside them waits."""
    used = 0.0
    monkeypatch.setattr(pulses, "sample", lambda pid: Outside("S", used, used, None, None))
    hooks = Hooks(Path("/nowhere"), "/nowhere/h", lambda event: None, owner())
    lines = RankLines(Path("/nowhere"), 0, lambda file: None)
    taking = Pulses(RunState(), hooks, lambda event: None, lines)

    async def stack(cores: float) -> list[str]:
        """What is seen of a rank that used so many cores for five seconds."""
        nonlocal used
        await asyncio.sleep(5.0)
        used += 5 * cores
        (pulse,) = await taking.take({0: os.getpid()})
        return [site.name for site in pulse.stack]

    async with in_background(taking.spy.run()):
        assert [await stack(0.5) for _ in range(5)] == [[]] * 5
        assert fake.runs == 0, "who works is left alone"
        assert [await stack(0.0) for _ in range(4)] == [[], [], ["doze"], ["doze"]]
        assert await stack(0.5) == [], "what it did before it moved is no answer"
        seen = []
        for _ in range(9):
            taking._waiting = True
            seen.append(await stack(0.5))
        assert (seen[0], seen[-1]) == ([], ["doze"])


def test_what_several_ranks_answer_alike_is_one_sentence() -> None:
    refused = [HookRefusal(rank, "there is no {group}") for rank in (0, 1)]
    clauses = alike([*refused, HookError("rank 2 is gone")])
    assert [clause.words() for clause in clauses] == ["ranks 0, 1: there is no {group}", "rank 2 is gone"]
