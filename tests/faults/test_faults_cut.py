"""Two nodes with a network between them that breaks; ssh to both goes on."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator

import pytest
from hub.sshd import SSHD
from hub.two_hosts import BIN
from patience import HANG_S

from .network import Apart, Lan, lan
from .rig import SCRIPTS, Wanted, Watching, judge, signed

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(SSHD is None, reason="no sshd here: apt-get install openssh-server"),
]


@pytest.fixture
def net() -> Iterator[Lan]:
    with lan("alpha", "beta") as made:
        yield made


@pytest.fixture
def hosts(net: Lan) -> Iterator[Apart]:
    """alpha and beta, with the scripts of this folder to bring along."""
    made = Apart(net)
    try:
        shutil.copytree(SCRIPTS, made.code, dirs_exist_ok=True)
        yield made
    finally:
        made.close()


def following(hosts: Apart, run: str) -> Watching:
    def follow() -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [BIN / "distui", "events", run, "-f", "--json"], env=hosts.env, cwd=hosts.code,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def describe() -> str:
        return (
            hosts.distui("status", run).stdout + hosts.distui("logs", run).stdout[-4000:] + hosts.hub_said()
        )

    return Watching(follow, describe)


def launch(hosts: Apart, interface: str, *script: str) -> None:
    sign = ("--env", f"FAULT_SIGN={hosts.root / 'sign'}", "--env", f"GLOO_SOCKET_IFNAME={interface}")
    words = ("--restarts", "0", "--workdir", ".", "--nproc-per-node", "1", *sign, "--", *script)
    begun = hosts.launch(*words)
    assert begun.returncode == 0, begun.stderr


def test_the_network_is_cut(hosts: Apart, net: Lan) -> None:
    launch(hosts, "eth0", "hangs.py", "never")
    with following(hosts, "hangs").going_on() as looking:
        waited = hosts.distui("wait", "hangs", "--until", "healthy", "--timeout", f"{HANG_S:g}")
        assert waited.returncode == 0, waited.stderr + looking.dump()
        net.cut("beta")
        wanted = Wanted(ids=("hang-network",), words=("10.79.0.1", "10.79.0.2"))
        judge("the network between two nodes is cut", looking, wanted, time.time())
    hosts.distui("stop", "hangs", "--yes")


def test_an_interface_that_leads_nowhere(hosts: Apart) -> None:
    launch(hosts, "lo", "begins.py", "none")
    with following(hosts, "begins").going_on() as looking:
        sign = signed(hosts.root / "sign", looking.dump)
        wanted = Wanted(ids=("died-connect-timeout",), words=("127.0.0.1", "GLOO_SOCKET_IFNAME"))
        judge("two nodes, GLOO_SOCKET_IFNAME=lo", looking, wanted, sign)
    hosts.distui("stop", "begins", "--yes")
