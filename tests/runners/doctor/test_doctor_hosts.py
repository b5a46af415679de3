"""`distui doctor` on hosts: a real sshd on loopback, real torch, and nothing left afterwards."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hub.site import having, until
from hub.two_hosts import BIN, TwoHosts, two_hosts
from patience import HANG_S

from distui.runners.doctor.examine import DoctorRequest, Examination, NodeToCheck
from distui.runners.hub import on_hosts
from distui.runners.hub.merged_run import LAUNCH_FILE
from distui.runners.run import run_directories
from distui.runners.run.wire.ssh import Way
from distui.tui.cli import main
from distui.tui.verbs import doctor as verb

from . import faults

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def hosts() -> Iterator[TwoHosts]:
    with two_hosts() as found:
        yield found


def doctor(hosts: TwoHosts, *words: str, code: int = 0) -> dict[str, Any]:
    done = hosts.distui("doctor", "--ssh-config", str(hosts.config), "--json", *words)
    assert done.returncode == code, done.stdout + done.stderr
    assert done.stderr == ""
    found: dict[str, Any] = json.loads(done.stdout)
    assert until(lambda: not [pid for name in hosts.names for pid in hosts.processes(name)])
    return found


def ids(found: dict[str, Any], where: str | None = None) -> list[str]:
    return [one["id"] for one in found["findings"] if where is None or one["where"] == where]


@pytest.mark.real
def test_two_hosts(hosts: TwoHosts) -> None:
    found = doctor(hosts, "--hosts", "alpha,beta")
    assert [node["name"] for node in found["nodes"]] == ["alpha", "beta"]
    assert [node["ssh_address"] for node in found["nodes"]] == ["127.0.0.1", "127.0.0.2"]
    assert all(abs(node["ahead_s"]) < 1 for node in found["nodes"])
    assert [node["disks"][0]["path"] for node in found["nodes"]] == [
        f"{hosts.home[name]}/state/distui/runs" for name in hosts.names
    ]
    assert "D-SAME-MACHINE" in ids(found, "")
    assert not [one for one in found["findings"] if one["severity"] == "error"]
    (pair,) = found["pairs"]
    assert (pair["round"], pair["members"], pair["right"], pair["state"]) == (
        1,
        ["alpha", "beta"],
        True,
        "good",
    )
    assert pair["bytes_per_s"] > 1e6


@pytest.mark.real
def test_what_is_wrong_with_each_of_four_hosts(hosts: TwoHosts) -> None:
    """A port that is taken, an interpreter that only one has, one that refuses, one that is unknown."""
    env = hosts.home["alpha"] / "env"
    env.symlink_to(Path(sys.executable).parents[1])
    words = ("--hosts", "alpha,beta,gamma,no-such-host.invalid", "--python", "~/env/bin/python")
    found = doctor(hosts, *words, "--port", str(hosts.sshd.port), code=1)
    env.unlink()
    assert [node.get("reached", True) for node in found["nodes"]] == [True, True, False, False]
    assert "D-PORT-BUSY" in ids(found, "alpha")
    assert "D-PORT-BUSY" not in ids(found, "beta")
    assert "D-PYTHON" in ids(found, "beta")
    assert "D-PYTHON" not in ids(found, "alpha")
    (refused,) = [one for one in found["findings"] if one["where"] == "gamma"]
    assert (refused["id"], refused["severity"]) == ("D-SSH", "error")
    assert refused["value"] == "gamma refuses ssh connections: is its sshd up, and the port right?"
    (unknown,) = [one for one in found["findings"] if one["where"] == "no-such-host.invalid"]
    assert "unknown host" in unknown["text"]
    assert found["pairs"] == []
    (skipped,) = [one for one in found["findings"] if one["id"] == "D-PAIRS-SKIPPED"]
    assert skipped["text"].startswith("No all-reduce was tried: beta")


def test_a_run_knows_its_hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[DoctorRequest] = []

    async def examine(request: DoctorRequest, show: object) -> Examination:
        asked.append(request)
        return Examination()

    monkeypatch.setattr(verb, "examine", examine)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    record = msgspec.structs.replace(run_directories.new_record("looked-at"), kind="hub", nnodes=2)
    path = run_directories.create(record, b"{}", {})
    order = on_hosts.HostsRequest(
        kind=on_hosts.KIND, hosts=("me@a", "b"), names=("a", "b"), addresses=("10.0.0.1", "10.0.0.2"),
        options=("-F", "/x"), workdir="/w", work="work/train",
    )  # fmt: skip
    (path / LAUNCH_FILE).write_bytes(msgspec.json.encode(order))
    assert main(["doctor", "looked-at"]) == 0
    assert asked[0].places == [NodeToCheck(host, Way(host, ("-F", "/x"))) for host in ("me@a", "b")]
    assert asked[0].cwd == "~/.distui/work/train"
    assert main(["doctor", "looked-at", "--hosts", "a"]) == 2


@pytest.mark.real
def test_nothing_is_left_of_one_that_is_killed(hosts: TwoHosts) -> None:
    """In mid-pair: one side has stopped, and the other waits for it."""
    python = faults.python(hosts.root, "stopped")
    words = ["doctor", "--ssh-config", str(hosts.config), "--hosts", "alpha,beta", "--python", python]
    process = subprocess.Popen(
        [BIN / "distui", *words], env=hosts.env, cwd=hosts.code, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert until(lambda: stopped(hosts))
        process.kill()
        out, said = process.communicate(timeout=HANG_S)
    finally:
        process.kill()
        process.communicate()
    assert (process.returncode, out) == (-signal.SIGKILL, b""), said
    assert until(lambda: not any(hosts.processes(name) for name in hosts.names))
    assert until(lambda: not having(f"HOME={hosts.root / 'v'}"))


def stopped(hosts: TwoHosts) -> bool:
    """Whether a rank of the pair has stopped."""
    for name in hosts.names:
        for pid in hosts.processes(name):
            try:
                if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T":
                    return True
            except OSError:
                continue
    return False
