"""A rank that measures the bytes per parameter of weights, gradients and AdamW's states, by format and wrapper.

torchrun --nproc-per-node 2 model_states.py FOLDER
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

WIDTH = 64
WRAPPERS = ("none", "autocast", "ddp", "fsdp2", "fsdp2 with a policy")


def local_bytes(tensors: Iterable[Any]) -> int:
    """Bytes of tensors on this rank, without counters of one element."""
    found = [tensor.to_local() if hasattr(tensor, "to_local") else tensor for tensor in tensors]
    return sum(tensor.numel() * tensor.element_size() for tensor in found if tensor.numel() > 1)


def bytes_per_parameter(dtype: torch.dtype, wrapper: str) -> list[float]:
    """Train one step and return the bytes of weights, gradients and optimizer states per parameter of the model."""
    model: nn.Module = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(2))).to(dtype)
    count = sum(parameter.numel() for parameter in model.parameters())
    if wrapper == "ddp":
        model = DistributedDataParallel(model)
    elif wrapper.startswith("fsdp2"):
        options = {}
        if wrapper != "fsdp2":
            options["mp_policy"] = MixedPrecisionPolicy(
                param_dtype=torch.bfloat16, reduce_dtype=torch.float32
            )
        for layer in model:
            fully_shard(layer, **options)
        fully_shard(model, **options)
    optimizer = torch.optim.AdamW(model.parameters())
    inputs = torch.ones(2, WIDTH, dtype=dtype)
    with torch.autocast("cpu", torch.bfloat16, enabled=wrapper == "autocast"):
        loss = model(inputs).float().sum()
    loss.backward()
    optimizer.step()
    states = [value for state in optimizer.state.values() for value in state.values()]
    gradients = [parameter.grad for parameter in model.parameters()]
    return [local_bytes(tensors) / count for tensors in (model.parameters(), gradients, states)]


def main() -> None:
    """Measure every combination and write them as JSON."""
    dist.init_process_group("gloo")
    found = {
        f"{name} {wrapper}": bytes_per_parameter(getattr(torch, name), wrapper)
        for name in ("float32", "bfloat16")
        for wrapper in WRAPPERS
    }
    Path(sys.argv[1], f"rank-{dist.get_rank()}.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
