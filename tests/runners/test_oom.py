"""What the kernel says of the end of a rank."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from distui.runners.agent.kernel_evidence import (
    NOTHING,
    KernelMessage,
    OomWatch,
    in_kernel_log,
    kernel_log,
    kills_in,
    record,
    xids,
)

KILLED = "Memory cgroup out of memory: Killed process 4242 (python) total-vm:9kB, anon-rss:8kB"
FELL = "NVRM: Xid (PCI:0000:18:00): 79, pid=4242, name=python, GPU has fallen off the bus."
NAMELESS = "NVRM: Xid (PCI:0000:18:00): 48, DBE (double bit error)"


def test_a_record_of_the_kernels_log_is_taken_apart() -> None:
    assert record(b"6,1234,5000000,-;oom-kill: x\n SUBSYSTEM=mm\n") == KernelMessage(
        5.0, "oom-kill: x\n SUBSYSTEM=mm"
    )
    assert record(b"no record") == KernelMessage(0.0, "")


def test_the_pid_decides_who_was_killed() -> None:
    log = [KernelMessage(1.0, KILLED), KernelMessage(2.0, KILLED.replace("4242", "7"))]
    assert in_kernel_log(4242, log) == KILLED
    assert in_kernel_log(424, log) is None


def test_an_xid_is_held_against_the_process_it_names_or_who_ended_right_after() -> None:
    log = [
        KernelMessage(100.0, FELL),
        KernelMessage(100.0, NAMELESS),
        KernelMessage(100.0, "NVRM: loading"),
    ]
    assert xids(4242, log, 5000.0) == (f"kernel log: {FELL} (the GPU fell off the bus)",)
    assert xids(7, log, 110.0) == (f"kernel log: {NAMELESS} (double-bit ECC error)",)
    assert xids(7, log, 5000.0) == ()


@pytest.mark.parametrize(
    ("text", "kills"),
    [
        ("low 0\noom 3\noom_kill 2\n", 2),  # memory.events
        ("oom_kill_disable 0\nunder_oom 0\noom_kill 5\n", 5),  # memory.oom_control of cgroups v1
        ("oom_kill x\n", None),
        ("", None),
    ],
)
def test_the_counter_of_a_cgroup(tmp_path: Path, text: str, kills: int | None) -> None:
    (tmp_path / "memory.events").write_text(text)
    assert kills_in(tmp_path / "memory.events") == kills
    assert kills_in(tmp_path / "none") is None


def test_a_kill_from_outside_is_none_of_the_kernels() -> None:
    watch, gone = OomWatch(), 4_200_000
    watch.follow(os.getpid())
    assert watch.evidence(gone, "SIGKILL") == NOTHING
    assert watch.evidence(None, "SIGKILL") == NOTHING


def test_the_kernels_log_is_read_in_order_where_it_may_be() -> None:
    times = [one.at for one in kernel_log()]
    if not times:
        pytest.skip("this user may not read the kernel's log")
    assert times[-1] > 0
