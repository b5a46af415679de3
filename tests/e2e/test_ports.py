"""What a run on one node listens on: nothing of distui's, and torch's own on the loopback alone."""

from __future__ import annotations

import base64
import contextlib
import os
import pickle
import socket
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from patience import HANG_S

from .runs import Run, World, until

pytestmark = pytest.mark.torch
LISTEN = "0A"
NOBODY = 65534
MEETS = """
import time, torch, torch.distributed as dist
dist.init_process_group("gloo")
while True:
    dist.all_reduce(torch.ones(1))
    print("met", flush=True)
    time.sleep(0.1)
"""


def listening(pids: set[int]) -> dict[int, list[str]]:
    """Pid → "ADDRESS:PORT" of each TCP socket that it listens on, as the kernel has it."""
    servers: dict[str, str] = {}
    for table, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        for row in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            words = row.split()
            if words[3] == LISTEN:
                raw, port = words[1].split(":")
                ordered = b"".join(
                    struct.pack("<I", int(raw[at : at + 8], 16)) for at in range(0, len(raw), 8)
                )
                servers[words[9]] = f"{socket.inet_ntop(family, ordered)}:{int(port, 16)}"
    found: dict[int, list[str]] = {}
    for pid in pids:
        found[pid] = []
        with contextlib.suppress(FileNotFoundError):
            for descriptor in os.listdir(f"/proc/{pid}/fd"):
                with contextlib.suppress(FileNotFoundError):
                    name = os.readlink(f"/proc/{pid}/fd/{descriptor}")
                    if name.startswith("socket:[") and name[8:-1] in servers:
                        found[pid].append(servers[name[8:-1]])
    return found


def met(run: Run, attempt: int) -> None:
    """Wait until both ranks of an attempt have talked to each other."""
    stems = [f"node-0/attempt-{attempt:03d}/rank-{rank}.out" for rank in (0, 1)]
    assert until(lambda: all(b"met" in run.file(stem) for stem in stems)), run.describe()


def apart(run: Run) -> list[str]:
    """What the ranks listen on, after it was seen that nobody else of the run does."""
    servers = listening(set(run.world.processes()))
    ranks = run.pids()
    assert {pid: found for pid, found in servers.items() if found and pid not in ranks} == {}, (
        run.describe()
    )
    assert run.runner_pid() in servers
    assert run.agent_pid() in servers
    return [one for pid in ranks for one in servers[pid]]


def own(servers: list[str]) -> None:
    """All on the loopback, and there are the store of rank 0 and one of gloo's a rank."""
    assert len(servers) >= 3
    assert {one.rpartition(":")[0] for one in servers} <= {"127.0.0.1", "::1"}, servers


@pytest.mark.real
def test_nor_does_a_torchrun_in_a_command_which_is_steered_like_a_launch(world: World) -> None:
    world.script("meets.py", MEETS)
    options = "--rdzv-backend c10d --rdzv-endpoint 0.0.0.0:0 --nproc-per-node 2"
    script = world.script("train.sh", f"torchrun {options} meets.py\n")
    path = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    run = world.run("exec", "--name", "own", "--grace", "3", "--", "bash", script, env=path)
    met(run, 1)
    assert [one["kind"] for one in run.of("RunnerStarted")] == ["command", "torchrun"]
    servers = listening(set(world.processes()))
    before = run.status()
    ranks = run.pids()
    outside = {pid: found for pid, found in servers.items() if found and pid not in ranks}
    assert outside == {}, run.describe()
    store = [one for one in servers[ranks[0]] if one.startswith(("0.0.0.0", ":::"))]
    assert store == [], servers
    run.distui("restart", "--env", "OMP_NUM_THREADS=3", "--yes").fine()
    met(run, 2)
    after = run.status()
    assert after["runner_pid"] == before["runner_pid"]
    assert b"OMP_NUM_THREADS=3" in Path(f"/proc/{run.pids()[1]}/environ").read_bytes().split(b"\0")


ATTACK = """
import encodings.idna, os, socket, sys  # before this user may read them no more
os.setgid({nobody}); os.setuid({nobody})
for port in map(int, sys.argv[1].split(",")):
    for data in map(bytes.fromhex, sys.argv[2].split(",")):
        try:
            with socket.create_connection(("127.0.0.1", port), 2) as peer:
                peer.settimeout(1)
                peer.sendall(data)
                peer.recv(65536)
        except OSError:
            pass
"""


@pytest.mark.real
def test_only_ranks_listen_on_the_loopback_and_execute_nothing_for_another_user(
    world: World, tmp_path: Path
) -> None:
    """A pickle is sent to every port there is, as a value of the keys that torch's c10d rendezvous had.

    Then the run restarts in place, which has a store of its own.
    """
    script = world.script("meets.py", MEETS)
    run = world.run("launch", "ddp", "--nproc-per-node", "2", "--grace", "3", "--", script)
    met(run, 1)
    servers = apart(run)
    own(servers)
    marker = tmp_path / "marker"
    if os.geteuid() == 0:  # who can be somebody else
        ports = [one.rpartition(":")[2] for one in servers]
        words = [sys.executable, "-c", ATTACK.format(nobody=NOBODY), ",".join(ports)]
        stores = [data.hex() for data in pickled(marker, run.id)]
        runner, ranks = run.runner_pid(), run.pids()
        subprocess.run([*words, ",".join(stores)], timeout=HANG_S, check=True)
        status = run.status()
        assert (status["attempt"], status["runner_pid"]) == (1, runner), "nobody but its owner restarts it"
        assert [rank["pid"] for rank in status["ranks"]] == ranks
    assert run.distui("restart", "--yes").code == 0
    met(run, 2)
    own(apart(run))
    assert not marker.exists()


def pickled(marker: Path, run: str) -> list[bytes]:
    class Bomb:
        def __reduce__(self) -> Any:
            return os.system, (f"id > {marker}",)

    def counted(data: bytes) -> bytes:
        return struct.pack("<Q", len(data)) + data

    value = base64.b64encode(pickle.dumps(Bomb()))
    hello = b"\0" + struct.pack("<I", 0x3C85F7CE)
    keys = [f"/torch.rendezvous.{run}", f"torch.rendezvous.{run}", f"torch.rendezvous.{run}.0/MASTER_ADDR"]
    return [hello + b"\1" + counted(key.encode()) + counted(value) for key in keys]
