"""`distui doctor` on hosts: a real sshd on loopback, real torch, and nothing left afterwards."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hub.site import having, until
from hub.two_hosts import BIN, Hosts, TwoHosts, two_hosts
from patience import HANG_S

from distui.runners import run_directories
from distui.runners.hub import on_hosts
from distui.runners.hub.merged_run import LAUNCH_FILE

from . import faults

pytestmark = pytest.mark.torch


class FourHosts(Hosts):
    """As TwoHosts, and two more."""

    names = ("alpha", "beta", "delta", "epsilon")


@pytest.fixture(scope="module")
def hosts() -> Iterator[TwoHosts]:
    with two_hosts() as found:
        yield found


def doctor(hosts: Hosts, *words: str, code: int = 0) -> dict[str, Any]:
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
    assert "is no host that is known here" in unknown["text"]
    assert found["pairs"] == []
    (skipped,) = [one for one in found["findings"] if one["id"] == "D-PAIRS-SKIPPED"]
    assert skipped["text"].startswith("No all-reduce was tried: beta")


@pytest.mark.long
def test_a_head_that_the_others_cannot_reach(hosts: TwoHosts) -> None:
    """TEST-NET-1 (RFC 5737) leads nowhere, so that one address is as good as a firewall."""
    words = ("--hosts", "alpha,beta", "--head-addr", "192.0.2.77", "--no-pairs")
    found = doctor(hosts, *words, code=1)
    (one,) = [one for one in found["findings"] if one["id"] == "D-PORT-UNREACHABLE"]
    assert (one["where"], one["severity"]) == ("beta", "error")
    assert "cannot connect to alpha at 192.0.2.77:" in one["text"]


@pytest.mark.long
def test_one_of_four_whose_ranks_die_is_named(hosts: TwoHosts) -> None:
    """Each host has an interpreter at the same path; that of delta is not as the others'."""
    four = FourHosts()
    try:
        for name in four.names:
            home = four.home[name]
            python = faults.python(home, "killed") if name == "delta" else sys.executable
            (home / "python").write_text(f'#!/bin/sh\nexec {python} "$@"\n')
            (home / "python").chmod(0o755)
        found = doctor(four, "--hosts", ",".join(four.names), "--python", "~/python", "--size", "1", code=1)
    finally:
        assert four.close() == {}
    # How fast the others are depends on what else this machine does.
    assert [(pair["round"], pair["members"], pair["state"] == "dead") for pair in found["pairs"]] == [
        (1, ["alpha", "beta"], False),
        (1, ["delta", "epsilon"], True),
        (2, ["delta", "alpha"], True),
        (2, ["epsilon", "beta"], False),
    ]
    (bad,) = [one for one in found["findings"] if one["id"] in ("D-PAIR-DEAD", "D-LINK-DEAD")]
    assert (bad["id"], bad["where"]) == ("D-PAIR-DEAD", "delta")
    assert "delta, in meeting the other: its process was killed by signal 9" in bad["text"]


@pytest.mark.long
def test_a_run_knows_its_hosts(hosts: TwoHosts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", hosts.env["XDG_STATE_HOME"])
    record = msgspec.structs.replace(run_directories.new_record("looked-at"), kind="hub", nnodes=2)
    path = run_directories.create(record, b"{}", {})
    order = on_hosts.HostsRequest(
        kind=on_hosts.KIND, hosts=("alpha", "beta"), names=("alpha", "beta"), addresses=("127.0.0.1", "127.0.0.2"),
        options=("-F", str(hosts.config)), workdir=str(hosts.code), work="work/gone",
    )  # fmt: skip
    (path / LAUNCH_FILE).write_bytes(msgspec.json.encode(order))
    done = hosts.distui("doctor", "looked-at", "--no-pairs", "--json")
    found = json.loads(done.stdout)
    assert [node["name"] for node in found["nodes"]] == ["alpha", "beta"]
    missing = [one for one in found["findings"] if one["id"] == "D-WORKDIR"]
    assert [(one["where"], one["value"]) for one in missing] == [
        (name, f"{hosts.home[name]}/.distui/work/gone") for name in ("alpha", "beta")
    ]
    refused = hosts.distui("doctor", "looked-at", "--hosts", "alpha")
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)


@pytest.mark.real
@pytest.mark.parametrize("how", [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.long)])
def test_nothing_is_left_of_one_that_is_interrupted(hosts: TwoHosts, how: signal.Signals) -> None:
    """In mid-pair: one side has stopped, and the other waits for it."""
    folder = hosts.root / f"f{int(how)}"
    folder.mkdir()
    python = faults.python(folder, "stopped")
    words = ["doctor", "--ssh-config", str(hosts.config), "--hosts", "alpha,beta", "--python", python]
    process = subprocess.Popen(
        [BIN / "distui", *words], env=hosts.env, cwd=hosts.code, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert until(lambda: stopped(hosts))
        os.kill(process.pid, how)
        out, said = process.communicate(timeout=HANG_S)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == (130 if how is signal.SIGINT else -how), (out, said)
    assert out == b""
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
