"""One task follows a run, whatever its link does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
import scripted as play
from patience import HANG_S

from distui.runners.run.commands import ReadLog, Restart
from distui.runners.run.model import RunPhase
from distui.runners.run.wire.client import LinkError
from distui.tui.follower import Follower
from distui.tui.rows.frame import LinkPhase


async def until(wanted: Callable[[], object]) -> None:
    async with asyncio.timeout(HANG_S):
        while not wanted():
            await asyncio.sleep(0.01)


async def test_a_finished_run_is_read_to_its_end(tmp_path: Path) -> None:
    link = play.ScriptedLink(tmp_path, play.stamped(play.failed()), readonly=True)
    source = play.ScriptedSource(link)
    follower = Follower(lambda: source.open("r"), clock=lambda: play.NOW)
    await follower.run()
    assert follower.status.phase is LinkPhase.ENDED
    assert follower.state.phase is RunPhase.FAILED
    assert follower.readonly
    assert len(follower.state.ranks) == 8


async def test_a_broken_link_is_opened_again_from_the_last_event(tmp_path: Path) -> None:
    link = play.ScriptedLink(tmp_path, play.stamped(play.running()))
    source = play.ScriptedSource(link)
    follower = Follower(lambda: source.open("r"), clock=lambda: play.NOW, backoff=(0.0,))
    task = asyncio.create_task(follower.run())
    await until(lambda: follower.state.live)
    notices = len(follower.state.notices)
    link.break_with("gone")
    await until(lambda: len(link.asked) == 2)
    assert link.asked == [0, follower.state.seq]
    await until(lambda: follower.status.phase is LinkPhase.FOLLOWING)
    assert len(follower.state.attempts) == 1
    assert len(follower.state.notices) == notices
    task.cancel()


async def test_waiting_gets_longer_and_can_be_cut_short(tmp_path: Path) -> None:
    source = play.ScriptedSource()
    source.unreachable = "nobody there"
    now = play.NOW
    follower = Follower(lambda: source.open("r"), clock=lambda: now, backoff=(3600.0, 7200.0))
    task = asyncio.create_task(follower.run())
    await until(lambda: follower.status.phase is LinkPhase.LOST)
    assert follower.status.text == "nobody there"
    assert follower.status.retry_at == now + 3600
    follower.hurry()
    await until(lambda: len(source.opened) == 2)
    await until(lambda: follower.status.retry_at == now + 7200)
    task.cancel()


async def test_a_link_that_ends_without_the_run_ending_is_lost(tmp_path: Path) -> None:
    link = play.ScriptedLink(tmp_path, play.stamped(play.running()))
    source = play.ScriptedSource(link)
    follower = Follower(lambda: source.open("r"), clock=lambda: play.NOW, backoff=(3600.0,))
    task = asyncio.create_task(follower.run())
    await until(lambda: follower.state.live)
    link._more.put_nowait(None)
    await until(lambda: follower.status.phase is LinkPhase.LOST)
    assert "closed" in follower.status.text
    with pytest.raises(LinkError):
        await follower.send(Restart(id="x"))
    with pytest.raises(LinkError):
        await follower.read_log(ReadLog("runner.log", 0))
    assert link.commands == []
    task.cancel()


async def test_a_long_history_lets_others_work_meanwhile(tmp_path: Path) -> None:
    events = play.stamped(play.running()) * 200
    source = play.ScriptedSource(play.ScriptedLink(tmp_path, events))
    follower = Follower(lambda: source.open("r"), clock=lambda: play.NOW)
    turns = 0
    task = asyncio.create_task(follower.run())
    while not follower.state.live or follower.state.version < 3000:
        turns += 1
        await asyncio.sleep(0)
        assert turns < 10_000
    assert turns > 5
    task.cancel()
