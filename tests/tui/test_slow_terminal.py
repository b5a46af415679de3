"""A terminal that reads slowly, or not at all for a while: keys are answered, and painting is as before afterwards."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from patience import HANG_S
from test_terminal import Terminal, on_stage

RATE = 10_000
"""Bytes a second of the slow link."""


def answering(stage: Terminal) -> None:
    """As a real terminal, tell where the cursor is when asked."""
    stage.screen.write_process_input = lambda text: os.write(stage.master, text.encode())


def slowly(stage: Terminal, is_over: Callable[[str], bool], seconds: float = HANG_S) -> int | None:
    """Take RATE bytes a second until the screen is so: how many bytes that were, or None after so many seconds."""
    began, taken = time.monotonic(), 0
    while (now := time.monotonic() - began) < seconds:
        room = int(now * RATE) - taken
        if room > 100 and select.select([stage.master], [], [], 0.02)[0]:
            data = os.read(stage.master, min(room, 4096))
            taken += len(data)
            stage.output += data
            stage._stream.feed(data)
            if is_over("\n".join(stage.screen.display)):
                return taken
        else:
            time.sleep(0.01)
    return None


@pytest.mark.long
def test_over_a_slow_link_a_key_is_answered(tmp_path: Path) -> None:
    with on_stage(tmp_path) as stage:
        answering(stage)
        assert slowly(stage, lambda text: "RUNNING" in text) is not None
        slowly(stage, lambda text: False, seconds=3)
        os.write(stage.master, b"m")
        taken = slowly(stage, lambda text: "heat map" in text)
        assert taken is not None
        print(f"from the key to the screen: {taken} bytes")
        assert taken < 3 * RATE


@pytest.mark.long
def test_after_a_stall_the_terminal_is_painted_as_before(tmp_path: Path) -> None:
    with on_stage(tmp_path) as stage:
        answering(stage)
        stage.read_until(b"RUNNING")
        stage.read(4)
        asked, cpu = stage.output.count(b"\x1b[6n"), stage.cpu_s()
        before = stage.read(6)
        questions, used = stage.output.count(b"\x1b[6n") - asked, stage.cpu_s() - cpu
        assert questions >= 3
        time.sleep(15)
        stage.read(3)
        asked, cpu = stage.output.count(b"\x1b[6n"), stage.cpu_s()
        after = stage.read(6)
        again, then = stage.output.count(b"\x1b[6n") - asked, stage.cpu_s() - cpu
        print(f"6 s before: {before} bytes, {used:.2f} s CPU; after a stall: {after}, {then:.2f} s")
        assert again >= questions // 2
        assert after < 1.5 * before + 1000
        os.write(stage.master, b"m")
        stage.read_until(b"heat")
