"""A node's sample against what this machine's kernel says, and against files of other kernels."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import psutil
import pytest

from distui.runners.run.proc import CgroupMemory
from distui.runners.telemetry.host import HostSampler


class Clock:
    """A clock that the test winds."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_a_sample_of_this_machine(tmp_path: Path) -> None:
    sampler = HostSampler(tmp_path)
    first = sampler.sample()
    deadline = time.process_time() + 0.1
    while time.process_time() < deadline:  # so that some CPU time passes
        pass
    host = sampler.sample()
    memory = psutil.virtual_memory()
    assert host.cores == os.cpu_count()
    assert host.mem_total == memory.total
    assert host.mem_used == pytest.approx(memory.total - memory.available, rel=0.2)
    assert host.disk_total == shutil.disk_usage(tmp_path).total
    assert host.disk_free == pytest.approx(shutil.disk_usage(tmp_path).free, rel=0.1)
    assert first.cpu_percent is None
    assert host.cpu_percent is not None
    assert 0 < host.cpu_percent <= 100
    assert first.net_rx_bps is None
    assert host.load1 is not None
    assert first.steal_percent is None
    assert host.steal_percent is not None
    assert 0 <= host.steal_percent <= 100
    assert host.page_cache is not None
    assert 0 < host.page_cache < memory.total


def test_a_machine_that_tells_nothing_has_no_values(tmp_path: Path) -> None:
    clock = Clock()
    sampler = HostSampler(tmp_path / "gone", tmp_path, clock)
    sampler.sample()
    clock.now += 1
    host = sampler.sample()
    for field in (
        "net_rx_bps",
        "ib_rx_bps",
        "cpu_stall_percent",
        "cgroup_mem_max",
        "cgroup_mem_used",
        "nic_errors",
        "disk_free",
    ):
        assert getattr(host, field) is None


def network(root: Path, **received: int) -> None:
    lines = [
        f"{name:>6}: {count} 1 0 0 0 0 0 0 {count // 2} 1 0 0 0 0 0 0\n" for name, count in received.items()
    ]
    put(root / "proc/net/dev", "Inter-| Receive\n face |bytes\n" + "".join(lines))
    for name in received:
        (root / "sys/class/net" / name).mkdir(parents=True, exist_ok=True)


def test_only_real_interfaces_count(tmp_path: Path) -> None:
    clock = Clock()
    network(tmp_path, lo=0, eth0=0, eth1=0, bond0=0, docker0=0)
    for name in ("eth0", "eth1"):
        (tmp_path / "sys/class/net" / name / "device").mkdir()
    sampler = HostSampler(tmp_path, tmp_path, clock)
    sampler.sample()
    network(tmp_path, lo=9000, eth0=1000, eth1=2000, bond0=3000, docker0=500)
    clock.now += 2
    host = sampler.sample()
    assert (host.net_rx_bps, host.net_tx_bps) == (1500.0, 750.0)


def test_in_a_container_all_but_loopback_count(tmp_path: Path) -> None:
    clock = Clock()
    network(tmp_path, lo=0, eth0=0)
    sampler = HostSampler(tmp_path, tmp_path, clock)
    sampler.sample()
    network(tmp_path, lo=9000, eth0=1000)
    clock.now += 1
    assert sampler.sample().net_rx_bps == 1000.0


def infiniband(root: Path, device: str, received: str, sent: str) -> None:
    counters = root / f"sys/class/infiniband/{device}/ports/1/counters"
    put(counters / "port_rcv_data", received)
    put(counters / "port_xmit_data", sent)


def test_infiniband_counts_in_units_of_four_bytes(tmp_path: Path) -> None:
    clock = Clock()
    infiniband(tmp_path, "mlx5_0", "100\n", "50\n")
    infiniband(tmp_path, "mlx5_1", "7\n", "0\n")
    sampler = HostSampler(tmp_path, tmp_path, clock)
    assert sampler.sample().ib_rx_bps is None
    infiniband(tmp_path, "mlx5_0", "1100\n", "50\n")
    infiniband(tmp_path, "mlx5_1", "507\n", "250\n")
    clock.now += 1
    host = sampler.sample()
    assert (host.ib_rx_bps, host.ib_tx_bps) == (6000.0, 1000.0)
    infiniband(tmp_path, "mlx5_1", "", "300\n")  # a port that went away
    clock.now += 1
    host = sampler.sample()
    assert (host.ib_rx_bps, host.ib_tx_bps) == (None, 200.0)


def test_pressure(tmp_path: Path) -> None:
    sampler = HostSampler(tmp_path, tmp_path)
    put(tmp_path / "proc/pressure/cpu", "some avg10=12.34 avg60=1.00 avg300=0.50 total=1\n")
    assert sampler.sample().cpu_stall_percent == 12.34


def test_cgroup_version_2_takes_the_tightest_limit_above(tmp_path: Path) -> None:
    put(tmp_path / "proc/self/cgroup", "0::/slurm/job_7/step_0\n")
    base = tmp_path / "sys/fs/cgroup/slurm"
    put(base / "memory.max", "max\n")
    put(base / "job_7/memory.max", "64000\n")
    put(base / "job_7/step_0/memory.max", "max\n")
    assert CgroupMemory(tmp_path).read()[0] == 64000


def test_cgroup_version_2_in_a_container_that_sees_only_its_own(tmp_path: Path) -> None:
    put(tmp_path / "proc/self/cgroup", "0::/kubepods/pod1/x\n")
    put(tmp_path / "sys/fs/cgroup/memory.max", "4096\n")
    assert CgroupMemory(tmp_path).read()[0] == 4096


@pytest.mark.parametrize(("limit", "expected"), [("9223372036854771712\n", None), ("8192\n", 8192)])
def test_cgroup_version_1(tmp_path: Path, limit: str, expected: int | None) -> None:
    put(tmp_path / "proc/self/cgroup", "5:devices:/\n4:cpu,memory:/job/7\n0::/\n")
    base = tmp_path / "sys/fs/cgroup/memory/job/7"
    put(base / "memory.limit_in_bytes", limit)
    assert CgroupMemory(tmp_path).read()[0] == expected


def test_no_cgroup(tmp_path: Path) -> None:
    assert CgroupMemory(tmp_path).read() == (None, None)
