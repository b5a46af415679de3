"""What the log shows before the user has chosen it: the rank under the cursor, the culprit of a failure."""

from __future__ import annotations

import pytest
import scripted as play
from conftest import Rig, Start, shown

from distui.runners.run.model import AttemptStarted, CaughtUp
from distui.tui.screens.run import RunScreen


def screen(it: Rig) -> RunScreen:
    shown_now = it.app.screen
    assert isinstance(shown_now, RunScreen)
    return shown_now


def log_title(it: Rig) -> str:
    return str(screen(it).log_view.border_title)


async def test_the_log_on_a_large_overview_is_that_of_the_rank_under_the_cursor(rig: Start) -> None:
    async with shown(rig(play.running()), 200, 60) as it:
        await it.until(lambda: "step 29" in it.screen())
        assert "all ranks" in log_title(it), "nobody moved yet"
        await it.press("j", "j")
        await it.until(lambda: "rank 2" in log_title(it) and "rank 2 ready" in it.screen())
        await it.press("escape")
        await it.until(lambda: "all ranks" in log_title(it))
        await it.press("j")
        await it.until(lambda: "rank 3" in log_title(it))


@pytest.mark.parametrize("size", [(80, 24), (120, 40)], ids=str)
async def test_a_small_screen_keeps_the_log_of_all_ranks(rig: Start, size: tuple[int, int]) -> None:
    async with shown(rig(play.running()), *size) as it:
        await it.until(lambda: "RUNNING" in it.screen())
        await it.press("j", "j")
        assert screen(it).ranks.cursor == 2
        assert "all ranks" in log_title(it)


async def test_what_the_user_chose_stays(rig: Start) -> None:
    async with shown(rig(play.running()), 200, 60) as it:
        await it.until(lambda: "step 29" in it.screen())
        await it.press("j", "enter")  # the log of rank 1, which the cursor led to as well
        screen(it).ranks.focus()
        await it.press("j")
        assert screen(it).ranks.cursor == 2
        assert "rank 1" in log_title(it)
        await it.press("escape")
        screen(it).log_view.focus()
        await it.press("slash", *"step 1", "enter")
        await it.until(lambda: "/step 1/" in log_title(it))
        screen(it).ranks.focus()
        await it.press("j", "j")
        assert "/step 1/" in log_title(it)
        assert "all ranks" in log_title(it)


@pytest.mark.parametrize("size", [(80, 24), (200, 60)], ids=str)
async def test_after_a_failure_the_log_is_that_of_the_culprit(rig: Start, size: tuple[int, int]) -> None:
    async with shown(rig(play.failed()), *size) as it:
        await it.until(lambda: "FAILED" in it.screen() and "rank 3" in log_title(it))
        await it.press("escape")
        await it.until(lambda: "all ranks" in log_title(it))
        await it.pilot.pause(0.3)
        assert "all ranks" in log_title(it), "once for a failure"


async def test_the_next_attempt_has_the_log_of_all_ranks_again(rig: Start) -> None:
    failed = [event for event in play.failed() if event[0] <= 131]
    async with shown(rig([*failed, (131.1, CaughtUp(30))]), 200, 60) as it:
        await it.until(lambda: "rank 3" in log_title(it))
        it.link.play(AttemptStarted(2, "failure", 8, play.places(8)), seq=90)
        await it.until(lambda: "all ranks" in log_title(it))
