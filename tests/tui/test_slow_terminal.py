"""A terminal that reads slowly, or not at all for a while: keys are answered, and painting is as before afterwards."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from patience import slowness
from test_terminal import Terminal, on_stage

RATE = 10_000
"""Bytes a second of the slow link."""


def answering(stage: Terminal) -> None:
    """As a real terminal, tell where the cursor is when asked."""
    stage.screen.write_process_input = lambda text: os.write(stage.master, text.encode())


def slowly(
    stage: Terminal, seconds: float, wanted: str = "", until: Callable[[str], bool] | None = None
) -> float | None:
    """Take RATE bytes a second until the screen shows `wanted`, or is as `until` says; how long that took, or None."""
    until = until or (lambda text: bool(wanted) and wanted in text)
    began, taken = time.monotonic(), 0
    while (now := time.monotonic() - began) < seconds:
        room = int(now * RATE) - taken
        if room > 100 and select.select([stage.master], [], [], 0.02)[0]:
            data = os.read(stage.master, min(room, 4096))
            taken += len(data)
            stage.output += data
            stage._stream.feed(data)
            if until("\n".join(stage.screen.display)):
                return time.monotonic() - began
        else:
            time.sleep(0.01)
    return None


@pytest.mark.real
def test_over_a_slow_link_a_key_is_answered(tmp_path: Path) -> None:
    with on_stage(tmp_path) as stage:
        answering(stage)
        assert slowly(stage, 40 * slowness(), "RUNNING") is not None
        slowly(stage, 3)
        tries: list[float] = []
        while not tries or (min(tries) >= 3 and len(tries) < 4):  # where a process was kept waiting
            os.write(stage.master, b"m")
            took = slowly(stage, 10 * slowness(), "heat map")
            assert took is not None
            print(f"key to screen at {RATE} bytes a second: {took:.2f} s")
            tries.append(took)
            os.write(stage.master, b"m")
            assert slowly(stage, 10 * slowness(), until=lambda text: "heat map" not in text) is not None
        assert min(tries) < 3, "half a second on a free machine"


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
        stage.read_until(b"heat", 5)
