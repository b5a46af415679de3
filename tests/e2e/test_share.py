"""A colleague with another account of the machine opens a shared run in the cockpit, and changes nothing."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import distui
from distui.runners.run import shared_sockets

from .runs import Run, World, until
from .screen import Screen
from .written import write

LINES = """
import itertools, time
for number in itertools.count():
    print("a line for the colleague", number, flush=True)
    time.sleep(0.5)
"""


class Colleague:
    """Another account, with a home."""

    def __init__(self, name: str) -> None:
        self.uid = pwd.getpwnam(name).pw_uid
        self.name = name
        self.home = Path(tempfile.mkdtemp(prefix="dt-", dir="/tmp"))
        os.chown(self.home, self.uid, self.uid)
        self._screens: list[Screen] = []

    def words(self, *words: str) -> list[str]:
        """A command line that this account executes."""
        return ["setpriv", f"--reuid={self.uid}", f"--regid={self.uid}", "--clear-groups", *words]

    def attach(self, path: str) -> Screen:
        """`distui attach PATH` in a terminal of this account."""
        packages = os.pathsep.join([str(Path(distui.__file__).parents[1]), *filter(None, sys.path)])
        env = {"HOME": str(self.home), "PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "PYTHONPATH": packages}
        words = self.words(self.python(), "-m", "distui", "attach", path)
        self._screens.append(Screen(words, env, self.home))
        return self._screens[-1]

    def close(self) -> None:
        """End its programs, without which the account cannot be removed."""
        for screen in self._screens:
            screen.close()
        shutil.rmtree(self.home, ignore_errors=True)

    def python(self) -> str:
        """An interpreter of this version that this account may execute; ours may be below root's home."""
        for path in (sys.executable, "/usr/bin/python3"):
            code = "import sys; print(*sys.version_info[:2])"
            try:
                done = subprocess.run(
                    self.words(path, "-c", code), capture_output=True, text=True, check=True
                )
            except (OSError, subprocess.CalledProcessError):
                continue
            if done.stdout.split() == [str(part) for part in sys.version_info[:2]]:
                return path
        pytest.skip("no Python of this version that another account may execute")


@pytest.fixture
def colleagues() -> Iterator[list[Colleague]]:
    """Two accounts, removed afterwards."""
    if os.geteuid() != 0 or shutil.which("useradd") is None:
        pytest.skip("only root can make accounts")
    names = [f"dt-{os.getpid()}-{name}" for name in ("bob", "carol")]
    made: list[Colleague] = []
    try:
        for name in names:
            subprocess.run(["useradd", "--no-create-home", "--user-group", name], check=True)
            made.append(Colleague(name))
        yield made
    finally:
        for one in made:
            one.close()
        for name in names:
            subprocess.run(["userdel", name], check=False, capture_output=True)


@pytest.fixture
def live(world: World) -> Run:
    run = world.execute(LINES, name="night")
    assert run.wait("running") == 0
    return run


@pytest.mark.real
def test_the_named_user_looks_and_others_do_not(
    world: World, live: Run, colleagues: list[Colleague]
) -> None:
    bob, carol = colleagues
    shared = world.distui("share", live.id, "--user", bob.name, "--json").fine().json()
    path = shared["socket"]
    assert shared["text"] == f"shared read-only with user {bob.name}"
    screen = bob.attach(path)
    screen.until("RUNNING")
    screen.until("a line for the colleague")
    assert "read-only" in screen.text
    screen.press("x")
    screen.until("read-only: this cannot change the run")
    screen.press("y", "r", "y", "d", "P", "y", "w")
    screen.until("This connection is read-only")
    screen.press("q")
    assert screen.ended() == 0
    assert "night goes on; `" in screen.text
    assert f"distui attach {path}` shows it again" in screen.text.replace("\n", "")
    stranger = carol.attach(path)
    stranger.until("Permission denied")
    assert stranger.ended() == 4
    assert "is for another user or group" in " ".join(stranger.text.split())
    status = live.status()
    assert (status["state"], status["attempt"]) == ("running", 1)
    assert world.distui("share", live.id, "--off").fine().out == "1 share ended\n"
    late = bob.attach(path)
    late.until("othing is shared")
    assert late.ended() == 4
    verbs = [event["text"] for event in live.of("CommandReceived")]
    assert verbs == [f"read-only share with user {bob.name} requested", "end of read-only shares requested"]


@pytest.mark.real
def test_what_is_printed_can_be_pasted(world: World, live: Run) -> None:
    printed = world.distui("share", live.name, "--group", "0", "--for", "2h").fine().out.splitlines()
    assert printed[0] == "shared read-only with group 0 for 2.0 h. To attach, type:"
    words = printed[1].split()
    assert words[:2] == ["distui", "attach"]
    path = Path(words[2])
    assert path.name == shared_sockets.NAME
    assert live.stop("--grace", "1").code == 0
    assert live.wait() in (0, 1)
    assert until(lambda: not path.parent.exists())
    world.distui("attach", str(path), terminal=True).refused(4, "othing is shared", "the share has ended")


def test_whom_it_is_for_has_to_be_said(world: World) -> None:
    run = write(world, "exec", "--", "true")
    for verb in ("share", "serve"):
        world.distui("--readonly", verb, run.id).refused(2, "--readonly allows nothing")
    run.distui("share").refused(2, "for one user or one group: add --user NAME or --group NAME")
    run.distui("share", "--user", "root", "--group", "0").refused(2, "not allowed with")
    run.distui("share", "--user", "nosuchuser").refused(2, "nknown user 'nosuchuser': check the name")
    run.distui("share", "--group", "4294967296").refused(2, "nknown group")
    run.distui("share", "--user", "root", "--for", "soon").refused(2, "'soon' is not a time")
    for words in (("share", "--user", "root"), ("serve",)):
        run.distui(*words).refused(2, "has ended, and only live runs are shared", "distui export")
