"""Files that have no end or no size, as those of the kernel: no verb reads them, and each says so in one sentence."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from each import for_each

from distui.runners.run import file_io

from .runs import World

KERNELS = "/proc/self/status"
"""A regular file by stat(2), as /proc/kmsg is, which never ends and takes the kernel's messages from everybody else."""
NO_END = "is a file of the kernel, which may have no end"


@for_each(
    ("words", "sentence"),
    [
        (("diagnose", KERNELS), f"File {KERNELS} {NO_END}: pipe its content instead"),
        (("diagnose", "link.log"), f"File link.log {NO_END}"),
        (("diagnose", "t.py", KERNELS), f"File {KERNELS} {NO_END}"),
        (("diagnose", "/dev/zero"), "File /dev/zero is not a regular file"),
        (("diff", KERNELS), f"{KERNELS} is not a bundle"),
        (("lint", KERNELS), f"File {KERNELS} {NO_END}"),
        (("lint", "/dev/zero"), "File /dev/zero is not a regular file"),
        (("presets", "new", "x", "--from", KERNELS), f"--from {KERNELS} {NO_END}"),
        (("advise", "--script", KERNELS, "--gpus", "8xH100"), f"--script {KERNELS} {NO_END}"),
        (("plan", "ddp", "--hostfile", KERNELS, "--", "t.py"), f"--hostfile {KERNELS} {NO_END}"),
        (("plan", "ddp", "--ssh-config", KERNELS, "--hosts", "h", "--", "t.py"), f"--ssh-config {KERNELS} {NO_END}"),
        (("plan", "--task", KERNELS), f"--task {KERNELS} {NO_END}"),
    ],
)  # fmt: skip
def test_what_has_no_end_is_refused_before_it_is_read(
    world: World, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], sentence: str
) -> None:
    world.script("t.py", "print(1)\n")
    link = world.work / "link.log"
    link.unlink(missing_ok=True)
    link.symlink_to(KERNELS)
    refused = []
    endless = file_io.endless

    def kept(descriptor: int, streams: bool = False) -> str:
        why = endless(descriptor, streams)
        if why:
            refused.append(os.lseek(descriptor, 0, os.SEEK_CUR))
        return why

    monkeypatch.setattr(file_io, "endless", kept)
    done = world.distui(*words)
    assert done.code == 2
    assert sentence in done.err
    assert done.err.count("\n") == 1
    assert set(refused) == {0}, "nothing of it was read"


def test_a_script_that_has_no_end_is_planned_and_unknown(world: World) -> None:
    (world.work / "t.py").symlink_to(KERNELS)
    text = world.distui("plan", "ddp", "--nproc-per-node", "2", "--", "t.py").fine().out
    assert "t.py could not be read as a script, so what it obeys is unknown." in text
    (found,) = world.distui("lint", "--json", "--", "torchrun", "t.py").json()["findings"]
    assert (found["id"], found["text"]) == ("L41", "t.py cannot be read: nothing in it was checked.")


def test_a_log_that_grows_faster_than_it_is_read_has_an_end(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "rank-0.log"
    log.write_text("line\n" * 50_000)
    pread, reads = os.pread, 0

    def growing(descriptor: int, size: int, offset: int) -> bytes:
        nonlocal reads
        reads += 1
        assert reads < 1000
        with log.open("a") as file:
            file.write("line\n" * 50_000)
        return pread(descriptor, size, offset)

    monkeypatch.setattr(os, "pread", growing)
    told = world.distui("diagnose", str(log)).fine().out
    assert "No findings in 100,000 lines" in told, (
        "as it was when it was opened, after a first look at its kind"
    )
