"""`distui launch --hosts` through a real sshd: copied, started, restarted, lost, found again, stopped."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e.runs import contents
from patience import HANG_S

from .sshd import SSHD
from .two_hosts import TwoHosts, two_hosts, until

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(SSHD is None, reason="no sshd here: apt-get install openssh-server"),
]
PATIENT = str(HANG_S)
ENDLESS = ("--", "train.py", "--steps", "0", "--step-delay", "0.02")
DEAF = """\
import os
import signal
import sys

import train

if os.environ["DISTUI_NODE"] == "1":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
sys.exit(train.main())
"""


@pytest.fixture
def hosts() -> Iterator[TwoHosts]:
    with two_hosts() as made:
        yield made


def environments(hosts: TwoHosts, name: str) -> list[dict[str, str]]:
    """Of the ranks of a host."""
    found = []
    for pid in hosts.processes(name):
        entries = Path(f"/proc/{pid}/environ").read_text().split("\0")
        variables = dict(entry.split("=", 1) for entry in entries if "=" in entry)
        if "DISTUI_RUNNER_PID" in variables:
            found.append(variables)
    return found


@pytest.mark.real
def test_a_run_on_two_hosts_from_launch_to_stop(hosts: TwoHosts) -> None:
    begun = hosts.launch("--workdir", ".", "--nproc-per-node", "1", "--env", "MY_TOKEN=hunter2", *ENDLESS)
    assert begun.returncode == 0, begun.stderr
    waited = hosts.distui("wait", "train", "--until", "running", "--timeout", PATIENT)
    assert waited.returncode == 0, waited.stderr + hosts.distui("events", "train").stdout + hosts.hub_said()
    status = hosts.status("train")
    assert [node["node"] for node in status["nodes"]] == [0, 1]
    assert [(rank["rank"], rank["node"], rank["state"]) for rank in status["ranks"]] == [
        (0, 0, "running"),
        (1, 1, "running"),
    ]
    for name in ("alpha", "beta"):
        (work,) = (hosts.home[name] / ".distui" / "work").iterdir()
        assert (work / "train.py").read_bytes() == (hosts.code / "train.py").read_bytes()
        assert b"hunter2" not in contents(hosts.home[name])
        (key,) = hosts.home[name].glob("state/distui/runs/*/relay.key")
        assert key.stat().st_mode & 0o777 == 0o600
        (rank,) = environments(hosts, name)
        assert "DISTUI_RELAY_KEY" not in rank
        folders = rank["PYTHONPATH"].split(":")
        assert [Path(folder).parts[-2:] for folder in folders] == [("inrank", "site")], "the hook's alone"
    elsewhere = ("--ssh-config", str(hosts.config), "--host", "alpha", "--host", "beta", "--host", "gamma")
    listed = hosts.distui("ls", "--json", *elsewhere)
    assert [(run["on"], run["name"], run["state"]) for run in json.loads(listed.stdout)] == [
        ("alpha", "train", "running"),
        ("beta", "train", "running"),
    ]
    assert (listed.returncode, listed.stderr.count("gamma refuses")) == (4, 1)
    again = hosts.distui("restart", "train", "--yes")
    assert again.returncode == 0, again.stderr
    done = hosts.distui("stop", "train", "--yes")
    assert done.returncode == 0, done.stderr
    assert until(lambda: not (hosts.processes("alpha") or hosts.processes("beta")))


@pytest.mark.real
def test_every_host_that_cannot_be_used_is_named_and_nothing_starts(hosts: TwoHosts) -> None:
    options = ("--ssh-config", str(hosts.config), "--hosts", "alpha,gamma,beta,nowhere.invalid")
    done = hosts.distui("launch", "ddp", *options, "--", "train.py")
    assert done.returncode == 4
    said, gamma, nowhere = done.stderr.splitlines()
    assert said == "distui: 2 of 4 hosts cannot be used, and nothing was started:"
    assert gamma == "  gamma refuses ssh connections: is its sshd up, and the port right?"
    assert nowhere.startswith("  unknown host nowhere.invalid: check its name, or add it ")
    assert not (hosts.root / "v" / "state").exists()
    there = hosts.distui(
        "launch", "ddp", *options[:2], "--hosts", "alpha,beta", "--python", "/bin/false", "--", "gone.py"
    )
    assert there.stderr.splitlines()[1:] == [
        f"  alpha has no gone.py in {hosts.code}: copy it there, or give --workdir DIR",
        f"  beta has no gone.py in {hosts.code}: copy it there, or give --workdir DIR",
    ]


@pytest.mark.long
def test_a_lost_host_is_started_again_and_a_mute_one_is_stopped(hosts: TwoHosts) -> None:
    """The latter by `distui stop` on that host, which ssh still reaches, although agent and runner are stopped."""
    (hosts.code / "deaf.py").write_text(DEAF)
    words = ("--nnodes", "1:2", "--nproc-per-node", "1", "--name", "mute", "--", "deaf.py", *ENDLESS[2:])
    begun = hosts.launch("--workdir", ".", *words)
    assert begun.returncode == 0, begun.stderr
    waited = hosts.distui("wait", "mute", "--until", "healthy", "--timeout", PATIENT)
    assert waited.returncode == 0, hosts.distui("status", "mute").stdout + hosts.hub_said()
    hosts.kill_host("beta")
    assert until(lambda: len(hosts.status("mute")["ranks"]) == 1), hosts.distui("status", "mute").stdout
    back = hosts.distui("restart", "mute", "--yes")
    assert back.returncode == 0, back.stderr + hosts.hub_said()
    assert until(lambda: len(hosts.status("mute")["ranks"]) == 2), hosts.distui("status", "mute").stdout
    (part,) = (hosts.home["beta"] / "state" / "distui" / "runs").glob("*.n1")
    for name in ("agent.json", "runner.json"):
        os.kill(json.loads((part / name).read_text())["pid"], signal.SIGSTOP)
    done = hosts.distui("stop", "mute", "--yes", "--grace", "18")
    assert done.returncode == 0, done.stderr
    assert hosts.status("mute")["state"] == "stopped"
    assert not [
        words for name in hosts.names for words in hosts.processes(name).values() if "deaf.py" in words
    ]
