"""What reads runs works where Python has no more than on macOS (tests/rigs/macos.py)."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from patience import HANG_S

from distui.runners.run.model import Outcome

from .runs import World
from .screen import Screen
from .written import Attempt, write

ROOT = Path(__file__).parents[2]
RIG = [sys.executable, str(ROOT / "tests/rigs/macos.py")]
VERBS = (
    "ls --json", "presets --json", "status night.tar.gz --json", "events night.tar.gz --json", "logs night.tar.gz",
    "diagnose night.tar.gz --json", "metrics night.tar.gz --json", "advise --params 7B --gpus 8xA100-80GB --json",
    "status nope", "--help",
)  # fmt: skip
STARTS = ("demo --detach", "exec --detach -- true", "launch single --detach -- x.py")
ON_A_MAC = f"""
import contextlib, importlib, io, json, sys
sys.path.insert(0, {str(ROOT / "tests/rigs")!r})
import macos
macos.become()
modules, lines = json.loads(sys.argv[1])
for name in modules:
    importlib.import_module(name)
from distui.tui.cli import main
ends = []
for line in lines:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main(line.split())
        except SystemExit as end:
            code = int(end.code or 0)
    ends.append((code, out.getvalue(), err.getvalue()))
print(json.dumps([sys.platform, ends]))
"""


@pytest.fixture
def reader(world: World) -> World:
    """A user with a bundle of a run, and no runs."""
    attempt = Attempt(Outcome.FAILED, "hello from linux\n", "trouble\n", exit_code=3)
    write(world, "exec", "--name", "night", "--", "sh", "-c", "exit 3", attempts=[attempt])
    world.distui("export", "night", "night.tar.gz").fine()
    world.distui("rm", "night", "--yes").fine()
    world.script("x.py", "print('x')\n")
    return world


def viewer_modules() -> list[str]:
    """Every module that a viewer may load."""
    files = [
        *(ROOT / "tui").rglob("*.py"),
        ROOT / "runners/reports/bundle_reader.py",
        ROOT / "runners/launch/hosts.py",
    ]
    paths = [path.relative_to(ROOT).with_suffix("") for path in files]
    left_out = {"mcp", "browser", "__init__", "__main__"}
    return [f"distui.{'.'.join(path.parts)}" for path in paths if left_out.isdisjoint(path.parts)]


@pytest.mark.real
def test_verbs_read_what_they_read_on_linux_and_launch_nothing(reader: World) -> None:
    writable = reader.config / "distui/presets/mine.toml"
    writable.parent.mkdir(parents=True, mode=0o700)
    writable.write_text('base = "ddp"\ntitle = "Mine"\nsummary = "Of my own."\n')
    writable.chmod(0o666)
    done = subprocess.run(
        [sys.executable, "-c", ON_A_MAC, json.dumps([viewer_modules(), [*VERBS, *STARTS]])],
        env=reader.env, cwd=reader.work, capture_output=True, text=True, timeout=HANG_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    platform, ends = json.loads(done.stdout)
    assert platform == "darwin"
    for line, (code, out, err) in zip(VERBS, ends, strict=False):
        here = reader.distui(*line.split())
        assert (code, err) == (here.code, here.err), line
        if line.startswith("status night"):
            assert json.loads(out)["ranks"] == here.json()["ranks"]
        elif "--json" not in line or "advise" in line or "presets" in line:
            assert out == here.out, line
    assert "everybody may write to it" in ends[VERBS.index("presets --json")][2]
    for line, (code, _, err) in zip(STARTS, ends[len(VERBS) :], strict=True):
        assert code == 2, line
        assert "need Linux" in err, line
        assert "attach --host" in err, line
    assert not list(reader.runs.glob("*/run.json"))


@pytest.mark.real
def test_a_bundle_is_replayed_in_a_terminal(reader: World) -> None:
    screen = Screen([*RIG, "replay", "night.tar.gz"], reader.env, reader.work)
    try:
        screen.until("night")
        screen.until("hello from linux")
        screen.press("?")
        screen.until("type to filter")
        screen.press("escape")
        screen.until(lambda text: "type to filter" not in text)
        screen.press("q")
        assert screen.ended() == 0
    finally:
        screen.close()


def test_what_is_needed_can_be_installed_there() -> None:
    """No dependency has wheels for Linux alone: those that are no pure Python are listed, and have others."""
    page = (ROOT / "pyproject.toml").read_text()
    block = page.partition("dependencies = [")[2].partition("\n]")[0]
    names = set(re.findall(r'^\s*"([a-z-]+)', block, re.MULTILINE))
    compiled = {"msgspec", "psutil", "pyyaml"}
    pure = {"argcomplete", "nvidia-ml-py", "textual", "tomlkit"}
    assert names == compiled | pure
