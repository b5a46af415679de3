"""What reads runs works where Python has no more than on macOS (tests/rigs/macos.py): bundles, and hosts by ssh."""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from patience import HANG_S

from .runs import Done, World, gone, until
from .screen import Screen
from .test_other_hosts import SSHD, Near
from .test_other_hosts import near as near

ROOT = Path(__file__).parents[2]
RIG = [sys.executable, str(ROOT / "tests/rigs/macos.py")]


@pytest.fixture(scope="module")
def somebody() -> Iterator[World]:
    """A user with a bundle that a Linux host exported, and no runs."""
    world = World()
    run = world.run(
        "exec", "--name", "night", "--", "sh", "-c", "echo hello from linux; echo trouble >&2; exit 3"
    )
    assert run.wait() == 1
    world.distui("export", "night", "night.tar.gz").fine()
    assert gone(run.agent_pid()), "which keeps its run until it has left"
    world.distui("rm", "night", "--yes").fine()
    yield world
    world.close()


def mac(world: World, *words: str) -> Done:
    """`distui WORDS…` on what looks like a Mac."""
    done = subprocess.run(
        [*RIG, *words], env=world.env, cwd=world.work, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=HANG_S, check=False,
    )  # fmt: skip
    return Done(done.returncode, done.stdout, done.stderr)


def check_imports() -> None:
    """Every module of the viewer is imported."""
    rooms = [*(ROOT / "tui").rglob("*.py"), ROOT / "runners/export.py", ROOT / "runners/launch/hosts.py"]
    modules = [
        f"distui.{path.relative_to(ROOT).with_suffix('').as_posix().replace('/', '.')}"
        for path in rooms
        if path.name != "__init__.py"
        and path.name != "__main__.py"
        and "mcp" not in path.relative_to(ROOT).parts
    ]
    assert len(modules) > 60
    code = f"import sys; sys.path.insert(0, {str(ROOT / 'tests/rigs')!r}); import macos, importlib; macos.become()\n"
    code += f"for name in {modules!r}: importlib.import_module(name)\nprint('all', sys.platform)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=HANG_S, check=False
    )
    assert done.stdout == "all darwin\n", done.stderr[-2000:]


VERBS = (
    "ls --json", "presets --json", "status night.tar.gz --json", "events night.tar.gz --json", "logs night.tar.gz",
    "diagnose night.tar.gz --json", "metrics night.tar.gz --json", "advise --params 7B --gpus 8xA100-80GB --json",
    "status nope", "--help", "mcp --skill",
)  # fmt: skip


@pytest.mark.long
def test_verbs_read_what_they_read_on_linux_and_launch_nothing(somebody: World) -> None:
    for words in VERBS:
        here, there = somebody.distui(*words.split()), mac(somebody, *words.split())
        assert (there.code, there.err) == (here.code, here.err), words
        if "status" in words and here.code == 0:
            assert json.loads(there.out)["ranks"] == json.loads(here.out)["ranks"]
        elif "--json" not in words or "advise" in words or "presets" in words:
            assert there.out == here.out, words
        assert here.out or here.code == 3, words
    somebody.script("x.py", "print('x')\n")
    for words in ("demo --detach", "exec --detach -- true", "launch single --detach -- x.py"):
        before, dashes, rest = words.partition(" -- ")
        done = mac(somebody, *before.split(), *(["--", *rest.split()] if dashes else []))
        done.refused(2, "need Linux", "attach --host")
    assert not list(somebody.runs.glob("*/run.json"))
    check_imports()


@pytest.mark.real
def test_a_bundle_is_replayed_in_a_terminal(somebody: World) -> None:
    screen = Screen([*RIG, "replay", "night.tar.gz"], somebody.env, somebody.work)
    try:
        screen.until("night")
        screen.until("hello from linux")
        screen.press("?")
        screen.until("command palette")
        screen.press("escape")
        screen.until(lambda text: "command palette" not in text)
        screen.press("q")
        assert screen.ended() == 0
    finally:
        screen.close()


@pytest.mark.long
def test_the_list_of_runs_opens_and_a_lost_terminal_ends_it(somebody: World) -> None:
    screen = Screen([*RIG], somebody.env, somebody.work)
    try:
        screen.until(lambda text: "no runs yet" in text or "filter" in text or "quit" in text)
        screen.hang_up()
        assert until(lambda: os.waitpid(screen.pid, os.WNOHANG)[0])
        screen.pid = 0
    finally:
        screen.close()


@pytest.mark.long
def test_files_of_others_are_passed_over_there_too(somebody: World) -> None:
    preset = somebody.config / "distui/presets/mine.toml"
    preset.parent.mkdir(parents=True, mode=0o700, exist_ok=True)
    preset.write_text('base = "ddp"\ntitle = "Mine"\nsummary = "Of my own."\n')
    preset.chmod(0o600)
    assert "Mine" in mac(somebody, "presets").fine().out
    link = preset.with_name("linked.toml")
    link.symlink_to(preset)
    assert mac(somebody, "presets").fine().out.count("Mine") == 2
    link.unlink()
    preset.chmod(0o666)
    told = mac(somebody, "presets")
    assert "Mine" not in told.out
    assert "everybody may write to it" in told.err
    preset.unlink()
    preset.mkdir()
    assert "it is a folder" in mac(somebody, "presets").err
    preset.rmdir()
    os.mkfifo(preset)
    assert "it is a named pipe" in mac(somebody, "presets").err
    assert stat.S_ISFIFO(preset.lstat().st_mode)
    preset.unlink()


@pytest.mark.long
@pytest.mark.skipif(SSHD is None or shutil.which("ssh") is None, reason="needs sshd and ssh")
def test_a_run_of_a_linux_host_is_attached_to(near: Near, tmp_path: Path) -> None:
    """The listing and the cockpit by a real ssh; the other end has all of Linux."""
    near.run("exec", "--detach", "--name", "faraway", "--", "sh", "-c", "echo hello from near; sleep 600")
    env = dict(os.environ)
    try:
        done = subprocess.run(
            [*RIG, "ls", "--host", "near", "--json"], env=env, cwd=tmp_path, capture_output=True, text=True,
            timeout=HANG_S, check=False,
        )  # fmt: skip
        assert [run["name"] for run in json.loads(done.stdout)] == ["faraway"], done.stderr
        screen = Screen([*RIG, "attach", "--host", "near", "faraway"], env, tmp_path)
        try:
            screen.until("hello from near")
            screen.press("q")
            assert screen.ended() == 0
        finally:
            screen.close()
    finally:
        near.run("stop", "faraway", "--yes", "--grace", "1")


def test_what_is_needed_can_be_installed_there() -> None:
    """No dependency has wheels for Linux alone: those that are no pure Python are listed, and have others."""
    page = (ROOT / "pyproject.toml").read_text()
    block = page.partition("dependencies = [")[2].partition("\n]")[0]
    names = set(re.findall(r'^\s*"([a-z-]+)', block, re.MULTILINE))
    compiled = {"msgspec", "psutil", "pyyaml"}
    pure = {"argcomplete", "nvidia-ml-py", "textual", "tomlkit"}
    assert names == compiled | pure
