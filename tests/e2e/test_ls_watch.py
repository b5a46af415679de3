"""`ls --watch`: a list in its place on a terminal, a list below the other elsewhere, of real runs."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from typing import Any

from patience import slowness

from .runs import DISTUI, World
from .screen import Screen


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


def test_a_pipe_gets_a_list_a_line(world: World) -> None:
    run = world.execute("print('hi')\n", name="done")
    assert run.wait() == 0
    watching = world.start("ls", "--watch", "--every", "0.2", "--json", "name:done")
    try:
        assert watching.stdout is not None
        lists: list[Any] = [json.loads(watching.stdout.readline()) for _ in range(3)]
    finally:
        watching.send_signal(signal.SIGINT)
        watching.communicate(timeout=30 * slowness())
    assert watching.returncode == 130
    assert [[each["run"] for each in one] for one in lists] == [[run.id]] * 3
    listed = subprocess.run(
        [sys.executable, "-m", "distui.tui", "ls", "state:failed"], env=world.env, capture_output=True, text=True,
        timeout=60 * slowness(), check=True,
    )  # fmt: skip
    assert listed.stdout == "no run of 1 fits the filter\n"
