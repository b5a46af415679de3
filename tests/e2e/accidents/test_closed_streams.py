"""Standard streams that are closed, and base directories that are no absolute paths."""

from __future__ import annotations

import sys

import pytest
from patience import HANG_S

from distui.presets.base_dirs import base, ignored

from ..runs import DISTUI, World
from ..written import without_agent


@pytest.mark.real
def test_a_launch_with_closed_streams(world: World) -> None:
    code = (
        "import os, sys\nfor number in (0, 1, 2): os.close(number)\nos.execv(sys.argv[1], sys.argv[1:])\n"
    )
    words = [DISTUI, "exec", "--name", "quiet", "--detach", "--"]
    done = world.python(code, *words, sys.executable, "-c", "import time; time.sleep(60)")
    assert done.code == 0, (done.out, done.err)
    assert "Traceback" not in done.err
    assert world.distui("wait", "quiet", "--until", "running", "--timeout", str(HANG_S)).code == 0
    assert world.distui("stop", "quiet", "--yes").code == 0
    assert world.python(code, DISTUI, "status", "nobody").code == 3, "a refusal has its exit code"


@pytest.mark.real
def test_a_locale_of_ascii_alone(world: World) -> None:
    env = {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii"}
    out = world.binary("advise", "--params", "7B", "--gpus", "8xA100-80GB", env=env).fine().out
    assert out.isascii()
    assert "\\x" in out or "\\u" in out


def test_a_relative_base_directory_is_ignored_and_said(world: World) -> None:
    env = {"XDG_STATE_HOME": "state"}
    with without_agent():
        done = world.distui("exec", "--name", "here", "--detach", "--", "true", env=env).fine()
    assert "XDG_STATE_HOME=state is not an absolute path" in done.err
    assert not (world.work / "state").exists()
    (world.work / "deeper").mkdir()
    listed = world.distui("ls", env=env, cwd=world.work / "deeper")
    assert "here" in listed.out


def test_base_directories() -> None:
    assert str(base("XDG_STATE_HOME", {"XDG_STATE_HOME": "/s"})) == "/s"
    assert base("XDG_CACHE_HOME", {}) == base("XDG_CACHE_HOME", {"XDG_CACHE_HOME": "x"})
    assert ignored({"XDG_STATE_HOME": "", "XDG_CONFIG_HOME": "/c"}) == []
