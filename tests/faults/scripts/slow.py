"""A training with one rank that holds the others up: slow.py FAULT."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch
from job import Trainer, begin, sign  # type: ignore[import-not-found]
from torch.utils.data import DataLoader, Dataset

FAULT = sys.argv[1]
ROGUE = 1


class Samples(Dataset[torch.Tensor]):  # type: ignore[misc]
    """Samples, on the rogue slow ones."""

    def __init__(self, rank: int) -> None:
        self.rank, self.began, self.told = rank, time.monotonic(), False

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.rank == ROGUE and time.monotonic() - self.began > 2:
            if not self.told:
                sign(self.rank)
                self.told = True
            fetch()
        return torch.randn(64)


def fetch() -> None:
    """A sample from far away."""
    time.sleep(0.01)


def compute(work: int) -> float:
    """What a rank does on its core in a step."""
    total = 0.0
    for number in range(work):
        total += number * 0.5
    return total


def throttled(rank: int) -> None:
    """The rogue is in a cgroup that gives it a fifth of a core."""
    trainer, moved = Trainer(), False
    while True:
        if rank == ROGUE and not moved and trainer.due():
            Path(os.environ["FAULT_CGROUP"], "cgroup.procs").write_text(str(os.getpid()))
            sign(rank)
            moved = True
        compute(1_000_000)
        trainer.step(pause_s=0.0)


def main() -> None:
    """Train for ever."""
    rank = begin()
    if FAULT == "throttled":
        throttled(rank)
    workers = int(FAULT.rpartition("-")[2])
    trainer = Trainer()
    for batch in DataLoader(Samples(rank), batch_size=32, num_workers=workers):
        trainer.step(batch)


main()
