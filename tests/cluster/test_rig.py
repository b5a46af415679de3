"""The rig itself: that it is a cluster, that its accidents are real, and that it leaves nothing."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from desk import typed_ssh
from patience import HANG_S
from slurm.cluster import Cluster
from slurm.owned import guarded, sweep
from slurm.settings import FREEZER, MARKER, Places, Shape, Trouble

ROOT = Path(__file__).resolve().parents[2]
ALONE = """
import os, socket, torch.distributed as dist, torch
dist.init_process_group("gloo")
total = torch.ones(1) * (1 + dist.get_rank())
dist.all_reduce(total)
print(f"rank {dist.get_rank()} of {dist.get_world_size()} on {socket.gethostname()}: {total.item():.0f}")
dist.destroy_process_group()
"""
TASK = """
name: sum
num_nodes: 2
workdir: {workdir}
resources: {{infra: slurm/distui, accelerators: "H100:2", cpus: 2, memory: 2}}
run: |
  echo visible $CUDA_VISIBLE_DEVICES
  OMP_NUM_THREADS=1 $JOB_PYTHON -m torch.distributed.run --nnodes=$SKYPILOT_NUM_NODES --nproc_per_node=1 \
    --node_rank=$SKYPILOT_NODE_RANK --master_addr=$(echo "$SKYPILOT_NODE_IPS" | head -n1) --master_port=8008 alone.py
"""


def rig(*words: str, env: dict[str, str], by: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """The rig's command line."""
    return subprocess.run(
        [*by, sys.executable, "-m", "tests.rigs.slurm", *words],
        cwd=ROOT,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )


def test_up_twice_is_harmless(cluster: Cluster) -> None:
    before = {host: next(one.pid for one in cluster.processes(host)) for host in cluster.hosts}
    cluster.up()
    assert {host: next(one.pid for one in cluster.processes(host)) for host in cluster.hosts} == before
    with pytest.raises(Trouble, match="different"):
        cluster.up(Shape(nodes=3))


def test_nodes_are_machines_of_their_own(cluster: Cluster) -> None:
    seen = {}
    for host in cluster.hosts:
        told = cluster.on(
            host, ["sh", "-c", "hostname; cat /proc/sys/kernel/random/boot_id; ls /sys/class/net"]
        )
        name, boot, *cards = told.stdout.split()
        assert (name, cards) == (host, ["eth0", "lo"])
        seen[boot] = host
    assert len(seen) == len(cluster.hosts)
    assert not {one.pid for one in cluster.processes("c1")} & {one.pid for one in cluster.processes("c2")}
    mine = f"distui-cluster-{uuid.uuid4()}"
    for folder in ("/tmp", "/dev/shm", "/var/tmp"):
        assert cluster.on("c1", ["touch", f"{folder}/{mine}"]).returncode == 0
        assert cluster.on("c1", ["test", "-e", f"{folder}/{mine}"]).returncode == 0
        assert cluster.on("c2", ["test", "-e", f"{folder}/{mine}"]).returncode == 1
        assert not Path(folder, mine).exists()


def test_nodes_share_a_home_and_nothing_else(cluster: Cluster) -> None:
    cluster.on("c1", ["sh", "-c", "echo hello > ~/note"])
    assert cluster.on("c2", ["sh", "-c", "cat ~/note"]).stdout == "hello\n"
    assert (cluster.shared_home / "note").read_text() == "hello\n"
    assert cluster.client(["sh", "-c", "cat ~/note"]).returncode == 1
    for host in cluster.hosts:
        denied = cluster.on(host, ["touch", "/usr/here"])
        assert denied.returncode == 1
        assert "Read-only" in denied.stderr
    assert cluster.on("c1", ["ls", ROOT / "tui"]).returncode != 0, "a node has no checkout"


def test_hosts_reach_each_other_and_nobody_else(cluster: Cluster) -> None:
    for host in ("login", *cluster.nodes):
        assert cluster.client(["ssh", host, "hostname"], 20).stdout == f"{host}\n"
    reach = "import socket; print(socket.create_connection(('c2', 22), 5).recv(3))"
    assert cluster.on("c1", [sys.executable, "-I", "-c", reach]).stdout == "b'SSH'\n"
    for host in cluster.hosts:
        assert cluster.on(host, ["ip", "route", "show", "default"]).stdout == ""


def test_slurm_has_two_idle_nodes_with_gpus(cluster: Cluster) -> None:
    assert cluster.states() == {"c1": "idle", "c2": "idle"}
    ran = cluster.on(
        "login", ["srun", "-N2", "--gres=gpu:2", "sh", "-c", "echo $(hostname) $CUDA_VISIBLE_DEVICES"]
    )
    assert sorted(ran.stdout.split("\n")) == ["", "c1 0,1", "c2 0,1"], ran.stderr


def test_skypilot_trains_on_both_nodes(skypilot: Cluster) -> None:
    cluster = skypilot
    folder = cluster.scratch / "sum"
    folder.mkdir(exist_ok=True)
    (folder / "alone.py").write_text(ALONE)
    (folder / "task.yaml").write_text(TASK.format(workdir=folder))
    try:
        launched = cluster.client(["sky", "launch", "-y", "-c", "sum", folder / "task.yaml"], 150)
        assert launched.returncode == 0, launched.stdout + launched.stderr
        for line in ("visible 0,1", "rank 0 of 2 on c1: 3", "rank 1 of 2 on c2: 3"):
            assert line in launched.stdout
        assert typed_ssh(cluster, "sum-worker1", "hostname").stdout == "c2\n"
    finally:
        ended = cluster.client(["sky", "down", "-y", "sum"], 60)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    cluster.wait(lambda: cluster.idle() == 2, "the nodes are free again")
    assert cluster.on("login", ["squeue", "-h"]).stdout == ""


@pytest.fixture
def conversation(whole: Cluster) -> Iterator[subprocess.Popen[bytes]]:
    """An ssh session from the client to c2 that repeats what it is told."""
    pipe = subprocess.PIPE
    alive = ["ssh", "-o", "ServerAliveInterval=0", "c2", "cat"]
    with whole.popen(alive, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, bufsize=0) as session:
        try:
            say(session, b"hello\n")
            assert hear(session, HANG_S) == b"hello\n"
            yield session
        finally:
            session.terminate()


def say(session: subprocess.Popen[bytes], words: bytes) -> None:
    assert session.stdin is not None
    session.stdin.write(words)


def hear(session: subprocess.Popen[bytes], timeout: float) -> bytes | None:
    """What comes within that time; None when nothing, empty when the session is over."""
    assert session.stdout is not None
    return (
        os.read(session.stdout.fileno(), 100)
        if select.select([session.stdout], [], [], timeout)[0]
        else None
    )


def test_a_cable_can_be_pulled_and_put_back(whole: Cluster, conversation: subprocess.Popen[bytes]) -> None:
    whole.unplug("c2")
    say(conversation, b"anybody there?\n")
    assert hear(conversation, 1.5) is None
    whole.plug("c2")
    assert hear(conversation, HANG_S) == b"anybody there?\n"


def test_a_crash_is_silent_and_slurm_finds_out(
    whole: Cluster, conversation: subprocess.Popen[bytes]
) -> None:
    boot_id = ["cat", "/proc/sys/kernel/random/boot_id"]
    before = whole.on("c2", boot_id).stdout
    processes = whole.processes("c2")
    whole.crash("c2")
    assert not [one for one in processes if lives(one)]
    assert hear(conversation, 1.5) is None, "a machine without power says no good-bye"
    assert conversation.poll() is None
    with pytest.raises(Trouble, match="c2 is powered off"):
        whole.on("c2", ["true"])
    whole.wait(lambda: whole.states()["c2"].startswith("down"), "Slurm sees the crash", 90, every=0.5)
    whole.boot("c2")
    whole.wait(lambda: whole.idle() == 2, "Slurm takes the node back", 60)
    assert whole.on("c2", boot_id).stdout != before


def lives(process: psutil.Process) -> bool:
    """Also one that was started from outside is killed; it may be a zombie until whoever started it asks for it."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def traces() -> dict[str, str]:
    """What a rig could leave on the machine, outside its folder."""
    links = subprocess.run(["ip", "-br", "link"], capture_output=True, text=True, check=True).stdout
    named = Path("/run/netns")
    return {
        "mounts": Path("/proc/self/mountinfo").read_text(),
        "links": links,
        "groups": str(sorted(FREEZER.iterdir()) if FREEZER.exists() else []),
        "named": str(sorted(named.iterdir()) if named.exists() else []),
    }


def spaces(pid: int) -> set[str]:
    found = set()
    for kind in ("mnt", "net", "pid", "uts", "ipc"):
        try:
            found.add(os.readlink(f"/proc/{pid}/ns/{kind}"))
        except OSError:
            continue
    return found


def carries(pid: int, folder: Path) -> bool:
    try:
        return f"{MARKER}={folder}".encode() in Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False


@pytest.mark.parametrize("proctrack", ["linuxproc", "cgroup"])
def test_down_leaves_nothing(tmp_path: Path, proctrack: str) -> None:
    if proctrack == "cgroup" and not FREEZER.is_mount():
        pytest.skip(f"no {FREEZER} here: Slurm's proctrack/cgroup needs cgroup v1")
    before = traces()
    cluster = Cluster(Places(folder=tmp_path / "rig"))
    with guarded(cluster):
        cluster.up(Shape(nodes=1, gpus=0, proctrack=proctrack))
        of_rig = cluster.namespaces()
        assert len(of_rig) > 10
        assert sum(carries(pid, tmp_path / "rig") for pid in psutil.pids()) > 5
        ran = cluster.on("login", ["srun", "sh", "-c", "grep -c slurm /proc/self/cgroup"])
        assert (int(ran.stdout) > 0) == (proctrack == "cgroup"), ran.stderr
        during = traces()
        assert {**during, "groups": before["groups"]} == before, "nor is anything there while it is up"
        daemon = cluster.client(["sh", "-c", "setsid sleep 600 > /dev/null 2>&1 & echo $!"])
        assert daemon.stdout.strip().isdigit()
    assert [pid for pid in psutil.pids() if spaces(pid) & of_rig or carries(pid, tmp_path / "rig")] == []
    assert traces() == before
    assert list(tmp_path.iterdir()) == []
    cluster.down()


OWNER = """
import sys, time
from tests.rigs.slurm.cluster import Cluster
from tests.rigs.slurm.owned import owned
from tests.rigs.slurm.settings import Shape
if sys.argv[1] == "booting":
    Cluster.up = lambda cluster, shape: (cluster.power(shape), cluster.places.record.unlink())
with owned(Shape(nodes=1, gpus=0)) as cluster:
    if sys.argv[1] == "up":
        cluster.popen(["sleep", "600"])
    print(cluster.places.folder, flush=True)
    time.sleep(600)
"""
"""What a session of tests is to its rig; `booting`: cut off before the rig's record was written."""


@contextmanager
def an_owner(tmp_path: Path, when: str = "up") -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """Another process that has a rig, and the folder that it is in."""
    words = (sys.executable, "-c", OWNER, when)
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(words, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True) as owner:
        try:
            assert owner.stdout is not None
            folder = Path(owner.stdout.readline().strip())
            assert sum(carries(pid, folder) for pid in psutil.pids()) > 5
            yield owner, folder
        finally:
            owner.kill()


def left(tmp_path: Path, folder: Path) -> list[object]:
    """What there is of a rig: processes, and files."""
    return [*(pid for pid in psutil.pids() if carries(pid, folder)), *tmp_path.iterdir()]


@pytest.mark.parametrize("when", ["up", "booting"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_rig_goes_with_its_owner(tmp_path: Path, number: int, when: str) -> None:
    with an_owner(tmp_path, when) as (owner, folder):
        owner.send_signal(number)
        owner.wait(HANG_S)
        waited(lambda: not left(tmp_path, folder), "nothing is left")


def test_what_owner_and_guard_left_goes_before_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with an_owner(tmp_path) as (owner, folder), an_owner(tmp_path) as (_, living):
        (guard,) = [one for one in psutil.Process(owner.pid).children() if "guard" in one.cmdline()]
        guard.kill()
        owner.kill()
        owner.wait()
        assert left(tmp_path, folder)
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        sweep()
        assert not [pid for pid in psutil.pids() if carries(pid, folder)]
        assert list(tmp_path.iterdir()) == [living.parent], "whose owner lives"
        assert f"takes down {folder}, which process {owner.pid} left" in capfd.readouterr().err
        assert sum(carries(pid, living) for pid in psutil.pids()) > 5
    waited(lambda: not left(tmp_path, living), "that one goes with its owner")


def waited(so: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + HANG_S
    while not so():
        assert time.monotonic() < end, what
        time.sleep(0.1)


def test_root_without_namespaces_is_told_so(tmp_path: Path) -> None:
    """As in a container without privileges."""
    without = ("setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin")
    done = rig("up", env={"DISTUI_RIG_DIR": str(tmp_path / "rig")}, by=without)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "this machine gives no network namespaces" in done.stderr


def test_what_it_cannot_do_is_said_in_a_sentence(tmp_path: Path) -> None:
    env = {"DISTUI_RIG_DIR": str(tmp_path / "rig")}
    for words, sentence in (
        (["status"], "no rig is up in"),
        (["crash", "c1"], "no host c1 here; there are none, the rig is down"),
        (["run", "--", "true"], "no host client here"),
        (["up", "--nodes", "0"], "a rig has 1 to 64 nodes, not 0"),
    ):
        done = rig(*words, env=env)
        assert (done.returncode, done.stdout) == (1, "")
        assert sentence in done.stderr
        assert done.stderr.count("\n") == 1
    done = rig("up", env={**env, "DISTUI_RIG_CACHE": str(tmp_path / "empty")})
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "prepare` first" in done.stderr
    (tmp_path / "rig").mkdir(exist_ok=True)
    (tmp_path / "rig/thesis.tex").write_text("years of work")
    done = rig("up", env=env)
    assert done.returncode == 1
    assert "holds something that is no rig" in done.stderr
    assert rig("down", env=env).returncode == 0
    assert (tmp_path / "rig/thesis.tex").exists()
