"""A script or command that cannot run, and modules of the user's that share a name with the standard library's."""

from __future__ import annotations

import subprocess
import sys

import pytest
from patience import HANG_S

from ..runs import DISTUI, World


@pytest.mark.real
@pytest.mark.torch
def test_a_script_with_a_syntax_error(world: World) -> None:
    script = world.script("broken.py", "import os\nthis is no python\n")
    done = world.distui("launch", "ddp", "--nproc-per-node", "2", "--restarts", "0", "--json", "--", script)
    done.refused(2, "broken.py:2", "syntax error")
    assert not [*world.runs.glob("*")]


@pytest.mark.real
def test_the_users_modules_shadow_nothing_of_ours(world: World) -> None:
    """A training directory with a select.py, a platform.py or a runner.py of its own is no reason to fail."""
    for name in (
        "select",
        "platform",
        "signal",
        "queue",
        "socket",
        "msgspec",
        "psutil",
        "runner",
        "report",
    ):
        world.script(f"{name}.py", f"raise RuntimeError('the user own {name}.py was imported')\n")
    world.script("distui.py", "raise RuntimeError('the user own distui.py was imported')\n")
    run = world.run("exec", "--name", "shadow", "--", sys.executable, "-I", "-c", "print('fine')")
    assert run.wait() == 0, run.describe()
    assert "fine" in run.distui("logs").fine().out


@pytest.mark.real
def test_the_directory_is_gone(world: World) -> None:
    """The working directory was removed under the shell."""
    lost = world.work / "lost"
    lost.mkdir()
    command = 'rmdir "$PWD" && exec "$0" exec -- true'
    done = subprocess.run(
        ["bash", "-c", command, DISTUI],
        cwd=lost, env=world.env, capture_output=True, text=True, timeout=HANG_S, check=False,
    )  # fmt: skip
    assert done.returncode == 2, done
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
