"""`distui launch --hosts` through a real sshd: copied, started, restarted, lost, found again, stopped."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Iterator

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
import sys

import train

if os.environ["DISTUI_NODE"] == "1":
    train.signal.set_wakeup_fd = lambda _: -1  # by which it hears of SIGTERM
sys.exit(train.main())
"""


@pytest.fixture
def hosts() -> Iterator[TwoHosts]:
    with two_hosts() as made:
        yield made


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


@pytest.mark.long
def test_a_rerun_on_the_same_hosts_with_changes(hosts: TwoHosts) -> None:
    short = ("--", "train.py", "--steps", "2")
    begun = hosts.launch("--workdir", ".", "--nproc-per-node", "1", "--env", "GIVEN=7", *short)
    assert begun.returncode == 0, begun.stderr
    assert hosts.distui("wait", "train", "--timeout", PATIENT).returncode == 0
    words = ("--set", "restart.limit=1", "--env", "MORE=8", "--name", "second", "--detach")
    again = hosts.distui("rerun", "train", *words)
    assert again.returncode == 0, again.stderr
    assert hosts.distui("wait", "second", "--timeout", PATIENT).returncode == 0, hosts.distui(
        "status", "second"
    ).stdout
    first, second = (hosts.status(name) for name in ("train", "second"))
    assert [node["host"] for node in second["nodes"]] == [node["host"] for node in first["nodes"]]
    assert second["plan"]["restart_limit"] == 1
    (path,) = (hosts.root / "v" / "state").glob("distui/runs/*-second-*/plan.json")
    env = json.loads(path.read_text())["env"]
    assert (env["GIVEN"], env["MORE"]) == ("7", "8")


@pytest.mark.long
def test_a_lost_host_is_started_again_when_asked(hosts: TwoHosts) -> None:
    begun = hosts.launch("--workdir", ".", "--nnodes", "1:2", "--nproc-per-node", "1", *ENDLESS)
    assert begun.returncode == 0, begun.stderr
    assert hosts.distui("wait", "train", "--until", "healthy", "--timeout", PATIENT).returncode == 0
    hosts.kill_host("beta")
    assert until(lambda: len(hosts.status("train")["ranks"]) == 1), hosts.distui("status", "train").stdout
    back = hosts.distui("restart", "train", "--yes")
    assert back.returncode == 0, back.stderr + hosts.hub_said()
    assert until(lambda: len(hosts.status("train")["ranks"]) == 2), hosts.distui("status", "train").stdout
    assert hosts.distui("stop", "train", "--yes").returncode == 0


@pytest.mark.real
def test_every_host_that_cannot_be_used_is_named_and_nothing_starts(hosts: TwoHosts) -> None:
    options = ("--ssh-config", str(hosts.config), "--hosts", "alpha,gamma,beta,nowhere.invalid")
    done = hosts.distui("launch", "ddp", *options, "--", "train.py")
    assert done.returncode == 4
    assert done.stderr.splitlines() == [
        "distui: 2 of 4 hosts cannot be used, and nothing was started:",
        "  gamma refuses ssh connections: is its sshd up, and the port right?",
        "  nowhere.invalid is no host that is known here: check its name, or add it to ~/.ssh/config",
    ]
    assert not (hosts.root / "v" / "state").exists()
    there = hosts.distui(
        "launch", "ddp", *options[:2], "--hosts", "alpha,beta", "--python", "/bin/false", "--", "gone.py"
    )
    assert there.stderr.splitlines()[1:] == [
        f"  alpha has no gone.py in {hosts.code}: copy it there, or give --workdir DIR",
        f"  beta has no gone.py in {hosts.code}: copy it there, or give --workdir DIR",
    ]


@pytest.mark.long
def test_a_dry_run_shows_the_hosts_and_starts_nothing(hosts: TwoHosts) -> None:
    done = hosts.launch("--dry-run", "--json", "--nproc-per-node", "1", "--", "train.py")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert [host["address"] for host in said["hosts"]] == ["127.0.0.1", "127.0.0.2"]
    assert said["plan"]["nnodes"] == 2
    assert not list(hosts.home["alpha"].iterdir()) or [
        path.name for path in hosts.home["alpha"].iterdir()
    ] == ["s"]


@pytest.mark.long
@pytest.mark.torch
def test_a_port_that_a_stranger_has_taken_ends_the_launch(hosts: TwoHosts) -> None:
    """The first node fails at once, and the others are not left waiting for it."""
    with socket.socket() as stranger:
        stranger.bind(("0.0.0.0", 0))
        stranger.listen()
        port = stranger.getsockname()[1]
        done = hosts.launch(
            "--port",
            str(port),
            "--workdir",
            ".",
            "--name",
            "taken",
            "--nproc-per-node",
            "1",
            "--",
            "train.py",
        )
        assert done.returncode == 0, done.stderr
        assert hosts.distui("wait", "taken", "--until", "running", "--timeout", PATIENT).returncode == 1
    state = hosts.status("taken")
    assert state["state"] == "failed"
    assert f"rendezvous port {port}" in state["text"]
    assert not [
        words for name in hosts.names for words in hosts.processes(name).values() if "launch.py" in words
    ]


@pytest.mark.long
def test_stop_ends_a_host_whose_agent_and_runner_are_stopped(hosts: TwoHosts) -> None:
    """By `distui stop` on that host, which ssh still reaches; however long that takes, the host is not given up."""
    (hosts.code / "deaf.py").write_text(DEAF)
    words = ("--name", "mute", "--nproc-per-node", "1", "--", "deaf.py", *ENDLESS[2:])
    done = hosts.launch("--workdir", ".", *words)
    assert done.returncode == 0, done.stderr
    assert hosts.distui("wait", "mute", "--until", "running", "--timeout", PATIENT).returncode == 0
    (part,) = (hosts.home["beta"] / "state" / "distui" / "runs").glob("*.n1")
    for name in ("agent.json", "runner.json"):
        os.kill(json.loads((part / name).read_text())["pid"], signal.SIGSTOP)
    done = hosts.distui("stop", "mute", "--yes", "--grace", "18")
    assert done.returncode == 0, done.stderr
    assert hosts.status("mute")["state"] == "stopped"
    assert not [
        words for name in hosts.names for words in hosts.processes(name).values() if "deaf.py" in words
    ]
