"""Ctrl-C in the middle of `distui doctor` leaves nothing of its progress on the terminal, and nothing on the nodes."""

from __future__ import annotations

import contextlib

import pytest

from .runs import DISTUI, World
from .screen import Screen


@pytest.mark.real
def test_a_python_that_hangs_and_hosts_that_do_not_answer(world: World) -> None:
    for program in ("python", "ssh"):
        path = world.root / "bin" / program
        path.parent.mkdir(exist_ok=True)
        path.write_text("#!/bin/sh\nexec sleep 600\n")
        path.chmod(0o755)
    python = str(world.root / "bin" / "python")
    for words, progress in (
        (("--python", python), "nodes [" + "." * 24 + "] 0 of 1"),
        (("--hosts", "a.example,b.example"), "] 0 of 2"),
    ):
        check_interrupt(world, words, progress)


def check_interrupt(world: World, words: tuple[str, ...], progress: str) -> None:
    env = {**world.env, "PATH": f"{world.root}/bin:{world.env['PATH']}"}
    with contextlib.closing(Screen([DISTUI, "doctor", *words], env, world.work, 80, 8)) as screen:
        screen.until(progress)
        screen.until(lambda _: any(each.endswith("sleep 600") for each in world.processes().values()))
        screen.press("\x03")
        assert screen.ended() == 130
        assert screen.text.strip() == ""
        assert b"1 of 1" not in screen.written
    assert world.left() == {}
