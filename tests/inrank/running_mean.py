"""A part of the small models of these tests."""

from __future__ import annotations

import torch
from torch import nn


class RunningMean(nn.Module):  # type: ignore[misc]
    """A buffer. No BatchNorm: a bias before it has gradients of rounding errors alone, which Adam makes large."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.mean.lerp_(x.detach().mean(0), 0.1)
        return x - self.mean
