"""`ls --watch`: a list in its place on a terminal, a list below the other elsewhere, of real runs."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from typing import Any

import pytest
from patience import HANG_S

from .runs import DISTUI, World
from .screen import Screen
from .written import write


@pytest.mark.real
def test_a_run_appears_and_ends_in_its_place(world: World) -> None:
    words = [DISTUI, "ls", "--watch", "--every", "0.3", "--sort", "name"]
    screen = Screen(words, world.env, world.work, 110, 14)
    with contextlib.closing(screen):
        screen.until(lambda text: "no runs yet" in text)
        run = world.execute("import time\ntime.sleep(600)\n", name="short")
        screen.until(lambda text: "short" in text)
        world.distui("tag", run.id, "+seen").fine()
        screen.until(lambda text: "seen" in text)
        run.stop().fine()
        screen.until(lambda text: "stopped" in text)
        assert screen.text.count("short") <= 2, "a name and an id, a line once"
        os.kill(screen.pid, signal.SIGINT)
        assert screen.ended() == 130
    check_pipe(world)


def check_pipe(world: World) -> None:
    """A pipe gets a list per line."""
    run = write(world, "exec", "--name", "done", "--", "true")
    watching = world.start("ls", "--watch", "--every", "0.2", "--json", "name:done")
    try:
        assert watching.stdout is not None
        lists: list[Any] = [json.loads(watching.stdout.readline()) for _ in range(3)]
    finally:
        watching.send_signal(signal.SIGINT)
        watching.communicate(timeout=HANG_S)
    assert watching.returncode == 130
    assert [[each["run"] for each in one] for one in lists] == [[run.id]] * 3


def test_a_filter_that_nothing_fits_is_a_sentence(world: World) -> None:
    write(world, "exec", "--name", "done", "--", "true")
    assert world.distui("ls", "state:failed").fine().out == "no run of 1 fits the filter\n"
