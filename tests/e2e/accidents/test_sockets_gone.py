"""Somebody removes the sockets of a live run, or their folder: they come back, and every verb works."""

from __future__ import annotations

import asyncio
import shutil
import stat
from pathlib import Path

import pytest
from doubles.served import doubled

from distui.runners.inrank import own_folders
from distui.runners.run import file_io, server_link
from distui.runners.run.run_directories import AGENT_FILE

from ..runs import World, kill, removed, until

COUNT = "import time\nfor n in range(100000):\n    print(n, flush=True)\n    time.sleep(0.05)\n"


def sockets(world: World) -> set[str]:
    return {path.name for path in world.sockets.iterdir()} if world.sockets.exists() else set()


@pytest.mark.real
def test_the_sockets_come_back(world: World) -> None:
    """That of the agent at the first look, that of the runner by itself: the next agent needs it."""
    run = world.execute(COUNT)
    assert run.wait("running") == 0
    agent, pids, before = run.agent_pid(), run.pids(), sockets(world)
    assert {Path(name).suffix for name in before} >= {".sock", ".run"}
    removed(world.sockets, world.root)
    assert run.status()["state"] == "running", "the first look already"
    assert (run.agent_pid(), run.pids()) == (agent, pids)
    assert until(lambda: sockets(world) == before), (before, sockets(world))
    assert stat.S_IMODE(world.sockets.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in world.sockets.iterdir()} == {0o600}
    kill(agent)
    run.distui("restart", "--yes").fine()
    assert run.status()["attempt"] == 2
    run.stop().fine()
    assert not run.marked()


async def test_an_agent_whose_folder_is_gone_is_found_in_the_next_one(
    socket_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder of a session goes when its user logs out, and is there again at the next login."""
    session, second = socket_folder / "session/distui", socket_folder / "second"
    session.parent.mkdir(mode=0o700)
    monkeypatch.setattr(own_folders, "candidates", lambda: [str(session), str(second)])
    async with doubled() as (run, _):
        await run.hooked()
        before = file_io.read(run.path / AGENT_FILE)
        assert before is not None
        name = Path(before.socket).name
        shutil.rmtree(session.parent)
        await asyncio.sleep(5.0)
        for is_back in (False, True):
            if is_back:
                session.mkdir(mode=0o700, parents=True)
                await asyncio.sleep(5.0)
            link = await server_link.connect(before)
            assert link.hello is not None
            assert link.hello.run == run.agent.served.record.run
            await link.close()
            after = file_io.read(run.path / AGENT_FILE)
            assert after is not None
            assert Path(after.socket) == second / name
        assert list(session.iterdir()) == []


async def test_a_planted_folder_is_left_alone(capfd: pytest.CaptureFixture[str]) -> None:
    """What cannot be bound again is named; once it is gone, the socket is there again."""
    async with doubled() as (run, _):
        await run.hooked()
        path = Path(f"{run.agent.served.stem}.sock")
        aside = path.parent.rename(path.parent.with_name("aside"))
        path.parent.write_text("in the way")
        await asyncio.sleep(5.0)
        assert path.parent.read_text() == "in the way"
        assert capfd.readouterr().err.count(f"{path} cannot be bound again") == 1
        path.parent.unlink()
        await asyncio.sleep(5.0)
        assert stat.S_ISSOCK(path.stat().st_mode)
        shutil.rmtree(aside)
