"""Who descends from whom, from one look to the next."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from distui.runners.telemetry.rank_samples import AGAIN, ProcessTree


def put(proc: Path, pid: int, ppid: int, started: int = 5) -> None:
    # The kernel reuses pids and gives orphans away when it likes; a /proc of files does it now.
    (proc / str(pid)).mkdir(exist_ok=True)
    zeros = " ".join("0" for _ in range(17))
    (proc / str(pid) / "stat").write_text(f"{pid} (x) S {ppid} {zeros} {started} 0 100 0\n")


@pytest.mark.long
def test_children_come_and_go() -> None:
    tree, me = ProcessTree(), os.getpid()
    tree.refresh()
    before = tree.below([me])[me]
    child = subprocess.Popen(["sleep", "60"])
    try:
        tree.refresh()
        after = tree.below([me])[me]
        assert after.keys() - before.keys() == {child.pid}
        assert after[child.pid] > 0
    finally:
        child.kill()
        child.wait(5)
    tree.refresh()
    assert child.pid not in tree.below([me])[me]


def test_only_new_processes_and_orphans_are_read(tmp_path: Path) -> None:
    for pid, ppid in ((1, 0), (10, 1), (11, 10), (12, 11), (20, 1)):
        put(tmp_path, pid, ppid)
    tree = ProcessTree(str(tmp_path))
    tree.refresh()
    assert tree.below([10, 20]) == {10: {11: 5, 12: 5}, 20: {}}
    shutil.rmtree(tmp_path / "11")
    put(tmp_path, 12, 1)  # its parent has ended
    put(tmp_path, 10, 20)  # told only to whoever reads everything anew
    put(tmp_path, 13, 10)
    tree.refresh()
    assert tree.below([10, 20]) == {10: {13: 5}, 20: {}}
    for _ in range(AGAIN - 1):
        tree.refresh()
    assert tree.below([20]) == {20: {10: 5, 13: 5}}


def test_what_ends_while_it_is_looked_at_is_left_out(tmp_path: Path) -> None:
    put(tmp_path, 1, 0)
    (tmp_path / "7").mkdir()
    tree = ProcessTree(str(tmp_path))
    tree.refresh()
    assert tree.below([1]) == {1: {}}
