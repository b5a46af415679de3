"""The pulse of real ranks: what their hooks, the kernel and a signal tell of them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from distui.runners.model import Dump, Pulse
from distui.runners.state import RunState

from .inrank_rig import Asking, Driven, driven, eventually, launch, rank
from .test_inrank_hook import interpreters

GLOO = """
import time, torch
import torch.distributed as dist

def load():
    time.sleep(600)

dist.init_process_group("gloo")
tensor = torch.ones(4)
for _ in range(20):
    dist.all_reduce(tensor)
if dist.get_rank() == 1:
    load()
dist.all_reduce(tensor)
"""
HELD = """
import ctypes, os, time

def held_in_c():
    ctypes.PyDLL(None).sleep(60)  # keeps the lock of the interpreter

time.sleep(2)
while os.environ["RANK"] == "1":
    held_in_c()
time.sleep(600)
"""


LOOPS = """
import threading, time
from distui.runners.inrank.rank_pulse import jumps_back

def spin(until, flag=[False]):
    while not flag[0]:
        pass

def product(until):
    while time.monotonic() < until:
        sum(range(3_000_000))

main = threading.main_thread().ident
for work in (spin, product):
    seen = []
    def look(stop=spin.__defaults__[0]):
        for _ in range(40):
            time.sleep(0.01)
            seen.append(jumps_back(main))
        stop[0] = True
    looking = threading.Thread(target=look)
    looking.start()
    work(time.monotonic() + 1.0)
    looking.join()
    print(sum(seen) / len(seen))
"""


@pytest.mark.long
def test_a_loop_that_calls_nothing_is_told_from_long_calls() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOOPS], capture_output=True, text=True, timeout=60, check=True
    )
    spins, calls = map(float, done.stdout.split())
    assert spins > 0.9
    assert calls < 0.2


def pulse(state: RunState, rank: int) -> Pulse | None:
    """The newest pulse of a rank."""
    return state.ranks[rank].pulse if rank in state.ranks else None


def names(taken: Pulse) -> list[str]:
    """Functions of its stack, innermost first."""
    return [site.name for site in taken.stack]


async def pulsed(run: Driven, rank: int, wanted: Callable[[Pulse], object]) -> Pulse:
    """The first pulse of a rank of which `wanted` is true."""
    await run.until(lambda s: (taken := pulse(s, rank)) is not None and wanted(taken))
    taken = pulse(run.state, rank)
    assert taken is not None
    return taken


@pytest.mark.long
@pytest.mark.torch
async def test_who_waits_and_who_is_missing_is_seen_with_file_and_line(own_directories: Path) -> None:
    script = own_directories / "train.py"
    script.write_text(GLOO)
    async with driven(launch(script)) as run:
        waits = await pulsed(run, 0, lambda taken: taken.active and taken.active[0].sites)
        missing = await pulsed(run, 1, lambda taken: taken.recent and taken.samples == 10)
        one = waits.active[0]
        assert (one.group, one.seq, one.op, one.what, one.done) == (
            "0",
            21,
            "all_reduce",
            "Float[4]",
            False,
        )
        assert (one.started, one.p2p) == (None, False)
        assert [(site.file, site.line) for site in one.sites] == [(str(script), len(GLOO.splitlines()))]
        assert [(group.name, group.ranks, group.enqueued, group.completed) for group in waits.groups] == [
            ("0", (), 21, 20)
        ]
        assert [each.seq for each in waits.recent] == list(range(1, 21))
        assert [bool(each.sites) for each in waits.recent] == [False] * 12 + [True] * 8
        assert (waits.hook, waits.recorder, waits.torch, waits.world_size) == (True, True, True, "2")
        assert (missing.active, missing.groups[0].enqueued) == ((), 20)
        assert names(missing)[0] == "load"
        assert "sleep(600)" in GLOO.splitlines()[missing.stack[0].line - 1]
        assert (missing.sites, missing.samples) == (1, 10)
        assert missing.cpu_s is not None
        assert missing.process_s is not None
        assert missing.process_s >= missing.cpu_s > 0
        assert missing.read_bytes is not None
        assert missing.master is not None
        assert missing.pid is not None
        os.kill(missing.pid, signal.SIGSTOP)
        stopped = await pulsed(run, 1, lambda taken: taken.state == "T")
        assert not stopped.hook
        os.kill(missing.pid, signal.SIGCONT)
        await pulsed(run, 1, lambda taken: taken.hook)


@pytest.mark.long
async def test_who_holds_the_interpreter_in_c_is_silent_and_shows_its_stack_by_signal(
    own_directories: Path,
) -> None:
    script = own_directories / "train.py"
    script.write_text(HELD)
    async with driven(launch(script)) as run:
        silent = await pulsed(run, 1, lambda taken: not taken.hook and taken.stack)
        assert names(silent)[0] == "held_in_c"
        assert "PyDLL" in HELD.splitlines()[silent.stack[0].line - 1]
        assert silent.state == "S"
        answers = await pulsed(run, 0, lambda taken: taken.hook)
        assert answers.torch is False
        assert answers.recorder is None


@pytest.mark.long
async def test_without_hooks_the_kernel_tells_what_it_knows(own_directories: Path) -> None:
    script = own_directories / "train.py"
    script.write_text(
        "import os, socket; socket.create_connection(('127.0.0.1', int(os.environ['TO'])), 600)"
    )
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        port = server.getsockname()[1]
        # The queue of the server is full from now on: the kernel drops whoever else knocks.
        with socket.create_connection(server.getsockname()):
            async with driven(launch(script, hook=False, env={"TO": str(port)})) as run:
                told = await pulsed(run, 0, lambda taken: taken.state == "S")
                assert (told.hook, told.stack, told.torch, told.world_size) == (False, (), None, "2")
                assert told.master is not None
                assert told.process_s is not None
                assert told.stalls == ()  # it has only begun
                told = await pulsed(run, 0, lambda taken: taken.stalls)
                (stall,) = told.stalls
                assert (stall.remote, stall.state) == (f"127.0.0.1:{port}", "SYN_SENT")
                assert stall.retransmits > 0


ALONE = """
import gc, os, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo", init_method=f"file://{os.environ['DISTUI_RANK_FILES']}.store", rank=0, world_size=1)
part = dist.new_group([0])
tensor = torch.ones(2, 3)
def step():
    dist.all_reduce(tensor)
    dist.all_reduce(tensor, group=part)
for _ in range(70):
    step()
sys.stdin.readline()
step()
print("stepped", flush=True)
sys.stdin.readline()
print("torch._inductor" in sys.modules, hasattr(torch, "__dict__") and "_inductor" in vars(torch), gc.isenabled(),
      flush=True)
dist.destroy_process_group()
print("left", flush=True)
sys.stdin.read()
"""

READS = ALONE.splitlines().index("sys.stdin.readline()") + 1


@pytest.fixture
def place(own_directories: Path) -> Path:
    """A directory with a short path, for sockets."""
    path = own_directories / "rank"
    path.mkdir()
    return path


@pytest.mark.long
def test_a_rank_without_torch_tells_its_stack(place: Path) -> None:
    for python in interpreters():
        tells_its_stack(place, python)


def tells_its_stack(place: Path, python: str) -> None:
    script = "import sys\ndef wait():\n    sys.stdin.read()\nwait()\n"
    with rank(place, script, python=python, WORLD_SIZE="2") as started:
        asking = Asking(started.socket)
        eventually(lambda: asking.ask("pulse")["stack"][0][1:] == [3, "wait"])
        taken = asking.ask("pulse", samples=2, whole=True, sites=True)
        assert [site[2] for site in taken["stack"]] == ["wait", "<module>"]
        assert (taken["sites"], taken["samples"], taken["torch"], taken["step"]) == (1, 2, False, 0)
        assert (taken["last_step"], taken["world_size"], taken["master"]) == (None, "2", None)
        assert 0 < taken["cpu_s"] <= taken["process_s"]
        assert "recorder" not in taken
        assert "error" in asking.ask("pulse", samples="many")
        asking.close()
        assert started.ends() == 0


DEEP = """
import sys
def down(left):
    sys.stdin.read() if not left else down(left - 1)
down(600)
"""


@pytest.mark.long
def test_of_a_deep_stack_the_innermost_frames_are_told(place: Path) -> None:
    with rank(place, DEEP) as started:
        asking = Asking(started.socket)
        eventually(lambda: [site[2] for site in asking.ask("pulse")["stack"]] == ["down"] * 24)
        asking.close()
        assert started.ends() == 0


@pytest.mark.real
@pytest.mark.torch
def test_a_look_at_all_collectives_leaves_nothing_behind(place: Path) -> None:
    with rank(place, ALONE) as started:
        asking, stdin = Asking(started.socket), started.process.stdin
        assert stdin is not None
        eventually(lambda: asking.ask("pulse").get("groups"))
        taken = asking.ask("pulse", whole=True, sites=True)
        # Both have been called 70 times and completed, which torch counts a little later, and it reads.
        eventually(
            lambda: (
                [(each["enqueued"], each["completed"]) for each in asking.ask("pulse")["groups"]]
                == [(70, 70)] * 2
            )
        )
        eventually(lambda: asking.ask("pulse", samples=3)["stack"][0][1:] == [READS, "<module>"])
        taken = asking.ask("pulse", samples=3, whole=True, sites=True)
        assert [(group["name"], group["ranks"], group["completed"]) for group in taken["groups"]] == [
            ("0", [], 70), ("1", [0], 70),
        ]  # fmt: skip
        assert (len(taken["recent"]), taken["active"], taken["samples"], taken["sites"]) == (64, [], 3, 1)
        newest = taken["recent"][-1]
        assert (newest["group"], newest["seq"], newest["what"]) == ("1", 70, "Float[2, 3]")
        assert [site[2] for site in newest["sites"]] == ["step", "<module>"]
        # torch counts what is completed a little later than its entries say so; until then the group seems to wait
        eventually(lambda: "sites" not in asking.ask("pulse", whole=True)["recent"][-1])
        stdin.write(b"go\n")
        stdin.flush()
        eventually(lambda: "stepped" in started.read("out"))
        brief = asking.ask("pulse")
        assert (brief["whole"], brief["recent"], brief["groups"][1]["enqueued"]) == (False, [], 71)
        stdin.write(b"go\n")
        stdin.flush()
        eventually(lambda: "left" in started.read("out"))
        assert "False False True" in started.read("out")
        assert "groups" not in asking.ask("pulse", whole=True)
        asking.close()
        assert started.ends() == 0
        assert started.read("err") == ""


ASLEEP = """
import ctypes, os, time

time.sleep(2)
libc, began = ctypes.PyDLL(None), time.monotonic()  # PyDLL keeps the lock of the interpreter
until = (ctypes.c_long * 2)(30, 0)
calls = [
    lambda: libc.sleep(30),
    lambda: libc.select(0, None, None, None, until),
    lambda: libc.poll(None, 0, 30000),
]
left = calls[int(os.environ["RANK"])]()
print(left, time.monotonic() - began >= 29.5, flush=True)
time.sleep(600)
"""


@pytest.mark.long
@pytest.mark.parametrize("spy", [True, False], ids=["py-spy", "signal"])
async def test_no_look_wakes_a_rank_that_sleeps_in_c(
    own_directories: Path, monkeypatch: pytest.MonkeyPatch, spy: bool
) -> None:
    """Also an explicit dump of its stacks does not: the signal goes to the hook's own thread."""
    script = own_directories / "train.py"
    script.write_text(ASLEEP)
    if not spy:
        (own_directories / "py-spy").write_text("#!/bin/sh\necho 'Error: Permission denied' >&2; exit 1\n")
        (own_directories / "py-spy").chmod(0o755)
        monkeypatch.setenv("PATH", f"{own_directories}:{os.environ['PATH']}")
    async with driven(launch(script, nproc_per_node=3)) as run:
        for number, where in enumerate(("nanosleep", "poll", "poll")):
            silent = await pulsed(run, number, lambda taken: not taken.hook and taken.stack)
            assert names(silent)[0] == "<lambda>"
            assert silent.source == ("py-spy" if spy else "signal")
            assert where in (silent.waits_in or "")
        done = await run.link.send(Dump("dump", "stacks"))
        assert "train.py" in done.data["2"]
        assert ("SIGUSR2" in done.text) is not spy, done.text
        for number in range(3):
            assert await run.wrote(f"rank-{number}.out", "\n") == "0 True\n"
