"""Somebody removes the sockets of a live run, or their folder: they come back, and every verb works."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

import pytest

from ..runs import World, kill, removed, until

COUNT = "import time\nfor n in range(100000):\n    print(n, flush=True)\n    time.sleep(0.05)\n"


def sockets(world: World) -> set[str]:
    return {path.name for path in world.sockets.iterdir()} if world.sockets.exists() else set()


def remove(world: World, whole: bool) -> None:
    if whole:
        removed(world.sockets, world.root)
        return
    for path in world.sockets.iterdir():
        path.unlink(missing_ok=True)


@pytest.mark.real
@pytest.mark.parametrize(
    "whole", [True, pytest.param(False, marks=pytest.mark.long)], ids=["folder", "files"]
)
def test_the_agents_socket_comes_back(world: World, whole: bool) -> None:
    run = world.execute(COUNT)
    assert run.wait("running") == 0
    agent, pids = run.agent_pid(), run.pids()
    remove(world, whole)
    assert run.status()["state"] == "running", "the first look already"
    assert (run.agent_pid(), run.pids()) == (agent, pids)
    assert stat.S_IMODE(world.sockets.stat().st_mode) == 0o700
    paths = list(world.sockets.iterdir())
    assert {stat.S_IMODE(path.stat().st_mode) for path in paths} == {0o600}
    run.stop().fine()
    assert not run.marked()


@pytest.mark.torch
@pytest.mark.long
def test_all_sockets_come_back_by_themselves(world: World) -> None:
    """Nobody looks; then the agent dies, and the next one needs those of the runner and the ranks."""
    run = world.ddp().healthy()
    before = sockets(world)
    assert {Path(name).suffix for name in before} >= {".sock", ".run", ".r0", ".r1"}
    remove(world, whole=True)
    assert until(lambda: sockets(world) == before), (before, sockets(world))
    kill(run.agent_pid())
    now = run.eventually(lambda now: all(rank["step"] for rank in now["ranks"]))
    steps = [rank["step"] for rank in now["ranks"]]
    run.eventually(lambda now: (now["ranks"][0]["step"] or 0) > steps[0])
    run.distui("dump", "stacks").fine()
    run.distui("restart", "--yes").fine()
    assert run.status()["attempt"] == 2
    run.stop().fine()


def plant(folder: Path, into: Path) -> None:
    """A file in place of a folder, which its processes make again whenever they see that it is gone."""
    while not folder.is_file():
        removed(folder, into)
        with contextlib.suppress(IsADirectoryError):
            folder.write_text("in the way")


@pytest.mark.long
def test_a_planted_folder_is_left_alone(world: World) -> None:
    """What cannot be bound again is said with the pid and what to type; then that works."""
    run = world.execute(COUNT)
    assert run.wait("running") == 0
    agent = run.agent_pid()
    plant(world.sockets, world.root)
    run.distui("status").refused(4, f"pid {agent}", "not a directory", "remove it")
    assert until(lambda: b"is not a directory" in run.file("agent.log"))
    os.unlink(world.sockets)
    assert run.status()["state"] == "running"
    run.stop().fine()
