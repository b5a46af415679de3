"""Expert parallelism: divide the experts of each mixture-of-experts layer over ranks, and send tokens to them.

A module of experts has `expert_parallel = True` and parameters with the experts in dimension 0. It is called as
`experts(tokens, counts)`: tokens (n, width) are sorted by expert, counts (experts) are the tokens per expert.
"""

from __future__ import annotations

from typing import Any, List

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from .settings import ParallelizeError


def divide_experts(model: nn.Module, mesh: DeviceMesh) -> List[str]:
    """Divide all experts of `model` over the dimension ep of `mesh` (dp, ep); return the names of their parameters.

    Only the module's own parameters are divided; those of layers inside it stay whole, and DDP averages them.
    Raises ParallelizeError.
    """
    names = []
    for path, module in model.named_modules():
        if getattr(module, "expert_parallel", False):
            _divide_module(path, module, mesh)
            names += [f"{path}.{name}" for name, _ in module.named_parameters(recurse=False)]
    if not names:
        raise ParallelizeError(
            f"ep divides experts, and {type(model).__name__} has no module with expert_parallel = True:"
            " docs/scripts.md says what such a module needs"
        )
    return names


def _divide_module(path: str, module: nn.Module, mesh: DeviceMesh) -> None:
    ranks, group = mesh["ep"].size(), mesh["ep"].get_group()
    for name, parameter in list(module.named_parameters(recurse=False)):
        if parameter.shape[0] % ranks:
            raise ParallelizeError(
                f"ep is {ranks}, which does not divide the {parameter.shape[0]} experts of {path}"
            )
        part = nn.Parameter(distribute_tensor(parameter.detach(), mesh["ep"], [Shard(0)]))
        part.register_hook(lambda gradient: _averaged_gradient(gradient, mesh))
        module.register_parameter(name, part)
    inner = module.forward
    module.forward = lambda tokens, counts: _forward_with_exchange(module, inner, tokens, counts, group)


def _averaged_gradient(gradient: Any, mesh: DeviceMesh) -> Any:
    """Average an expert's gradient over all ranks.

    The local gradient already sums the tokens of all ep ranks, so divide it by ep, then average over dp.
    """
    local = gradient.to_local() / mesh["ep"].size()
    dist.all_reduce(local, group=mesh["dp"].get_group())
    local /= mesh["dp"].size()
    return DTensor.from_local(local, mesh["ep"], [Shard(0)], run_check=False)


def _forward_with_exchange(
    module: nn.Module, inner: Any, tokens: torch.Tensor, counts: torch.Tensor, group: dist.ProcessGroup
) -> torch.Tensor:
    """Send tokens to the ranks of their experts, compute, and send them back. Both sides sort them by expert."""
    ranks = dist.get_world_size(group)
    received_counts = torch.empty_like(counts)
    dist.all_to_all_single(received_counts, counts, group=group)
    sent = counts.view(ranks, -1).sum(1).tolist()
    received = received_counts.view(ranks, -1)
    arrived = _Exchange.apply(tokens, received.sum(1).tolist(), sent, group)
    order = _by_expert(received)
    done = _local_forward(module, inner, arrived[order], received.sum(0))
    return _Exchange.apply(done[torch.argsort(order)], sent, received.sum(1).tolist(), group)


def _by_expert(received: torch.Tensor) -> torch.Tensor:
    """Return the order by expert of tokens that arrived by rank. `received`: counts (ranks, experts of this rank)."""
    ranks, experts = received.shape
    owner = torch.arange(experts, device=received.device).repeat(ranks)
    return torch.argsort(owner.repeat_interleave(received.flatten()), stable=True)


def _local_forward(
    module: nn.Module, inner: Any, tokens: torch.Tensor, counts: torch.Tensor
) -> torch.Tensor:
    """Call `inner` with this rank's experts as plain tensors.

    nn.Module accepts only parameters under the names of parameters, so take these out of the module for the call, and
    set the local tensors as plain attributes.
    """
    sharded = dict(module.named_parameters(recurse=False))
    for name, parameter in sharded.items():
        del module._parameters[name]
        object.__setattr__(module, name, parameter.to_local())
    try:
        out: torch.Tensor = inner(tokens, counts)
    finally:
        for name, parameter in sharded.items():
            object.__delattr__(module, name)
            module._parameters[name] = parameter
    return out


class _Exchange(torch.autograd.Function):  # type: ignore[misc]
    """all_to_all of rows: sends `sent[i]` rows to rank i and receives `received[i]` from it; backward is the reverse."""

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
