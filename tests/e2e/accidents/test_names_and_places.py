"""Names that are taken, directories that cannot be written, sockets that somebody else may have planted."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from patience import HANG_S

from distui.tui.cli import main

from ..runs import DISTUI, World, kill
from ..written import Attempt, events_of, record, without_agent, write

SLEEP = "import time\nprint('up', flush=True)\ntime.sleep(600)\n"


@contextmanager
def mounted(*words: str) -> Iterator[None]:
    """A mount for the length of a block; skips where this user may not mount. The last word is where."""
    done = subprocess.run(["mount", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"mounting is not permitted here: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", words[-1]], check=True)


def test_a_name_that_a_live_run_has(world: World) -> None:
    words = ("exec", "--name", "twin", "--", "true")
    with without_agent():
        first = world.run(*words)  # it has just begun, and its agent is about to come
        world.distui(*words).refused(2, "twin", "live", "--name")
    assert len(list(world.runs.glob("*/run.json"))) == 1
    record(first, events_of(first, [Attempt()]))
    second = write(world, *words)
    assert second.id != first.id
    # The name now means the newest; the older one is still there under its id.
    assert world.distui("status", "twin", "--json").fine().json()["run"] == second.id
    assert first.status()["state"] == "succeeded"


@pytest.mark.real
def test_many_starts_of_one_name_at_once(world: World) -> None:
    """Whoever comes second is refused, however close the second comes."""
    starts = [world.start("exec", "--name", "race", "--detach", "--", "sleep", "600") for _ in range(4)]
    codes = sorted(start.wait(HANG_S) for start in starts)
    for start in starts:
        assert start.stderr is not None
        assert b"Traceback" not in start.stderr.read()
        start.communicate()
    assert codes == [0, 2, 2, 2]
    assert len([one for one in world.distui("ls", "--json").fine().json() if one["state"] != "lost"]) == 1


@pytest.mark.real
def test_a_read_only_state_directory(world: World) -> None:
    with mounted("-t", "tmpfs", "-o", "ro,size=64k", "tmpfs", str(world.state)):
        said = world.distui("exec", "--", "true").refused(2, "Read-only", "XDG_STATE_HOME")
        assert str(world.state) in said
        assert world.distui("ls").fine().out.startswith("no runs yet")


def test_a_state_directory_whose_name_is_no_text(world: World) -> None:
    state = os.fsdecode(os.fsencode(world.work) + b"/caf\xe9")
    with without_agent():
        done = world.distui("exec", "--", "true", env={"XDG_STATE_HOME": state})
    done.refused(2, "not UTF-8", "XDG_STATE_HOME")
    assert not os.path.exists(state)


def test_a_file_where_the_state_directory_should_be(world: World) -> None:
    world.state.rmdir()
    world.state.write_text("in the way")
    with without_agent():
        world.distui("exec", "--", "true").refused(2, "Not a directory", "XDG_STATE_HOME")


def test_a_working_directory_that_was_removed(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in world.env.items():
        monkeypatch.setenv(name, value)
    folder = world.work / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    for words, code in ((["plan", "ddp", "--", "train.py"], 2), (["ls"], 0)):
        assert main(words) == code
    assert (
        capsys.readouterr().err == "distui: The working directory has been removed: `cd` to another one\n"
    )


@pytest.mark.real
def test_a_state_directory_of_somebody_else(world: World) -> None:
    """As an ordinary user, whom permission bits bind."""
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    world.state.chmod(0o700)
    world.root.chmod(0o755)
    os.chown(world.work, 65534, 65534)
    env = {**world.env, "DISTUI_SOCKET_DIR": str(world.work / "s")}
    done = subprocess.run(
        ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", DISTUI, "exec", "--", "true"],
        env=env, cwd=world.work, capture_output=True, text=True, timeout=HANG_S, check=False,
    )  # fmt: skip
    if "failed to execute" in done.stderr or "ModuleNotFoundError" in done.stderr:
        pytest.skip("the installation cannot be read by other users")
    assert done.returncode == 2, done.stderr
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert "Permission denied" in done.stderr
    assert "XDG_STATE_HOME" in done.stderr


def test_files_that_are_no_runs_are_passed_over(world: World) -> None:
    world.runs.mkdir(parents=True)
    (world.runs / "a-file").write_text("x")
    (world.runs / "torn").mkdir()
    (world.runs / "torn" / "run.json").write_bytes(b'{"run": "to')
    (world.runs / "binary").mkdir()
    (world.runs / "binary" / "run.json").write_bytes(bytes(range(256)))
    assert world.distui("ls", "--json").fine().json() == []
    world.distui("status").refused(3, "no run yet")


def test_a_journal_with_a_torn_end(world: World) -> None:
    """What a crash of the whole machine leaves: half a line, and no process."""
    run = write(world, "exec", "--", "true")
    told = run.events()
    with (run.path / "journal.jsonl").open("ab") as journal:
        journal.write(b'{"time":17')
    assert run.events() == told
    assert run.status()["state"] == "succeeded"


@pytest.mark.parametrize("planted", ["file", "link", "wide", "stranger"])
def test_a_planted_socket_directory(world: World, planted: str) -> None:
    """Never into a directory that another user of the host could have prepared."""
    elsewhere = world.root / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    if planted == "file":
        world.sockets.write_text("")
    elif planted == "link":
        world.sockets.symlink_to(elsewhere)
    else:
        world.sockets.mkdir(mode=0o700)
        if planted == "wide":
            world.sockets.chmod(0o777)
        elif os.geteuid() == 0:
            os.chown(world.sockets, 65534, 65534)
        else:
            pytest.skip("only root can give a directory away")
    world.distui("exec", "--", "true").refused(2, str(world.sockets), "DISTUI_SOCKET_DIR")
    assert not list(elsewhere.iterdir())
    assert not world.runs.exists() or not list(world.runs.iterdir())


def test_a_socket_directory_that_is_too_long(world: World) -> None:
    far = world.root / ("x" * 90)
    world.distui("exec", "--", "true", env={"DISTUI_SOCKET_DIR": str(far)}).refused(2, "too long")


@pytest.mark.real
def test_a_stale_socket_is_replaced_and_a_file_is_not(world: World) -> None:
    """What a killed agent left in the way of the next one; and what is none of ours."""
    run = world.execute(SLEEP)
    assert run.wait("running") == 0
    path = Path(next(world.sockets.glob("*.sock")))
    kill(run.agent_pid())
    assert path.is_socket()
    assert run.status()["state"] == "running", "the stale socket is replaced"
    kill(run.agent_pid())
    path.unlink()
    path.write_text("somebody's notes")
    told = run.distui("status").fine().out
    assert f"{path} exists and is not your socket; remove it" in told
    assert "running" in told, "from the files of the run"
    assert path.read_text() == "somebody's notes"
    path.unlink()
    assert run.status()["state"] == "running"
