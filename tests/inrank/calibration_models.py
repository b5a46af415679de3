"""Ten small models of common kinds, on which the memory estimate is calibrated. Each returns its loss from `x` and `y`.

`advise --script calibration_models.py:NAME` counts the same classes.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import nn
from torch.nn import functional as F

from distui.presets.examples import chargpt

LENGTH = 64


class Dense(chargpt.CharGPT):
    """chargpt with any vocabulary."""

    def __init__(
        self, layers: int = 8, width: int = 256, length: int = LENGTH, words: int = 128, heads: int = 8
    ) -> None:
        super().__init__(layers, width, length, heads)
        self.words, self.length = words, length
        self.characters, self.head = nn.Embedding(words, width), nn.Linear(width, words)

    def batch(self, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return random samples."""
        x, y = (torch.randint(self.words, (size, self.length)) for _ in "xy")
        return x, y


class Wide(Dense):
    """Few layers, wide."""

    def __init__(self) -> None:
        super().__init__(layers=2, width=512)


class Deep(Dense):
    """Many layers, narrow."""

    def __init__(self) -> None:
        super().__init__(layers=24, width=128)


class Tied(Dense):
    """A large vocabulary; the embedding is also the head."""

    def __init__(self) -> None:
        super().__init__(layers=4, width=192, words=8192)
        self.head = nn.Linear(192, 8192, bias=False)
        self.head.weight = self.characters.weight


class Long(Dense):
    """Sequences so long that activations are most of the memory."""

    def __init__(self) -> None:
        super().__init__(layers=3, width=192, length=512)


class GroupedBlock(nn.Module):  # type: ignore[misc]
    """A block as in Llama 3: RMSNorm, four queries per key and value, and a gated MLP."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.size, inner = width // heads, 7 * width // 2
        self.norm_attention, self.norm_mlp = nn.RMSNorm(width), nn.RMSNorm(width)
        self.q, self.out = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.k, self.v = (nn.Linear(width, width // 4, bias=False) for _ in "kv")
        self.gate, self.up = (nn.Linear(width, inner, bias=False) for _ in "gu")
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, time, width) → the same shape."""
        h = self.norm_attention(x)
        shape = (*x.shape[:2], -1, self.size)
        q, k, v = (part(h).view(shape).transpose(1, 2) for part in (self.q, self.k, self.v))
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        h = self.norm_mlp(x)
        result: torch.Tensor = x + self.down(F.silu(self.gate(h)) * self.up(h))
        return result


class Grouped(Dense):
    """A model as Llama 3, with 8192 words."""

    block: Any = GroupedBlock
    tp_plan: ClassVar[dict[str, str]] = {
        "blocks.*.norm_attention": "sequence_parallel",
        "blocks.*.norm_mlp": "sequence_parallel",
        **{f"blocks.*.{name}": "colwise" for name in ("q", "k", "v", "gate", "up")},
        **{f"blocks.*.{name}": "rowwise" for name in ("out", "down")},
        "norm": "sequence_parallel",
        "head": "colwise_rep",
    }

    def __init__(self) -> None:
        super().__init__(layers=4, width=256, words=2048)


class Experts(nn.Module):  # type: ignore[misc]
    """Four networks of two layers, their weights stacked, as `ep` divides them."""

    expert_parallel = True

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.randn(4, width, 4 * width) / width**0.5)
        self.down = nn.Parameter(torch.randn(4, 4 * width, width) / (4 * width) ** 0.5)

    def forward(self, tokens: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        """(n, width) tokens sorted by expert → the same shape."""
        parts = tokens.split(counts.tolist())
        done = [F.gelu(part @ up) @ down for part, up, down in zip(parts, self.up, self.down, strict=True)]
        return torch.cat(done)


class Mixture(nn.Module):  # type: ignore[misc]
    """Sends each token to one expert."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.router, self.experts = nn.Linear(width, 4), Experts(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, time, width) → the same shape."""
        tokens = x.flatten(0, 1)
        weight, expert = self.router(tokens).softmax(-1).max(-1)
        order = torch.argsort(expert, stable=True)
        answers = self.experts(tokens[order], torch.bincount(expert, minlength=4))
        back = torch.empty_like(order).scatter_(0, order, torch.arange(len(order)))
        return (answers[back] * weight[:, None]).view_as(x)


class ExpertBlock(chargpt.Block):
    """A block with a mixture of experts."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__(width, heads)
        self.mlp = Mixture(width)


class MoE(Dense):
    """A mixture of four experts in each layer."""

    block: Any = ExpertBlock
    tp_plan: ClassVar[dict[str, str]] = {}

    def __init__(self) -> None:
        super().__init__(layers=3, width=192)


class Adapted(nn.Module):  # type: ignore[misc]
    """A frozen matrix and a trained one of rank 16 (LoRA)."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Linear(base.in_features, 16, bias=False)
        self.up = nn.Linear(16, base.out_features, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return base(x) with the adapter's part."""
        result: torch.Tensor = self.base(x) + self.up(self.down(x))
        return result


class LoRA(Dense):
    """Adapters on every matrix of a frozen model."""

    tp_plan: ClassVar[dict[str, str]] = {}

    def __init__(self) -> None:
        super().__init__()
        self.requires_grad_(False)
        for block in self.blocks:
            block.qkv, block.out = Adapted(block.qkv), Adapted(block.out)
            block.mlp[0], block.mlp[2] = Adapted(block.mlp[0]), Adapted(block.mlp[2])


class MLP(nn.Module):  # type: ignore[misc]
    """Ten hidden layers."""

    length = 32

    def __init__(self, width: int = 768) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(10))
        self.last = nn.Linear(width, 10)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Return the cross-entropy."""
        for layer in self.layers:
            x = layer(x)
        return F.cross_entropy(self.last(x), y)

    @staticmethod
    def batch(size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return random samples."""
        return torch.randn(32 * size, 768), torch.randint(10, (32 * size,))


class Residual(nn.Module):  # type: ignore[misc]
    """Two convolutions, and their input."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in "ab")
        self.norm_first, self.norm_second = nn.BatchNorm2d(width), nn.BatchNorm2d(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return an image of the same shape."""
        h = F.relu(self.norm_first(self.first(x)))
        return F.relu(x + self.norm_second(self.second(h)))


class ResNet(nn.Module):  # type: ignore[misc]
    """A residual network for images of 16 × 16."""

    length = 256

    def __init__(self, width: int = 96) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.layers = nn.ModuleList(Residual(width) for _ in range(8))
        self.last = nn.Linear(width, 10)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Return the cross-entropy."""
        x = self.stem(x)
        for layer in self.layers:
            x = layer(x)
        return F.cross_entropy(self.last(x.mean((2, 3))), y)

    @staticmethod
    def batch(size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return random samples."""
        return torch.randn(size, 3, 16, 16), torch.randint(10, (size,))


MODELS: dict[str, Any] = {
    each.__name__: each for each in (Dense, Wide, Deep, Tied, Long, Grouped, MoE, LoRA, MLP, ResNet)
}
