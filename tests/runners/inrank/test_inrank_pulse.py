"""The pulse of real ranks: what their hooks, the kernel and a signal tell of them."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from distui.runners.model import Pulse
from distui.runners.state import RunState

from .inrank_rig import Driven, driven, launch

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


def pulse(state: RunState, rank: int) -> Pulse | None:
    """The newest pulse of a rank."""
    return state.ranks[rank].pulse if rank in state.ranks else None


def names(taken: Pulse) -> list[str]:
    """Functions of its stack, innermost first."""
    return [site.name for site in taken.stack]


async def pulsed(run: Driven, rank: int, wanted: Callable[[Pulse], object], seconds: float = 40.0) -> Pulse:
    """The first pulse of a rank of which `wanted` is true."""
    await run.until(lambda s: (taken := pulse(s, rank)) is not None and wanted(taken), seconds)
    taken = pulse(run.state, rank)
    assert taken is not None
    return taken


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
            ("0", (0, 1), 21, 20)
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
