"""The past of real runs in a real terminal: live, and in a bundle that somebody else opens."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from patience import HANG_S

from .runs import DISTUI, World
from .screen import Screen

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


@pytest.mark.long
def test_a_failure_is_gone_back_to_live_and_in_a_bundle(
    world: World, elsewhere: World, screens: list[Screen]
) -> None:
    run = world.execute(TWICE, "--restarts", "2", name="twice")
    run.eventually(lambda now: now["attempt"] == 2 and now["ranks"][0]["rss_bytes"])
    live = Screen((DISTUI, "attach", run.name), world.env, world.work, 120, 40)
    screens.append(live)
    live.until("attempt 2")
    live.press(":")
    live.until(lambda text: any(line.startswith(" :") for line in text.splitlines()[-3:]))
    live.press(*"at first-cause")
    live.until("at first-cause")
    live.press("enter")
    text = live.until("PAST")
    assert "attempt" not in text.splitlines()[0], "there was one"
    live.press("r")
    live.until("esc goes back to live")
    assert run.status()["attempt"] == 2
    live.press("4")
    live.until("past ")
    live.press("escape")
    live.until(lambda text: "PAST" not in text and "attempt 2" in text)
    live.press("q")
    assert live.ended() == 0

    assert run.distui("export", "twice.tar.gz").code == 0
    file = str(world.work / "twice.tar.gz")
    replay = Screen((DISTUI, "replay", file), elsewhere.env, elsewhere.work, 120, 40)
    screens.append(replay)
    replay.until("LIVE WHEN EXPORTED")
    replay.press("<", "<")  # it must not come to its end before it is held
    replay.until("speed 0.25×")
    replay.press(" ")
    replay.until("playing")
    replay.press(" ")
    replay.until(lambda text: "PAST" in text and "playing" not in text)
    replay.press("4")
    replay.until("host CPU")
    replay.press("=")
    replay.until("LIVE WHEN EXPORTED")
    replay.press("q")
    assert replay.ended() == 0
    assert run.status()["state"] == "running"
    run.stop("--grace", "1").fine()


STANDS = """
import torch, time

def wait_for_nothing():
    time.sleep(600)

wait_for_nothing()
"""


@pytest.mark.torch
@pytest.mark.long
def test_stacks_that_were_taken_are_seen_again_also_after_the_end(
    world: World, screens: list[Screen]
) -> None:
    run = world.run("launch", "single", "--name", "stands", "--", world.script("stands.py", STANDS))
    assert run.wait("running") == 0
    end = time.monotonic() + HANG_S
    while "wait_for_nothing" not in run.distui("dump", "stacks").out:  # torch is being imported until then
        assert time.monotonic() < end, run.describe()
    taken = time.time()
    run.eventually(lambda now: time.time() > taken + 3)  # a dot of a curve is a second
    assert run.distui("stop", "--yes", "--grace", "1").code == 0
    ended = Screen((DISTUI, "attach", run.name), world.env, world.work, 120, 40)
    screens.append(ended)
    ended.until("STOPPED")
    ended.press("w")
    ended.until("when stacks were taken")
    ended.press("[")
    ended.until("PAST")
    ended.press("w")
    assert "stacks taken " in ended.until("wait_for_nothing")
