"""Runs that other hosts keep, in the list of runs: a real sshd, a host that never answers, one that wants a password."""

from __future__ import annotations

import contextlib
import getpass
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from patience import HANG_S
from ports import free_port

from distui.runners.comparison.loading import load
from distui.runners.launch.hosts import list_on
from distui.runners.run.errors import UnreachableError
from distui.runners.run.wire.ssh import Way
from distui.tui import other_hosts
from distui.tui.other_hosts import HOST, OtherHosts, entry_elsewhere, whole_of
from distui.tui.rows.runs import RunEntry
from distui.tui.source import LocalSource

from .runs import World

SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin")

pytestmark = pytest.mark.skipif(SSHD is None or shutil.which("ssh") is None, reason="needs sshd and ssh")


def reachable(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


@pytest.fixture
def near(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """`near` is this machine with another user's runs, `deaf` says nothing to who connects, `locked` takes no key."""
    tmp_path.chmod(0o700)
    there = tmp_path / "bin-there"
    there.mkdir()
    program = there / "distui"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m distui.tui "$@"\n')
    program.chmod(0o755)
    for name in ("host_key", "user_key", "other_key"):
        key = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / name)]
        subprocess.run(key, check=True, timeout=30)
    shutil.copy(tmp_path / "user_key.pub", tmp_path / "authorized")
    port = free_port()
    (tmp_path / "sshd_config").write_text(
        f"ListenAddress 127.0.0.1\nPort {port}\nHostKey {tmp_path}/host_key\nPidFile none\nStrictModes no\n"
        f"AuthorizedKeysFile {tmp_path}/authorized\nPasswordAuthentication no\nKbdInteractiveAuthentication no\n"
        f"PermitRootLogin yes\nSetEnv HOME={world.root} XDG_STATE_HOME={world.state} "
        f"PATH={there}:/usr/local/bin:/usr/bin:/bin DISTUI_SOCKET_DIR={world.sockets}\n"
    )
    deaf = socket.create_server(("127.0.0.1", 0))
    common = "  HostName 127.0.0.1\n  StrictHostKeyChecking no\n  UserKnownHostsFile /dev/null\n  IdentitiesOnly yes\n"
    (tmp_path / "ssh_config").write_text(
        f"Host near\n  Port {port}\n  IdentityFile {tmp_path}/user_key\n{common}"
        f"Host locked\n  Port {port}\n  IdentityFile {tmp_path}/other_key\n{common}"
        f"Host deaf\n  Port {deaf.getsockname()[1]}\n{common}"
        f"Host *\n  User {getpass.getuser()}\n"
    )
    here = tmp_path / "bin-here"
    here.mkdir()
    (here / "ssh").write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {tmp_path}/ssh_config "$@"\n')
    (here / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{here}:{os.environ['PATH']}")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    assert SSHD is not None
    Path("/run/sshd").mkdir(exist_ok=True) if os.geteuid() == 0 else None  # where sshd gives up its rights
    server = subprocess.Popen(
        [SSHD, "-D", "-e", "-f", str(tmp_path / "sshd_config")], stderr=subprocess.DEVNULL
    )
    try:
        end = time.monotonic() + HANG_S
        while not reachable(port):
            assert time.monotonic() < end
            assert server.poll() is None
            time.sleep(0.05)
        yield world
    finally:
        server.terminate()
        server.wait(20)
        deaf.close()


@pytest.mark.real
async def test_hosts_that_answer_and_hosts_that_do_not(
    near: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The runs of one, a line with the reason for each other; nobody is asked for a password, nothing hangs."""
    near.distui("exec", "--name", "faraway", "--", "true").fine()
    monkeypatch.setattr(other_hosts, "ANSWER_S", HANG_S)  # ssh itself gives up after 10 s
    others = OtherHosts()
    await others.ask(("near", "deaf", "locked"))
    listed = others.entries(set(), time.time())
    by_host = {host: [each for each in listed if each.host == host] for host in ("near", "deaf", "locked")}
    (run,) = by_host["near"]
    assert (run.name, run.phase, run.live, run.exit_code, run.path) == (
        "faraway",
        "succeeded",
        False,
        0,
        "",
    )
    assert run.age_s is not None
    (silent,), (closed,) = by_host["deaf"], by_host["locked"]
    assert silent.problem == "deaf does not answer: is it up, and the network between?"
    assert closed.problem == "locked does not accept your key: `ssh locked` has to work without a password"
    assert {silent.phase, closed.phase} == {"no answer"}

    local = LocalSource()
    local.elsewhere = others
    elsewhere = {entry.host for entry in local.runs()} - {""}  # others may run jobs on this machine
    assert elsewhere == {"near", "deaf", "locked"}
    words = await local.elsewhere.attach_words(run.id, "--readonly")
    there = words[words.index("--") + 1 :]
    assert (there[0], *there[2:]) == ("near", "--readonly", "attach", run.id.rpartition(":")[2])
    runs, problems = await list_on([Way("near")])
    assert problems == []
    assert runs[0]["finding"] == run.finding
    await check_comparison(near)


@pytest.mark.real
def test_what_distui_left_on_a_host_is_removed_there(near: World) -> None:
    (near.root / ".distui").mkdir()
    words = ("uninstall", "--all", "--host", "near", "--host", "locked")
    done = near.distui(*words, "--yes", env={"PATH": os.environ["PATH"]})
    assert (done.code, done.err.count("distui: "), "locked" in done.err) == (1, 1, True)
    assert f"near:{near.root}/.distui " in done.out
    assert not (near.root / ".distui").exists()


async def test_no_host_costs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(other_hosts, "_hosts", lambda: pytest.fail("nobody was to be asked"))
    await OtherHosts().ask(())


async def test_what_is_no_host_is_named() -> None:
    others = OtherHosts()
    await others.ask(("a;b",))
    (line,) = others.entries(set(), 0.0)
    assert "is not a host name" in line.problem


def test_what_another_machine_says_may_be_anything() -> None:
    assert entry_elsewhere("a", {}) is None
    assert entry_elsewhere("a", {"run": 3}) is None
    strange = {
        "run": "r\x1b[31m", "name": ["x"], "state": {}, "created": "yesterday", "ranks": -1, "nodes": True,
        "ended": 1e300, "step": float("nan"), "total": 1e300, "problems": [{}], "finding": "a\nb\x07", "exit_code": None,
    }  # fmt: skip
    entry = entry_elsewhere("a", strange)
    assert entry is not None
    assert (entry.began, entry.ended) == (None, None)
    assert (entry.ranks, entry.nodes, entry.step, entry.total) == (None, None, None, None)
    assert "\x1b" not in entry.id + entry.name
    assert "\n" not in entry.finding
    assert not entry.live


def test_parts_of_a_run_that_is_listed_here_are_no_runs_of_their_own() -> None:
    assert whole_of("20260101-000000-llama-aaaaaaaa.n3") == "20260101-000000-llama-aaaaaaaa"
    assert whole_of("20260101-000000-llama.new-aaaaaaaa") == "20260101-000000-llama.new-aaaaaaaa"
    others = OtherHosts()
    part = RunEntry(
        id=f"{HOST}a:run.n0", name="x", phase="running", live=True, readonly=True, preset="", host="a"
    )
    others._entries = {"a": [part]}
    assert others.entries({"run"}, 0.0) == []
    assert len(others.entries(set(), 0.0)) == 1


async def check_comparison(near: World) -> None:
    """Its distui gives the record, through a real ssh; what cannot be asked is named."""
    variables = ("--env", "RATE=2", "--env", "HF_TOKEN=hf_abcdefgh12345678")
    near.distui("exec", "--name", "compared", *variables, "--", "true").fine()
    there = await load("near:compared")
    assert (there.title, there.state, there.env["RATE"], there.env["HF_TOKEN"]) == (
        "near:compared", "succeeded", "2", "***",
    )  # fmt: skip
    assert there.fingerprints == {}
    assert (await load("near:compared@1")).attempt == 1
    for name, part in (
        ("near:gone", "No run 'gone'"),
        ("near:compared@7", "no attempt 7"),
        ("locked:x", "your key"),
    ):
        with pytest.raises(UnreachableError, match=re.escape(part)) as caught:
            await load(name)
        assert "\n" not in str(caught.value)
