"""Ranks that never meet, slow ones, networks that break, and disks that are full."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing

import pytest
from e2e.runs import World
from ports import free_port

from . import cgroups
from .network import NOBODY, Islander, lan
from .rig import Wanted, execute, see, start
from .test_faults_ends import mounted

pytestmark = pytest.mark.torch


@pytest.fixture
def islander() -> Iterator[World]:
    """A user in a network of their own, in which one address swallows everything."""
    with lan("island") as net:
        world = Islander(net, "island")
        try:
            yield world
        finally:
            world.close()


def by_hand(address: str, port: int) -> tuple[str, ...]:
    """Where begins.py looks for rank 0."""
    return ("--env", f"FAULT_ADDRESS={address}", "--env", f"FAULT_PORT={port}")


def test_a_wrong_master_address(islander: World) -> None:
    run = start(islander, "begins.py", "address", options=by_hand(NOBODY, 29500))
    wanted = Wanted(ids=("start-unreachable",), words=(f"{NOBODY}:29500",))
    see("a wrong MASTER_ADDR that nobody answers", run, wanted)


def test_a_port_in_use(world: World) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as other:
        port = other.getsockname()[1]
        run = start(world, "begins.py", "port", options=by_hand("127.0.0.1", port))
        see("MASTER_PORT is in use", run, Wanted(ids=("died-port-in-use",), rank=0, words=(str(port),)))


def test_world_sizes_that_differ(world: World) -> None:
    run = start(world, "begins.py", "world")
    see("one rank has another WORLD_SIZE", run, Wanted(ids=("start-world-size",), words=("2", "3")))


def test_a_world_size_of_ones_own(world: World) -> None:
    """`distui exec` of one rank that is told of four."""
    port = str(free_port())
    own = {
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "4",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
    }
    wanted = Wanted(ids=("start-world-size", "start-waiting"), words=("WORLD_SIZE", "4"))
    see("exec of one rank with WORLD_SIZE=4", execute(world, "begins.py", "none", env=own), wanted)


def test_an_interface_that_is_not_there(world: World) -> None:
    run = start(world, "begins.py", "none", options=("--env", "GLOO_SOCKET_IFNAME=nope0"))
    see("GLOO_SOCKET_IFNAME names no interface", run, Wanted(ids=("died-address",), words=("nope0",)))


def test_a_slow_core(world: World) -> None:
    with cgroups.cpu(0.2) as group:
        run = start(world, "slow.py", "throttled", options=("--env", f"FAULT_CGROUP={group}"))
        wanted = Wanted(ids=("straggler",), rank=1, words=("CPU quota",))
        see("one rank's CPU is throttled by its cgroup", run, wanted)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_slow_data_loader(world: World, workers: int) -> None:
    run = start(world, "slow.py", f"loader-{workers}")
    wanted = Wanted(ids=("straggler",), rank=1, words=("data loader",))
    see(f"one rank's data loader is slow ({workers or 'no'} workers)", run, wanted)


def test_a_full_disk_under_the_logs(world: World) -> None:
    world.state.rmdir()
    with mounted(world.state, "-o", "size=6m"):
        try:
            script = "plain.py"
            world.script(
                script,
                "import time\nwhile True:\n    print('on and on', flush=True)\n    time.sleep(0.05)\n",
            )
            run = world.run("launch", "ddp", "--nproc-per-node", "2", "--grace", "2", "--", script)
            assert run.wait("running") == 0
            began = time.time()
            subprocess.run(
                ["dd", "if=/dev/zero", f"of={world.state}/ballast", "bs=4096"],
                capture_output=True,
                check=False,
            )
            see("a full disk under the logs", run, Wanted(ids=("disk-full",), node=0), began)
        finally:
            world.stop_all()
