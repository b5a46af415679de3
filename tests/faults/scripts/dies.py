"""A training of which one rank dies after a moment: dies.py FAULT."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from job import Trainer, begin, sign  # type: ignore[import-not-found]

FAULT = sys.argv[1]
ROGUE = int(os.environ.get("FAULT_RANK", "1"))


def raise_an_error() -> None:
    """A label that the model has no class for."""
    label = 1007
    if label >= 1000:
        raise ValueError(f"label {label} is out of range: the model has 1000 classes")


def be_killed() -> None:
    """By somebody from outside: no handler, no last word."""
    os.kill(os.getpid(), signal.SIGKILL)


def crash() -> None:
    """A null pointer in an extension."""
    ctypes.string_at(0)


def fill_the_cgroup() -> None:
    """More memory than the cgroup of this process allows."""
    Path(os.environ["FAULT_CGROUP"], "cgroup.procs").write_text(str(os.getpid()))
    hoard = []
    while True:
        hoard.append(torch.ones(1 << 20))


def fill_the_addresses() -> None:
    """More memory than `ulimit -v` allows: an error, no kill."""
    import resource

    held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (held + (256 << 20), held + (256 << 20)))
    hoard = []
    while True:
        hoard.append(torch.ones(1 << 24))


def save() -> None:
    """A checkpoint into a directory that takes none."""
    folder = Path(os.environ["FAULT_FOLDER"])
    torch.save({"weights": torch.zeros(1 << 16)}, folder / "step-100.pt")


def save_much() -> None:
    """A checkpoint onto a file system that is too small."""
    torch.save({"weights": torch.zeros(16 << 20)}, Path(os.environ["FAULT_FOLDER"]) / "step-100.pt")


def other_size() -> None:
    """A collective of another size than the others call."""
    dist.all_reduce(torch.ones(9999))


ENDS = {
    "raises": raise_an_error,
    "killed": be_killed,
    "segfault": crash,
    "cgroup": fill_the_cgroup,
    "addresses": fill_the_addresses,
    "save": save,
    "save-much": save_much,
    "size": other_size,
}


def main() -> None:
    """Train, and die."""
    rank = begin()
    trainer = Trainer()
    while not (rank == ROGUE and trainer.due(1.5)):
        trainer.step()
    sign(rank)
    ENDS[FAULT]()


main()
