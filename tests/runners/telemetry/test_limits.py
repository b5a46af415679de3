"""What cgroups allow and hold, from files of both versions; cores from this machine's kernel."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from distui.runners.run.formatting import spans_short
from distui.runners.run.proc import CgroupMemory, Limits


def put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def quota(root: Path, periods: int, throttled: int) -> None:
    put(
        root / "sys/fs/cgroup/job/cpu.stat",
        f"usage_usec 9\nnr_periods {periods}\nnr_throttled {throttled}\n",
    )


def test_the_quota_of_the_cgroup_or_of_one_above(tmp_path: Path) -> None:
    put(tmp_path / "proc/7/cgroup", "0::/job/rank\n")
    put(tmp_path / "sys/fs/cgroup/job/rank/cpu.stat", "usage_usec 9\n")
    quota(tmp_path, 100, 10)
    limits = Limits(7, f"{tmp_path}/proc")
    limits.sample()
    quota(tmp_path, 150, 50)
    limits.sample()
    assert limits.throttled == 80.0


def test_without_a_period_between_two_looks_nothing_is_known(tmp_path: Path) -> None:
    put(tmp_path / "proc/7/cgroup", "0::/job\n")
    quota(tmp_path, 150, 50)
    limits = Limits(7, f"{tmp_path}/proc")
    limits.sample()
    limits.sample()
    assert limits.throttled is None


def test_the_quota_of_version_1(tmp_path: Path) -> None:
    put(tmp_path / "proc/7/cgroup", "4:cpu,cpuacct:/job\n0::/\n")
    base = tmp_path / "sys/fs/cgroup/cpu/job/cpu.stat"
    put(base, "nr_periods 10\nnr_throttled 0\nthrottled_time 0\n")
    limits = Limits(7, f"{tmp_path}/proc")
    limits.sample()
    put(base, "nr_periods 30\nnr_throttled 5\nthrottled_time 1000\n")
    limits.sample()
    assert limits.throttled == 25.0


def test_a_process_that_is_moved_to_another_cgroup(tmp_path: Path) -> None:
    put(tmp_path / "proc/7/cgroup", "0::/elsewhere\n")
    put(tmp_path / "sys/fs/cgroup/elsewhere/cpu.stat", "nr_periods 0\nnr_throttled 0\n")
    quota(tmp_path, 10, 0)
    limits = Limits(7, f"{tmp_path}/proc")
    limits.sample()
    put(tmp_path / "proc/7/cgroup", "0::/job\n")
    limits.sample()
    quota(tmp_path, 20, 5)
    limits.sample()
    assert limits.throttled == 50.0


def test_no_quota(tmp_path: Path) -> None:
    put(tmp_path / "proc/7/cgroup", "0::/job\n")
    put(tmp_path / "sys/fs/cgroup/job/cpu.stat", "nr_periods 0\nnr_throttled 0\n")
    limits = Limits(7, f"{tmp_path}/proc")
    limits.sample()
    limits.sample()
    assert limits.throttled is None


def test_the_cores_of_a_process_that_is_bound_to_one() -> None:
    cores, limits = os.sched_getaffinity(0), Limits(os.getpid())
    os.sched_setaffinity(0, [min(cores)])
    try:
        limits.sample()
        assert limits.cpus == str(min(cores))
    finally:
        os.sched_setaffinity(0, cores)
    gone = Limits(4_200_000)
    gone.sample()
    assert gone.cpus is None


@pytest.mark.parametrize(
    ("cores", "text"), [({0}, "0"), ({0, 1, 2, 3, 8}, "0-3,8"), ({1, 2, 7, 8}, "1-2,7-8"), (set(), "")]
)
def test_spans_short(cores: set[int], text: str) -> None:
    assert spans_short(cores) == text


def test_memory_in_use_without_page_cache(tmp_path: Path) -> None:
    put(tmp_path / "proc/self/cgroup", "0::/job/step\n")
    job = tmp_path / "sys/fs/cgroup/job"
    put(job / "memory.max", "1000\n")
    put(job / "memory.current", "900\n")
    put(job / "memory.stat", "anon 300\nfile 500\ninactive_file 400\nactive_file 50\nslab_reclaimable 10\n")
    put(job / "step/memory.max", "max\n")
    put(job / "step/memory.current", "5\n")
    put(job / "step/memory.stat", "anon 5\n")
    assert CgroupMemory(tmp_path).read() == (1000, 440)


def test_memory_in_use_of_version_1(tmp_path: Path) -> None:
    put(tmp_path / "proc/self/cgroup", "4:memory:/job\n0::/\n")
    job = tmp_path / "sys/fs/cgroup/memory/job"
    put(job / "memory.limit_in_bytes", "1000\n")
    put(job / "memory.usage_in_bytes", "700\n")
    put(
        job / "memory.stat",
        "cache 9\nactive_file 1\ninactive_file 1\ntotal_active_file 100\ntotal_inactive_file 50\n",
    )
    assert CgroupMemory(tmp_path).read() == (1000, 550)


def test_memory_without_a_limit_is_not_told(tmp_path: Path) -> None:
    put(tmp_path / "proc/self/cgroup", "0::/job\n")
    job = tmp_path / "sys/fs/cgroup/job"
    put(job / "memory.max", "max\n")
    put(job / "memory.current", "900\n")
    put(job / "memory.stat", "anon 300\n")
    assert CgroupMemory(tmp_path).read() == (None, None)
    assert CgroupMemory(tmp_path / "nothing").read() == (None, None)
