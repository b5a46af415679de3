"""Context parallelism: each rank has a piece of a sequence.

Attention gathers keys and values, as in "The Llama 3 Herd of Models" (2024, section 3.3.2), instead of using a ring. It
overrides `scaled_dot_product_attention` with (batch, heads, sequence, size) inside the model's forward, and cuts the
model's inputs along dimension 1. `positions()` returns the positions of this rank's piece.
"""

from __future__ import annotations

from typing import Any, Dict, Tuple

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from .settings import ParallelizeError


def divide_sequences(model: nn.Module, group: dist.ProcessGroup) -> TorchFunctionMode:
    """Cut this rank's piece from each input of `model`. Return the mode that is active during its forward pass."""
    inner, mode = model.forward, _Gathered(group)

    def forward(*inputs: Any, **named: Any) -> Any:
        pieces = [_piece(value, group) for value in inputs]
        with mode:
            return inner(*pieces, **{name: _piece(value, group) for name, value in named.items()})

    model.forward = forward
    return mode


def _piece(value: Any, group: dist.ProcessGroup) -> Any:
    if not isinstance(value, torch.Tensor) or value.ndim < 2:
        return value
    ranks = dist.get_world_size(group)
    if value.shape[1] % ranks:
        raise ParallelizeError(f"cp is {ranks}, which does not divide a sequence of {value.shape[1]}")
    return value.chunk(ranks, dim=1)[dist.get_rank(group)].contiguous()


class _Gathered(TorchFunctionMode):  # type: ignore[misc]
    """Computes attention of this rank's queries over the keys and values of all ranks."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        super().__init__()
        self.group = group

    def __torch_function__(
        self, func: Any, types: Any, args: Tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        given: Dict[str, Any] = dict(kwargs or {})
        if func is not F.scaled_dot_product_attention:
            return func(*args, **given)
        given.update(zip(("query", "key", "value", "attn_mask", "dropout_p", "is_causal"), args))
        if given.get("attn_mask") is not None:
            raise ParallelizeError("cp supports only causal and full attention, without an attn_mask")
        if given.pop("is_causal", False):
            given["attn_mask"] = self._causal(given["query"])
        for name in ("key", "value"):
            given[name] = _Gather.apply(given[name], self.group)
        return func(**given)

    def _causal(self, query: torch.Tensor) -> torch.Tensor:
        length, here = query.shape[-2], dist.get_rank(self.group)
        rows = torch.arange(here * length, (here + 1) * length, device=query.device)
        columns = torch.arange(dist.get_world_size(self.group) * length, device=query.device)
        return rows[:, None] >= columns[None, :]


class _Gather(torch.autograd.Function):  # type: ignore[misc]
    """Gathers all ranks' pieces along dimension -2; backward sums each piece's gradients on its rank."""

    @staticmethod
    def forward(ctx: Any, piece: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        parts = [torch.empty_like(piece) for _ in range(dist.get_world_size(group))]
        dist.all_gather(parts, piece.contiguous(), group=group)
        return torch.cat(parts, dim=-2)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        whole = gradient.contiguous()
        dist.all_reduce(whole, group=ctx.group)
        ranks, here = dist.get_world_size(ctx.group), dist.get_rank(ctx.group)
        return whole.chunk(ranks, dim=-2)[here].contiguous(), None
