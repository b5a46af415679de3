"""Other accounts: their processes say nothing of our runs, their folders, links and locks neither lead nor stop us."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from distui.presets import base_dirs, trusted_files
from distui.runners.node import agentless, boot, package
from distui.runners.run import file_io, host_processes
from distui.runners.run.errors import RunError
from distui.runners.run.proc import is_own
from distui.runners.run.processes import environ_of, marked

NOBODY = 65534
RUN = f"20260101-000000-mine-{os.getpid():08x}"  # others test at the same time
SLEEP = shutil.which("sleep") or "/bin/sleep"

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can start another account's process")


@contextlib.contextmanager
def running(words: list[str], user: int | None, program: str = SLEEP, **env: str) -> Iterator[int]:
    """The pid of `program`, which sleeps, with these arguments and this environment."""
    child = subprocess.Popen(
        words, executable=program, user=user, group=user, env=env, stdin=subprocess.PIPE
    )
    try:
        arguments = Path(f"/proc/{child.pid}/cmdline")
        while not arguments.read_bytes() and child.poll() is None:
            os.sched_yield()  # exec closes its pipe to us a moment before the kernel shows the new arguments
        yield child.pid
    finally:
        child.kill()
        child.wait()


@pytest.fixture
def set_uid() -> Iterator[str]:
    """A program that runs as root whoever starts it; not below pytest's own folders, which are root's alone."""
    with tempfile.TemporaryDirectory(prefix="dt-", dir="/tmp") as folder:
        program = Path(folder, "sleep")
        shutil.copy(SLEEP, program)
        program.chmod(0o4755)
        program.parent.chmod(0o755)
        if os.statvfs(program).f_flag & os.ST_NOSUID:
            pytest.skip("the folder for temporary files is mounted nosuid")
        yield str(program)


@pytest.mark.real
def test_a_marker_counts_in_a_process_of_ours_alone(set_uid: str) -> None:
    """Else whoever sets it would give the next runner its arguments, and secrets their values.

    A set-uid program that a stranger starts is no process of ours.
    """
    words = {"DISTUI_RUN_ID": RUN, "DISTUI_SECRET_WORDS": '{"argv": {"13": "/tmp/evil.py"}}'}
    with (
        running(["sleep", "60"], NOBODY, **words) as stranger,
        running(["sleep", "60"], None, **words) as own,
        running(["sleep", "60"], NOBODY, set_uid, **words) as raised,
    ):
        fields = Path(f"/proc/{raised}/status").read_text().partition("\nUid:")[2].split()[:2]
        assert fields == [str(NOBODY), "0"]
        assert not is_own(raised)
        assert environ_of(stranger)["DISTUI_RUN_ID"] == RUN  # which root can read
        assert list(marked(RUN)) == [own]


@pytest.mark.real
def test_arguments_of_an_agent_and_of_a_runner(tmp_path: Path) -> None:
    """Else a run would look alive for ever, and a stop wait for processes that it may not end."""
    run_dir = tmp_path / RUN
    run_dir.mkdir()
    agent = ["sh", "-c", "read line", "distui.runners.agent", "run", str(run_dir)]
    runner = ["sh", "-c", "read line", "/x/inrank/launch.py", str(run_dir), "0"]
    with (
        running(agent, NOBODY, "/bin/sh"),
        running(runner, NOBODY, "/bin/sh"),
        running(["sleep", "60"], NOBODY, DISTUI_RUN_ID=RUN),
    ):
        assert host_processes.survey(tmp_path) == {}
        assert agentless.daemons(run_dir) == []
    with running(agent, None, "/bin/sh") as pid:
        assert host_processes.survey(tmp_path)[RUN].agents == [pid]
        assert agentless.daemons(run_dir) == [pid]


def test_a_state_folder_behind_a_strangers_link(tmp_path: Path) -> None:
    """It may lead to any folder of ours, which would be closed to others and written to."""
    ours, link = tmp_path / "public", tmp_path / "distui"
    ours.mkdir(mode=0o755)
    link.symlink_to(ours)
    file_io.make_own_folder(link)  # our own link
    ours.chmod(0o755)
    os.lchown(link, NOBODY, NOBODY)
    with pytest.raises(RunError, match="belongs to another user"):
        file_io.make_own_folder(link)
    assert stat.S_IMODE(ours.stat().st_mode) == 0o755


@pytest.mark.parametrize(("owner", "mode"), [(NOBODY, 0o755), (0, 0o777)])
def test_a_cache_that_others_can_write_is_not_executed(
    tmp_path: Path, owner: int, mode: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "distui" / "bundles"
    cache.mkdir(parents=True)
    os.chown(cache.parent, owner, owner)
    cache.parent.chmod(mode)
    with pytest.raises(RunError, match="can be changed by other users"):
        package.build(cache)
    monkeypatch.setattr(boot, "homes", lambda: [str(cache.parent)])
    with pytest.raises(OSError, match="only you can write"):
        boot.library(str(tmp_path / "bundle-0123"))


@pytest.mark.real
def test_the_interpreter_that_is_noted_beside_a_bundle(tmp_path: Path) -> None:
    """node.sh executes it: the note is believed where it is the user's own."""
    evil = tmp_path / "evil"
    evil.write_text(f"#!/bin/sh\ntouch {tmp_path}/executed\nexit 1\n")
    evil.chmod(0o755)
    note = tmp_path / f"python-{os.uname().nodename}"
    note.write_text(f"{evil}\n")
    bundle = tmp_path / "bundle-0123456789ab"
    bundle.mkdir()
    words = ["sh", shutil.copy(Path(boot.__file__).with_name("node.sh"), bundle), "nothing"]
    os.chown(note, NOBODY, NOBODY)
    subprocess.run(words, capture_output=True, check=False, timeout=60)
    assert not (tmp_path / "executed").exists()
    os.chown(note, 0, 0)
    subprocess.run(words, capture_output=True, check=False, timeout=60)
    assert (tmp_path / "executed").exists()


def test_a_cache_that_others_can_move_is_not_executed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither when the bundle is made nor when it is sent, which may be later."""
    base = tmp_path / "cache"
    planted = base / "distui" / "bundles" / "bundle-0123456789ab"
    planted.mkdir(parents=True)
    monkeypatch.setenv("XDG_CACHE_HOME", str(base))
    base.chmod(0o777)
    with pytest.raises(RunError, match="everybody may write"):
        package.build()
    with pytest.raises(RunError, match="everybody may write"):
        package.lay(planted.name, tmp_path)
    base.chmod(0o755)
    os.chown(base / "distui", NOBODY, NOBODY)
    with pytest.raises(RunError, match="belongs to nobody"):
        package.lay(planted.name, tmp_path)


def test_a_strangers_lock_on_the_folder_holds_no_trust_up(tmp_path: Path) -> None:
    """Whoever can read a folder can lock it."""
    env = {"XDG_CONFIG_HOME": str(tmp_path), "HOME": str(tmp_path)}
    folder = base_dirs.config_dir(env)
    folder.mkdir(mode=0o755)
    file = tmp_path / "distui.toml"
    file.write_text("")
    held = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        trusted_files.add(env, file, b"")
    finally:
        os.close(held)
    assert [one.path for one in trusted_files.entries(env)] == [str(file)]
