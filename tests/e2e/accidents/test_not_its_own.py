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

from distui.runners import file_io

from ..runs import DISTUI, Run, World, alive, kill, until

TEXT = "import time\nfor n in range(100000):\n    print(n, flush=True)\n    time.sleep(0.05)\n"
HIDDEN = ["--pid", "--fork", "--mount-proc"]
RENAMED = ["--uts", "sh", "-c", 'hostname renamed && exec "$@"', "sh"]


def live(world: World, name: str = "job") -> Run:
    run = world.execute(TEXT, "--grace", "1", name=name)
    assert run.wait("running") == 0
    return run


def lost(run: Run) -> Run:
    """Its runner goes before its ranks, of whose end it would report."""
    kill(run.agent_pid())
    kill(run.runner_pid())
    for pid in run.marked():
        kill(pid)
    return run


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
    run = lost(live(world))
    ticks = file_io.start_ticks(bystander.pid)
    for name in ("agent.json", "runner.json"):
        rewrite(run.path / name, pid=bystander.pid, start_ticks=ticks)
    assert run.status()["state"] == "lost"
    assert run.stop().code == 0
    assert bystander.poll() is None
    assert run.status()["state"] == "stopped"


@pytest.mark.long
def test_run_json_of_another_run(world: World) -> None:
    other, run = live(world, "other"), lost(live(world))
    before = set(other.marked())
    shutil.copy(other.path / "run.json", run.path / "run.json")
    assert f"run.json is that of {other.id}" in world.distui("ls").fine().out
    assert run.distui("restart", "--yes").code == 0
    assert set(other.marked()) == before
    assert run.stop().code == 0
    assert not run.marked()
    assert set(other.marked()) == before


@pytest.mark.long
@pytest.mark.parametrize("kind", ["hub", "node"])
def test_run_json_that_says_another_kind(world: World, kind: str) -> None:
    """Whoever looks makes no hub of it, and the run goes on."""
    run = live(world)
    rewrite(run.path / "run.json", kind=kind, whole="20260101-000000-other-01234567")
    kill(run.agent_pid())
    assert world.distui("status", run.id, "--json").json()["state"] == "running"
    assert not any("runners.hub" in words for words in world.processes().values())
    assert [path.name for path in world.runs.iterdir() if path.is_dir()] == [run.id]
    run.stop().fine()


@pytest.mark.long
def test_a_copy_is_not_the_run(world: World) -> None:
    run = live(world)
    before = set(run.marked())
    copy = run.path.with_name(f"{run.path.name}-copy")
    shutil.copytree(run.path, copy)
    assert world.distui("status", copy.name, "--json").fine().json()["state"] == "lost"
    assert run.name in world.distui("status").fine().out  # it is still the only one that lives
    refused = world.distui("restart", copy.name, "--yes")
    assert refused.code == 1
    assert f"plan.json is that of {run.id}" in refused.err
    assert world.distui("stop", copy.name, "--yes").code == 0
    assert set(run.marked()) == before
    assert run.status()["state"] == "running"


@pytest.mark.real
@pytest.mark.parametrize("served", [True, pytest.param(False, marks=pytest.mark.long)])
def test_from_another_container(world: World, served: bool) -> None:
    """One that shares home, host name and kernel sees none of the processes: it starts, ends and records nothing."""
    run = live(world)
    if not served:
        kill(run.agent_pid())
    before = set(run.marked())
    for words in (["status", run.id], ["restart", run.id, "--yes"], ["stop", run.id, "--yes"]):
        done = apart(world, HIDDEN, *words)
        assert done.returncode == 4, (words, done)
        assert "cannot be seen from here" in done.stderr
    assert set(run.marked()) == before
    assert not run.of("RunEnded")
    assert len(run.of("AttemptStarted")) == 1


@pytest.mark.long
def test_the_machine_has_another_name(world: World) -> None:
    run = live(world)
    assert '"running"' in apart(world, RENAMED, "status", run.id, "--json").stdout
    done = apart(world, RENAMED, "stop", run.id, "--yes")
    assert done.returncode == 0, done
    assert not run.marked()


@pytest.mark.long
def test_a_directory_that_was_moved(world: World) -> None:
    """Its agent has the old path in its arguments, and the lock of this one."""
    run = live(world)
    moved = world.state.with_name("moved")
    world.state.rename(moved)
    done = world.distui("stop", run.id, "--yes", env={"XDG_STATE_HOME": str(moved)})
    assert done.code == 0, done
    assert until(lambda: not run.marked())
    assert not any(alive(pid) for pid in run.marked())


@pytest.mark.long
@pytest.mark.parametrize("file", ["environ", "plan.json", "runner.jsonl"])
def test_a_pipe_in_place_of_a_file(world: World, file: str) -> None:
    """Nobody waits for its writer: the run is seen, and stopped."""
    run = live(world)
    kill(run.agent_pid())
    (run.path / file).unlink()
    os.mkfifo(run.path / file)
    assert run.status()["state"] == "running"
    assert run.stop().code == 0
    assert not run.marked()
