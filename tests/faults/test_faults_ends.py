"""Ranks that die: of what, and whether a restart can help."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from e2e.runs import World

from . import cgroups
from .rig import Wanted, see, start

pytestmark = pytest.mark.torch


@contextmanager
def mounted(path: Path, *options: str) -> Iterator[Path]:
    """A file system in memory at `path`."""
    path.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", *options, "tmpfs", str(path)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip(f"mounting is not permitted here: {done.stderr.strip()}")
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


def test_one_of_four_ranks_raises(world: World) -> None:
    run = start(world, "dies.py", "raises", ranks=4, options=("--env", "FAULT_RANK=3"))
    wanted = Wanted(ids=("died-exception",), rank=3, words=("ValueError", "label 1007"))
    see("a script that raises on rank 3 only", run, wanted)


def test_killed(world: World) -> None:
    wanted = Wanted(ids=("died-killed",), rank=1, words=("SIGKILL",))
    see("one rank is killed (SIGKILL)", start(world, "dies.py", "killed"), wanted)


def test_segmentation_fault(world: World) -> None:
    wanted = Wanted(ids=("died-segfault",), rank=1, words=("SIGSEGV",))
    run = start(world, "dies.py", "segfault")
    see("one rank crashes in C (SIGSEGV)", run, wanted)
    said = world.distui("diagnose", run.id).out
    (stack,) = [line for line in said.splitlines() if "its stack at that moment" in line]
    assert ", dies.py:" in stack
    assert stack.count(" crash, dies.py:") == 1


def test_out_of_the_cgroups_memory(world: World) -> None:
    with cgroups.memory(256 << 20) as group:
        run = start(world, "dies.py", "cgroup", options=("--env", f"FAULT_CGROUP={group}"))
        wanted = Wanted(
            ids=("oom-cgroup", "oom-host"),
            rank=1,
            alongside=("died-host-oom", "died-oom"),
            words=("kernel",),
        )
        see("one rank is out of memory in its cgroup", run, wanted)


def test_out_of_addresses(world: World) -> None:
    """`ulimit -v` is no cgroup: the allocation fails, and nothing is killed."""
    run = start(world, "dies.py", "addresses")
    wanted = Wanted(ids=("died-exception", "died-host-oom", "oom-host"), rank=1, words=("memory",))
    see("one rank gets no more memory (ulimit -v)", run, wanted)


def test_a_checkpoint_directory_that_takes_none(world: World) -> None:
    with mounted(world.work / "checkpoints", "-o", "ro") as folder:
        run = start(world, "dies.py", "save", options=("--env", f"FAULT_FOLDER={folder}"))
        wanted = Wanted(ids=("died-permission",), rank=1, words=("Read-only file system",))
        see("the checkpoint directory is read-only", run, wanted)


def test_a_checkpoint_directory_that_is_a_file(world: World) -> None:
    world.script("checkpoints", "")
    run = start(world, "dies.py", "save", options=("--env", f"FAULT_FOLDER={world.work / 'checkpoints'}"))
    wanted = Wanted(ids=("died-permission", "died-file-missing"), rank=1, words=("checkpoints",))
    see("the checkpoint directory is a file", run, wanted)


def test_a_full_disk_under_the_checkpoints(world: World) -> None:
    with mounted(world.work / "checkpoints", "-o", "size=8m") as folder:
        run = start(world, "dies.py", "save-much", options=("--env", f"FAULT_FOLDER={folder}"))
        see("the disk of the checkpoints is full", run, Wanted(ids=("died-disk-full",), rank=1))


def test_another_size_than_the_others(world: World) -> None:
    """gloo ends the ranks that receive more than they asked for: those, not the culprit, say why."""
    wanted = Wanted(ids=("died-mismatch",), words=("size",))
    see("one rank calls a collective of another size", start(world, "dies.py", "size", ranks=3), wanted)


def test_a_missing_module(world: World) -> None:
    wanted = Wanted(ids=("died-import-missing",), words=("flash_attn_9",))
    see("a missing module", start(world, "begins.py", "module"), wanted)


def test_a_crash_at_import(world: World) -> None:
    wanted = Wanted(ids=("died-import-crash",), words=("KeyError", "half_edited.py"))
    see("a module that crashes when imported", start(world, "begins.py", "import"), wanted)
