"""Expert parallelism: the experts of each mixture-of-experts layer are divided over ranks, tokens travel to them.

A module of experts says `expert_parallel = True`, has parameters whose dimension 0 counts the experts, and is
called as `experts(tokens, counts)`: tokens (n, width) sorted by expert, counts (experts) how many each gets.
"""

from __future__ import annotations

from typing import Any, List

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from .settings import ParallelizeError


def divide(model: nn.Module, mesh: DeviceMesh) -> List[str]:
    """Divide all experts of `model` over the dimension ep of `mesh` (dp, ep); the names of their parameters.

    Raises ParallelizeError.
    """
    names = []
    for path, module in model.named_modules():
        if getattr(module, "expert_parallel", False):
            _divide_one(path, module, mesh)
            names += [f"{path}.{name}" for name, _ in module.named_parameters()]
    if not names:
        raise ParallelizeError(
            f"ep divides experts, and {type(model).__name__} has none with expert_parallel = True:"
            " docs/scripts.md shows a layer that has"
        )
    return names


def _divide_one(path: str, module: nn.Module, mesh: DeviceMesh) -> None:
    ranks, group = mesh["ep"].size(), mesh["ep"].get_group()
    for name, parameter in list(module.named_parameters(recurse=False)):
        if parameter.shape[0] % ranks:
            raise ParallelizeError(
                f"ep is {ranks}, which does not divide the {parameter.shape[0]} experts of {path}"
            )
        part = nn.Parameter(distribute_tensor(parameter.detach(), mesh["ep"], [Shard(0)]))
        part.register_hook(lambda gradient: _averaged(gradient, mesh))
        module.register_parameter(name, part)
    inner = module.forward
    module.forward = lambda tokens, counts: _there_and_back(module, inner, tokens, counts, group)


def _averaged(gradient: Any, mesh: DeviceMesh) -> Any:
    """An expert's gradient is the sum over the ranks whose tokens it saw; losses are means over all ranks."""
    local = gradient.to_local() / mesh["ep"].size()
    dist.all_reduce(local, group=mesh["dp"].get_group())
    local /= mesh["dp"].size()
    return DTensor.from_local(local, mesh["ep"], [Shard(0)], run_check=False)


def _there_and_back(
    module: nn.Module, inner: Any, tokens: torch.Tensor, counts: torch.Tensor, group: dist.ProcessGroup
) -> torch.Tensor:
    """Tokens to the ranks of their experts, through them, and back. Both sides keep the order by expert."""
    ranks = dist.get_world_size(group)
    theirs = torch.empty_like(counts)
    dist.all_to_all_single(theirs, counts, group=group)
    sent = counts.view(ranks, -1).sum(1).tolist()
    received = theirs.view(ranks, -1)
    arrived = _Exchange.apply(tokens, received.sum(1).tolist(), sent, group)
    order = _by_expert(received)
    done = _local_forward(module, inner, arrived[order], received.sum(0))
    return _Exchange.apply(done[torch.argsort(order)], sent, received.sum(1).tolist(), group)


def _by_expert(received: torch.Tensor) -> torch.Tensor:
    """(ranks, experts here) counts of what arrived rank by rank → its order expert by expert."""
    ranks, experts = received.shape
    owner = torch.arange(experts, device=received.device).repeat(ranks)
    return torch.argsort(owner.repeat_interleave(received.flatten()), stable=True)


def _local_forward(
    module: nn.Module, inner: Any, tokens: torch.Tensor, counts: torch.Tensor
) -> torch.Tensor:
    """`inner` with this rank's experts as plain tensors."""
    whole = dict(module.named_parameters(recurse=False))
    for name, parameter in whole.items():
        del module._parameters[name]
        object.__setattr__(module, name, parameter.to_local())
    try:
        out: torch.Tensor = inner(tokens, counts)
    finally:
        for name, parameter in whole.items():
            object.__delattr__(module, name)
            module._parameters[name] = parameter
    return out


class _Exchange(torch.autograd.Function):  # type: ignore[misc]
    """all_to_all of rows: `sent[i]` of them go to rank i, `received[i]` come from it; backward the other way."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, received: Any, sent: Any, group: Any) -> torch.Tensor:
        ctx.lists = (sent, received, group)
        out = rows.new_empty((sum(received), *rows.shape[1:]))
        dist.all_to_all_single(out, rows.contiguous(), received, sent, group=group)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        sent, received, group = ctx.lists
        out = gradient.new_empty((sum(sent), *gradient.shape[1:]))
        dist.all_to_all_single(out, gradient.contiguous(), sent, received, group=group)
        return out, None, None, None
