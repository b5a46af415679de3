"""Ranks that do not tell where they are, and are read from outside: in dumps and in pulses."""

from __future__ import annotations

import asyncio

import pytest
from patience import HANG_S

from distui.runners.local_agent import with_link
from distui.runners.model import Pulse
from distui.runners.state import RunState

from .runs import Run, World, until
from .test_dump import HANG

HOLDS = """
import ctypes, signal, time
import torch.distributed as dist
signal.signal(signal.SIGUSR2, signal.SIG_IGN)
dist.init_process_group("gloo")
def hold():
    print("here", flush=True)
    ctypes.PyDLL(None).sleep(600)
time.sleep(2)  # the hook is up
if dist.get_rank() == 1:
    hold()
print("here", flush=True)
dist.barrier()
"""
pytestmark = pytest.mark.torch


def here(world: World, text: str, *options: str) -> Run:
    """Two ranks of a script that have come to where they stay."""
    script = world.script("hang.py", text)
    run = world.run("launch", "ddp", "--nproc-per-node", "2", "--grace", "2", *options, "--", script)
    assert run.wait("running") == 0
    out = [f"node-0/attempt-001/rank-{rank}.out" for rank in (0, 1)]
    assert until(lambda: all(b"here" in run.file(name) for name in out)), run.describe()
    return run


def seen(run: Run, rank: int, monkeypatch: pytest.MonkeyPatch, function: str) -> Pulse:
    """The first pulse of a rank with `function` on its stack, though its hook says nothing."""
    for name in ("XDG_STATE_HOME", "XDG_CONFIG_HOME", "DISTUI_SOCKET_DIR"):
        monkeypatch.setenv(name, run.world.env[name])

    async def follow(entry: object, link: object) -> Pulse:
        state = RunState()
        async with asyncio.timeout(HANG_S):
            async for stamped in link.events():  # type: ignore[attr-defined]
                state.apply(stamped)
                pulse = state.ranks[rank].pulse if rank in state.ranks else None
                if (
                    pulse is not None
                    and not pulse.hook
                    and any(site.name == function for site in pulse.stack)
                ):
                    return pulse
        raise AssertionError(run.describe())

    return asyncio.run(with_link(run.id, follow))


@pytest.mark.long
def test_a_gloo_job_without_hooks_is_read_from_outside(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = here(world, HANG, "--no-hook")
    pulse = seen(run, 1, monkeypatch, "asleep")
    assert (pulse.stack[0].name, pulse.stack[0].line) == ("asleep", 8)
    assert seen(run, 0, monkeypatch, "all_reduce")
    lines = run.distui("dump", "stacks").fine().out.splitlines()
    assert lines[0] == "rank 0 alone"
    there = lines.index("rank 1 alone")
    assert any(line.startswith("▏   step ") and line.endswith("hang.py:10") for line in lines[:there])
    assert any(line.startswith("▏   asleep ") and line.endswith("hang.py:8") for line in lines[there:])
    run.stop().fine()


@pytest.mark.long
def test_a_rank_that_holds_pythons_lock_and_took_the_signal_is_read_from_outside(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = here(world, HOLDS)
    pulse = seen(run, 1, monkeypatch, "hold")
    assert (pulse.stack[0].name, pulse.stack[0].line) == ("hold", 8)
    raw = run.distui("dump", "stacks", "--raw", "--rank", "1").fine().out
    assert "Seen from outside, by py-spy" in raw
    assert 'hang.py", line 8 in hold' in raw
    run.stop().fine()
