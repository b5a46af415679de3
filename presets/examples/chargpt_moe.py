"""chargpt with mixtures of experts: each character goes to one of several small networks.

    distui launch moe -- presets/examples/chargpt_moe.py --steps 500

Expert parallelism divides `Experts`: it has `expert_parallel`, parameters with the experts in dimension 0, and a call
with tokens sorted by expert. Routing follows "Switch Transformers" (Fedus and others, 2021), without a capacity.
"""

from __future__ import annotations

import sys
from typing import ClassVar

import chargpt  # type: ignore[import-not-found]
import torch
from torch import nn
from torch.nn import functional as F

EXPERTS = 4


class Experts(nn.Module):  # type: ignore[misc]
    """EXPERTS networks of two layers, their weights stacked."""

    expert_parallel = True

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.randn(EXPERTS, width, 2 * width) / width**0.5)
        self.down = nn.Parameter(torch.randn(EXPERTS, 2 * width, width) / (2 * width) ** 0.5)

    def forward(self, tokens: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        """(n, width) tokens sorted by expert, and how many each gets → the same shape."""
        parts = tokens.split(counts.tolist())
        done = [F.gelu(part @ up) @ down for part, up, down in zip(parts, self.up, self.down, strict=True)]
        return torch.cat(done)


class Mixture(nn.Module):  # type: ignore[misc]
    """Sends each token to the expert with the highest router score, and scales its output by this score."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.router, self.experts = nn.Linear(width, EXPERTS), Experts(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, time, width) → the same shape."""
        tokens = x.flatten(0, 1)
        weight, expert = self.router(tokens).softmax(-1).max(-1)
        order = torch.argsort(expert, stable=True)
        counts = torch.bincount(expert, minlength=EXPERTS)
        answers = self.experts(tokens[order], counts)
        back = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=order.device))
        return (answers[back] * weight[:, None]).view_as(x)


class Block(chargpt.Block):  # type: ignore[misc]
    """A block with a mixture instead of the two-layer MLP."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__(width, heads)
        self.mlp = Mixture(width)


class CharMoE(chargpt.CharGPT):  # type: ignore[misc]
    """chargpt with these blocks."""

    block = Block
    tp_plan: ClassVar[dict[str, str]] = {}


if __name__ == "__main__":
    try:
        sys.exit(chargpt.main(CharMoE))
    except chargpt.preset.ParallelizeError as error:
        sys.exit(chargpt.refused("chargpt_moe", error))
