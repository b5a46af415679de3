"""What a directory says of processes is checked against the processes: others are neither signalled nor ended.

Directories are copied, restored, forged and shared by containers and hosts; pids are reused.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from patience import HANG_S

from distui.runners.run import file_io

from ..runs import DISTUI, Run, World, kill, until
from ..written import Attempt, write

TEXT = "import time\nfor n in range(100000):\n    print(n, flush=True)\n    time.sleep(0.05)\n"
HIDDEN = ["--pid", "--fork", "--mount-proc"]
RENAMED = ["--uts", "sh", "-c", 'hostname renamed && exec "$@"', "sh"]


def live(world: World, name: str = "job") -> Run:
    run = world.execute(TEXT, "--grace", "1", name=name)
    assert run.wait("running") == 0
    return run


def lost(world: World) -> Run:
    return write(world, "exec", "--name", "job", "--", "sleep", "600", attempts=[Attempt(outcome=None)])


def rewrite(path: Path, **fields: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def apart(world: World, where: list[str], *words: str) -> subprocess.CompletedProcess[str]:
    """`distui WORDS…` in namespaces of its own; skips where there are none."""
    kind = [word for word in where if word.startswith("--")]
    if (
        shutil.which("unshare") is None
        or subprocess.run(["unshare", *kind, "true"], check=False).returncode
    ):
        pytest.skip("no namespaces of this user's own here")
    return subprocess.run(
        ["unshare", *where, DISTUI, *words], env=world.env, cwd=world.work, capture_output=True, text=True,
        timeout=HANG_S, check=False,
    )  # fmt: skip


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "600"])
    yield process
    process.kill()
    process.wait()


@pytest.mark.real
def test_a_pid_in_a_file_is_no_proof(world: World, bystander: subprocess.Popen[bytes]) -> None:
    """Whoever looks sends an agent SIGHUP where its socket is gone, and stop ends it."""
    run = lost(world)
    who = file_io.identify(bystander.pid, str(world.sockets / "x.sock"), "command")
    for name in ("agent.json", "runner.json"):
        file_io.write(run.path / name, who)
    assert run.status()["state"] == "lost"
    assert run.stop().code == 0
    assert bystander.poll() is None
    assert run.status()["state"] == "stopped"


@pytest.mark.long
def test_copies_of_another_run(world: World) -> None:
    """A lost run with the run.json of one that lives, and a copy of its directory: both leave it alone."""
    other = live(world, "other")
    before = set(other.marked())
    run = lost(world)
    shutil.copy(other.path / "run.json", run.path / "run.json")
    copy = other.path.with_name(f"{other.path.name}-copy")
    shutil.copytree(other.path, copy)
    assert f"run.json is that of {other.id}" in world.distui("ls").fine().out
    assert run.distui("restart", "--yes").code == 0
    assert run.stop().code == 0
    assert not run.marked()

    assert world.distui("status", copy.name, "--json").fine().json()["state"] == "lost"
    assert other.name in world.distui("status").fine().out, "it is the only one that lives"
    refused = world.distui("restart", copy.name, "--yes")
    assert refused.code == 1
    assert "belongs to another user, or is a copy" in refused.err
    assert world.distui("stop", copy.name, "--yes").code == 0
    assert set(other.marked()) == before
    assert other.status()["state"] == "running"


@pytest.mark.real
def test_a_copy_of_the_state_directory(world: World) -> None:
    """A backup, looked at while the run lives: the copy neither ends nor restarts what runs in the original."""
    run = live(world)
    before = set(run.marked())
    backup = world.state.with_name("backup")
    shutil.copytree(world.state, backup)
    there = {"XDG_STATE_HOME": str(backup)}
    assert world.distui("ls", "--json", env=there).fine().json()[0]["orphans"] == []
    for words in (["status", run.id], ["restart", run.id, "--yes"], ["stop", run.id, "--yes"]):
        refused = world.distui(*words, env=there)
        assert refused.code == 4, (words, refused)
        assert (
            f"runs in {run.path}, of which this is a copy: set XDG_STATE_HOME to {world.state}"
            in refused.err
        )
    assert world.distui("rm", run.id, "--yes", env=there).code == 2
    assert set(run.marked()) == before
    assert run.status()["state"] == "running"


@pytest.mark.real
def test_from_another_container(world: World) -> None:
    """One that shares home, host name and kernel sees none of the processes: it starts, ends and records nothing."""
    run = live(world)
    before = set(run.marked())
    for words in (["status", run.id], ["restart", run.id, "--yes"], ["stop", run.id, "--yes"]):
        done = apart(world, HIDDEN, *words)
        assert done.returncode == 4, (words, done)
        assert "cannot be seen from here" in done.stderr
    assert set(run.marked()) == before
    assert not run.of("RunEnded")
    assert len(run.of("AttemptStarted")) == 1


@pytest.mark.long
def test_the_machine_has_another_name_and_the_directory_was_moved(world: World) -> None:
    """The agent has the old path in its arguments, and the lock of this one."""
    run = live(world)
    assert '"running"' in apart(world, RENAMED, "status", run.id, "--json").stdout
    moved = world.state.with_name("moved")
    world.state.rename(moved)
    world.env["XDG_STATE_HOME"] = str(moved)
    done = apart(world, RENAMED, "stop", run.id, "--yes")
    assert done.returncode == 0, done
    assert until(lambda: not run.marked())


@pytest.mark.long
def test_forged_files_of_a_live_run(world: World) -> None:
    """run.json says that it is a hub or a part of one, then others are pipes: it is seen and stopped all the same."""
    run = live(world)
    for kind in ("hub", "node"):
        rewrite(run.path / "run.json", kind=kind, whole="20260101-000000-other-01234567")
        kill(run.agent_pid())
        assert world.distui("status", run.id, "--json").json()["state"] == "running"
        assert not any("runners.hub" in words for words in world.processes().values())
        assert [path.name for path in world.runs.iterdir() if path.is_dir()] == [run.id]
    kill(run.agent_pid())
    for file in ("environ", "plan.json", "runner.jsonl"):
        (run.path / file).unlink()
        os.mkfifo(run.path / file)
    assert run.status()["state"] == "running", "nobody waits for somebody to write into a pipe"
    assert run.stop().code == 0
    assert not run.marked()
