"""The past of real runs in a real terminal: live, and in a bundle that somebody else opens."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .runs import DISTUI, World
from .screen import Screen

pytestmark = pytest.mark.timeout(180)

TWICE = """
import os, sys, time
first = not os.path.exists("again")
open("again", "a").close()
print("up", flush=True)
time.sleep(3 if first else 600)
sys.exit(1 if first else 0)
"""


@pytest.fixture
def elsewhere() -> Iterator[World]:
    """Another person's machine: other directories, and no runs."""
    other = World()
    try:
        yield other
    finally:
        other.close()


@pytest.fixture
def screens() -> Iterator[list[Screen]]:
    opened: list[Screen] = []
    yield opened
    for screen in opened:
        screen.close()


def test_a_failure_is_gone_back_to_live_and_in_a_bundle(
    world: World, elsewhere: World, screens: list[Screen]
) -> None:
    run = world.execute(TWICE, "--restarts", "2", name="twice")
    run.eventually(lambda now: now["attempt"] == 2 and now["ranks"][0]["rss_bytes"], 60)
    live = Screen((DISTUI, "attach", run.name), world.env, world.work, 120, 40)
    screens.append(live)
    live.until("attempt 2", 30)
    live.press(":")
    live.until(lambda text: any(line.startswith(" :") for line in text.splitlines()[-3:]), 30)
    live.press(*"at first-cause")
    live.until("at first-cause", 30)
    live.press("enter")
    text = live.until("PAST", 30)
    assert "attempt" not in text.splitlines()[0], "there was one"
    live.press("r")
    live.until("esc goes back to live", 30)
    assert run.status()["attempt"] == 2
    live.press("4")
    live.until("past ", 30)
    live.press("escape")
    live.until(lambda text: "PAST" not in text and "attempt 2" in text, 30)
    live.press("q")
    assert live.ended() == 0

    assert run.distui("export", "twice.tar.gz").code == 0
    file = str(world.work / "twice.tar.gz")
    replay = Screen((DISTUI, "replay", file), elsewhere.env, elsewhere.work, 120, 40)
    screens.append(replay)
    replay.until("LIVE WHEN EXPORTED", 30)
    replay.press(" ")
    replay.until("playing", 30)
    replay.press(" ")
    text = replay.until(lambda text: "PAST" in text and "playing" not in text, 30)
    replay.press("4")
    replay.until("host CPU", 30)
    replay.press("=")
    replay.until("LIVE WHEN EXPORTED", 30)
    replay.press("q")
    assert replay.ended() == 0
    assert run.status()["state"] == "running"
    run.stop("--grace", "1").fine()
