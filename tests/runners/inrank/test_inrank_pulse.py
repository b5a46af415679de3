"""The pulse of real ranks: what their hooks, the kernel and a signal tell of them."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from distui.runners.inrank.rank_pulse import handled, loop_threads, stack_of
from distui.runners.run.commands import Dump
from distui.runners.run.pulse import Pulse
from distui.runners.run.state import RunState

from .inrank_rig import Asking, Driven, driven, eventually, launch, rank


@contextmanager
def beside(work: Callable[[list[bool]], None]) -> Iterator[int]:
    """A thread that works while the list holds something, which is until the end of the block; its ident."""
    going = [True]
    thread = threading.Thread(target=work, args=(going,))
    thread.start()
    try:
        assert thread.ident is not None
        yield thread.ident
    finally:
        going.clear()
        thread.join()


def test_a_loop_that_calls_nothing_is_told_from_long_calls() -> None:
    def spin(going: list[bool]) -> None:
        while going:
            pass

    def calculate(going: list[bool]) -> None:
        while going:
            sum(range(1_000_000))

    shares = []
    for work in (spin, calculate):
        with beside(work) as thread:
            eventually(lambda thread=thread, work=work: stack_of(thread)[0][2] == work.__name__)  # type: ignore[misc]
            seen = 0
            for _ in range(10):
                time.sleep(0.01)
                seen += thread in loop_threads()
            shares.append(seen / 10)
    assert shares[0] > 0.8
    assert shares[1] < 0.4


def test_the_exception_that_a_thread_handles_is_told() -> None:
    seen, thread = list[str](), threading.get_ident()
    with suppress(ValueError):
        try:
            raise ValueError("bad row", 7, object())
        finally:
            seen.append(handled(thread))
    line = seen[0].rpartition(":")[2]
    assert seen == [f"ValueError: bad row, 7 at {Path(__file__).name}:{line}"]
    assert handled(thread) == ""


def test_of_a_deep_stack_the_innermost_frames_are_told() -> None:
    def down(going: list[bool], left: int = 600) -> None:
        if left:
            down(going, left - 1)
        while going:
            pass

    with beside(down) as thread:
        eventually(lambda: [site[2] for site in stack_of(thread)] == ["down"] * 24)


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
