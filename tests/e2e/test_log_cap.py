"""`--log-cap` with a command that really writes too much."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from .runs import World, until

CAP = 16 << 20
CHATTY = """\
import os, sys, time
out = sys.stdout
for number in range(1, 600_001):
    out.write(f"line {number:08d} ".ljust(95, ".") + "\\n")
    if number % 20_000 == 0:
        out.flush()
        time.sleep(0.1)
print("ValueError: the last line of all", flush=True)
while not os.path.exists("go"):
    time.sleep(0.05)
print("after the cap", flush=True)
"""


def held(path: Path) -> bool:
    """Whether a log is as long as the rank wrote it, and takes no more than its cap."""
    return path.exists() and path.stat().st_size > 600_000 * 96 and path.stat().st_blocks * 512 <= CAP


def settings(world: World, text: str) -> Path:
    path = world.config / "distui/settings.toml"
    path.parent.mkdir(mode=0o700, exist_ok=True)
    path.write_text(text)
    return path


@pytest.mark.long
def test_a_command_that_writes_58_megabytes_under_the_cap_of_the_settings(world: World) -> None:
    """Every reader names what is left out, and the command writes on."""
    settings(world, '[logs]\ncap = "16MiB"\n')
    run = world.execute(CHATTY, name="chatty")
    path = run.path / "node-0/attempt-001/rank-0.out"
    assert until(lambda: held(path)), (os.stat(path), run.describe())
    gap = json.loads(path.with_name("rank-0.out.gap").read_bytes())
    (world.work / "go").touch()
    assert run.wait() == 0
    tail = run.distui("logs", "-n", "2", "--stream", "out").fine().out
    assert "the last line of all" in tail
    assert "after the cap" in tail
    text = run.distui("logs", "--stream", "out").fine().out
    lines = text.splitlines()
    assert "\0" not in text
    assert sum("left out: not kept" in line for line in lines) == 1
    numbers = [int(line.split("line ")[1].split()[0]) for line in lines if "line 0" in line]
    assert numbers == sorted({*range(1, gap["begin"] // 96 + 1), *range(gap["end"] // 96 + 1, 600_001)})
    dropped = gap["begin"] // 96 + 7
    assert run.distui("logs", "--grep", f"line {dropped:08d}").out == ""
    assert "line 00599999" in run.distui("logs", "--grep", "line 00599999").fine().out
    bundle = world.work / "bundle.tar.gz"
    run.distui("export", str(bundle), "--logs", "64").fine()
    assert "after the cap" in world.distui("logs", str(bundle), "-n", "1", "--stream", "out").fine().out


def test_a_cap_is_a_size_of_sixteen_megabytes_or_more(world: World) -> None:
    world.distui("exec", "--log-cap", "1MB", "-n", "--", "true").refused(2, "write 16MiB or more")
    plan = world.distui("exec", "--log-cap", "200MB", "-n", "--", "true").fine().out
    assert "log cap      200,000,000 bytes of each log on disk\n" in plan


def test_the_plan_says_which_cap_holds_and_where_it_is_written(world: World) -> None:
    path = settings(world, '[logs]\ncap = "32MiB"\n')
    words = ("exec", "-n", "--", "true")
    assert f"log cap      33,554,432 bytes of each log on disk  # {path}\n" in world.distui(*words).out
    plan = world.distui("exec", "--log-cap", "200MB", *words[1:]).out
    assert "log cap      200,000,000 bytes of each log on disk\n" in plan
    assert "log cap" not in world.distui("exec", "--log-cap", "off", *words[1:]).fine().out
    settings(world, '[logs]\ncap = "1MB"\n')
    plan = world.distui(*words).fine().out
    assert "log cap" not in plan
    assert "logs.cap must be a size" in plan
