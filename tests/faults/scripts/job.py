"""What the jobs of this folder share: they say when their fault begins, and train a little model."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

HEALTHY_S = 3.0
"""Seconds of training before a fault."""


def sign(rank: int = 0) -> None:
    """The fault begins now: its time and rank go into a file that the test reads."""
    path = Path(os.environ["FAULT_SIGN"])
    part = path.with_suffix(f".part{rank}")
    part.write_text(f"{time.time()} {rank}")
    part.rename(path)


def begin() -> int:
    """Join the group; the rank."""
    dist.init_process_group("gloo")
    return int(dist.get_rank())


class Trainer:
    """A model with one flat gradient, averaged over the ranks by a collective of the script's own."""

    def __init__(self, size: int = 64) -> None:
        torch.manual_seed(0)
        self.model: Any = torch.nn.Linear(size, size)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.size = size
        self.began = time.monotonic()

    def due(self, after_s: float = HEALTHY_S) -> bool:
        """Whether there was enough training before the fault."""
        return time.monotonic() - self.began > after_s

    def batch(self) -> torch.Tensor:
        """Samples out of the air."""
        return torch.randn(16, self.size)

    def backward(self, batch: torch.Tensor) -> torch.Tensor:
        """Forward and backward; the gradients as one flat tensor."""
        self.optimizer.zero_grad()
        self.model(batch).square().mean().backward()
        return torch.cat([p.grad.flatten() for p in self.model.parameters()])

    def update(self, flat: torch.Tensor) -> None:
        """Spread the averaged gradients and step."""
        at = 0
        for parameter in self.model.parameters():
            parameter.grad.copy_(flat[at : at + parameter.numel()].view_as(parameter))
            at += parameter.numel()
        self.optimizer.step()

    def step(self, batch: torch.Tensor | None = None, pause_s: float = 0.02) -> None:
        """One optimizer step together with the others."""
        flat = self.backward(self.batch() if batch is None else batch)
        dist.all_reduce(flat)
        self.update(flat / dist.get_world_size())
        time.sleep(pause_s)
