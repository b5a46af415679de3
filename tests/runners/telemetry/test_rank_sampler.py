"""Samples of real processes that really work."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import patience
import psutil
import pytest

from distui.runners.run.proc import all_stats, below, children, parse_stat, read_io, read_nspids, read_stat
from distui.runners.telemetry.rank_samples import AGAIN, CHILDREN_S, ProcessTree, RankSampler

NOBODY = 4_200_000
"""Above the largest pid of Linux."""


class Clock:
    """A clock that the test winds."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@contextmanager
def process(code: str) -> Iterator[subprocess.Popen[bytes]]:
    """A Python child; it has said "up" when this hands it over."""
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        assert child.stdout.readline() == b"up\n"
        asleep(child.pid)
        yield child
    finally:
        child.kill()
        child.wait()
        child.stdin.close()
        child.stdout.close()


def tell(child: subprocess.Popen[bytes]) -> bytes:
    """Send a line, wait for the answer, and until the process waits for the next line."""
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write(b"go\n")
    child.stdin.flush()
    answer = child.stdout.readline()
    asleep(child.pid)
    return answer


def asleep(pid: int) -> None:
    """Wait until a process uses no processor."""
    end = time.monotonic() + patience.HANG_S
    while (stat := read_stat(pid)) is not None and stat.state != "S":
        assert time.monotonic() < end, stat
        time.sleep(0.001)


BURN = """
import sys, time, threading
print("up", flush=True)
sys.stdin.readline()
threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
held = bytearray(64 << 20)
while time.process_time() < 0.5: pass
print("burnt", flush=True)
sys.stdin.readline()
"""


@pytest.mark.real
def test_a_busy_rank() -> None:
    clock = Clock()
    sampler = RankSampler(clock=clock)
    with process(BURN) as child:
        first = sampler.sample({3: child.pid})[3]
        assert (first.rank, first.pid, first.cpu_percent, first.threads) == (3, child.pid, None, 1)
        before = read_stat(child.pid)
        assert tell(child) == b"burnt\n"
        clock.now += 2
        sample = sampler.sample({3: child.pid})[3]
        after = read_stat(child.pid)
        assert before is not None
        assert after is not None
        assert after.cpu_s - before.cpu_s > 0.4
        assert sample.cpu_percent == pytest.approx(100 * (after.cpu_s - before.cpu_s) / 2)
        assert sample.threads == 2
        assert sample.rss_bytes == pytest.approx(psutil.Process(child.pid).memory_info().rss, rel=0.05)
        assert sample.rss_bytes is not None
        assert sample.rss_bytes > 64 << 20
        assert sample.children == 0


def test_children_count_for_processor_time(tmp_path: Path) -> None:
    clock = Clock()
    sampler, ranks = RankSampler(proc=str(tmp_path), clock=clock), {0: 4711}
    put(tmp_path, 4711)
    put(tmp_path, 4712, parent=4711)
    assert sampler.sample(ranks)[0].cpu_percent is None
    put(tmp_path, 4712, parent=4711, ticks=os.sysconf("SC_CLK_TCK") // 2)
    clock.now += 1
    assert sampler.sample(ranks)[0].cpu_percent == pytest.approx(50)


def test_children_are_looked_for_rarely_and_for_all_ranks_at_once(tmp_path: Path) -> None:
    clock = Clock()
    sampler, ranks = RankSampler(proc=str(tmp_path), clock=clock), {0: 4711}
    put(tmp_path, 4711)
    assert sampler.sample(ranks)[0].children == 0
    put(tmp_path, 4712, parent=4711)
    clock.now += CHILDREN_S - 0.1
    assert sampler.sample(ranks)[0].children == 0
    clock.now += 0.2
    assert sampler.sample(ranks)[0].children == 1
    shutil.rmtree(tmp_path / "4712")
    clock.now += 1
    assert sampler.sample(ranks)[0].children == 0, "at once"


def test_storage(tmp_path: Path) -> None:
    if read_io(os.getpid()) is None:
        pytest.skip("this kernel does not count storage by process")
    clock = Clock()
    sampler = RankSampler(clock=clock)
    ranks = {0: os.getpid()}
    assert sampler.sample(ranks)[0].write_bps is None
    before = read_io(os.getpid())
    with (tmp_path / "checkpoint").open("wb") as file:
        file.write(os.urandom(1 << 20))
        file.flush()
        os.fsync(file.fileno())
    clock.now += 2
    after = read_io(os.getpid())
    assert before is not None
    assert after is not None
    assert sampler.sample(ranks)[0].write_bps == pytest.approx((after[1] - before[1]) / 2)


def put(proc: Path, pid: int, started: int = 5, parent: int = 1, ticks: int = 0) -> None:
    """A process in a /proc of files: the kernel ends processes and reuses their pids when it likes."""
    (proc / str(pid)).mkdir(exist_ok=True)
    fields = f"S {parent} {'0 ' * 9}{ticks} {'0 ' * 7}{started} 0 100 0"
    (proc / str(pid) / "stat").write_text(f"{pid} (python) {fields}\n")


def test_a_rank_that_ended_has_no_values(tmp_path: Path) -> None:
    clock = Clock()
    sampler = RankSampler(proc=str(tmp_path), clock=clock)
    put(tmp_path, 4711)
    assert sampler.sample({0: 4711})[0].rss_bytes
    (tmp_path / "4711" / "stat").write_text("")  # as an open file of /proc is read once its process is gone
    shutil.rmtree(tmp_path / "4711")
    clock.now += 1
    sample = sampler.sample({0: 4711})[0]
    assert (sample.pid, sample.rss_bytes, sample.cpu_percent) == (4711, None, None)
    assert sampler.tree(0) == ()


def test_a_pid_given_to_another_process_has_no_values(tmp_path: Path) -> None:
    clock = Clock()
    sampler = RankSampler(proc=str(tmp_path), clock=clock)
    put(tmp_path, 4711, started=5)
    assert sampler.sample({0: 4711})[0].rss_bytes == 100 * os.sysconf("SC_PAGE_SIZE")
    put(tmp_path, 4711, started=6)
    for _ in range(2):
        clock.now += 1
        assert sampler.sample({0: 4711})[0].rss_bytes is None
    assert sampler.tree(0) == ()


def test_a_process_that_is_exiting_has_no_memory_to_tell_of(tmp_path: Path) -> None:
    """Its state is still R, its pages are gone: 0 would be shown as what the rank used at its end."""
    put(tmp_path, 4711)
    stat = tmp_path / "4711" / "stat"
    stat.write_text(stat.read_text().replace(" 0 100 0", " 0 0 0"))
    assert RankSampler(proc=str(tmp_path), clock=Clock()).sample({0: 4711})[0].rss_bytes is None


def test_a_restarted_rank_begins_anew(tmp_path: Path) -> None:
    clock = Clock()
    sampler = RankSampler(proc=str(tmp_path), clock=clock)
    for pid in (4711, 4712, 4713):
        put(tmp_path, pid)
    sampler.sample({0: 4711, 1: 4712})
    clock.now += 1
    sample = sampler.sample({0: 4713})
    assert list(sample) == [0]
    assert sample[0].cpu_percent is None
    assert sample[0].rss_bytes is not None


def test_unknown_pid() -> None:
    sample = RankSampler().sample({0: NOBODY})[0]
    assert (sample.pid, sample.rss_bytes) == (NOBODY, None)


def test_a_process_of_any_name_is_read() -> None:
    stat = parse_stat(b"7 (a) (b c)) R 3 " + b"1 " * 7 + b"2 2 150 50 1 2 3 4 9 8 77 6 5\n")
    assert stat is not None
    assert (stat.pid, stat.name, stat.state, stat.ppid) == (7, "a) (b c)", "R", 3)
    assert stat.cpu_s == pytest.approx(200 / os.sysconf("SC_CLK_TCK"))
    assert (stat.threads, stat.started) == (9, 77)
    assert parse_stat(b"7 (a") is None


def test_descendants_survive_a_circle() -> None:
    parents = {2: 1, 3: 2, 4: 3, 5: 1, 6: 9, 9: 6}
    assert set(below(children(parents), 1)) == {2, 3, 4, 5}
    assert set(below(children(parents), 6)) == {9}
    assert below({}, 1) == ()


def test_proc_of_this_process() -> None:
    me = {stat.pid: stat for stat in all_stats()}[os.getpid()]
    assert me.ppid == os.getppid()
    assert read_nspids(os.getpid())[-1] > 0
    assert read_nspids(NOBODY) == ()


def test_what_holds_a_rank_back_is_told_with_it() -> None:
    """Its cores; a quota is told where there is one, which tests/faults makes."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        sample = RankSampler().sample({0: os.getpid()})[0]
    finally:
        os.sched_setaffinity(0, cores)
    assert sample.cpus == str(min(cores))


def test_only_new_processes_and_orphans_are_read(tmp_path: Path) -> None:
    for pid, ppid in ((1, 0), (10, 1), (11, 10), (12, 11), (20, 1)):
        put(tmp_path, pid, parent=ppid)
    tree = ProcessTree(str(tmp_path))
    tree.refresh()
    assert tree.below([10, 20]) == {10: {11: 5, 12: 5}, 20: {}}
    shutil.rmtree(tmp_path / "11")
    put(tmp_path, 12, parent=1)  # its parent has ended
    put(tmp_path, 10, parent=20)  # told only to whoever reads everything anew
    put(tmp_path, 13, parent=10)
    tree.refresh()
    assert tree.below([10, 20]) == {10: {13: 5}, 20: {}}
    for _ in range(AGAIN - 1):
        tree.refresh()
    assert tree.below([20]) == {20: {10: 5, 13: 5}}


def test_what_ends_while_it_is_looked_at_is_left_out(tmp_path: Path) -> None:
    put(tmp_path, 1, parent=0)
    (tmp_path / "7").mkdir()
    tree = ProcessTree(str(tmp_path))
    tree.refresh()
    assert tree.below([1]) == {1: {}}
