"""Ctrl-C in the middle of `distui doctor` leaves nothing of its progress on the terminal, and nothing on the nodes."""

from __future__ import annotations

import contextlib

import pytest

from .runs import DISTUI, World
from .screen import Screen

HANGS = "#!/bin/sh\nexec sleep 600\n"


@pytest.mark.real
def test_a_node_whose_python_hangs(world: World) -> None:
    python = world.root / "python"
    python.write_text(HANGS)
    python.chmod(0o755)
    words = [DISTUI, "doctor", "--python", str(python)]
    with contextlib.closing(Screen(words, world.env, world.work, 80, 8)) as screen:
        screen.until("nodes [" + "." * 24 + "] 0 of 1")
        screen.until(lambda _: _asleep(world))
        screen.press("\x03")
        assert screen.ended() == 130
        assert screen.text.strip() == ""
        assert b"1 of 1" not in screen.written
    assert world.left() == {}


def _asleep(world: World) -> bool:
    return any(each.endswith("sleep 600") for each in world.processes().values())


@pytest.mark.long
def test_a_host_that_does_not_answer(world: World) -> None:
    ssh = world.root / "bin" / "ssh"
    ssh.parent.mkdir()
    ssh.write_text(HANGS)
    ssh.chmod(0o755)
    env = {**world.env, "PATH": f"{ssh.parent}:{world.env['PATH']}"}
    words = [DISTUI, "doctor", "--hosts", "a.example,b.example"]
    with contextlib.closing(Screen(words, env, world.work, 80, 8)) as screen:
        screen.until("] 0 of 2")
        screen.until(lambda _: _asleep(world))
        screen.press("\x03")
        assert screen.ended() == 130
        assert screen.text.strip() == ""
    assert world.left() == {}
