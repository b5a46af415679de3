"""Measure the bytes per parameter that Accelerate and DeepSpeed keep in half precision; RESULTS is the folder."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import deepspeed
import torch
from accelerate import Accelerator
from torch import nn

WIDTH = 64
LAYERS = 8
COUNT = LAYERS * WIDTH**2


def bytes_of(values: Iterable[Any]) -> float:
    """Bytes per parameter of the model, without counters of one element."""
    tensors = [value for value in values if torch.is_tensor(value) and value.numel() > 1]
    return float(sum(tensor.numel() * tensor.element_size() for tensor in tensors)) / COUNT


def states(optimizer: torch.optim.Optimizer) -> float:
    return bytes_of(value for state in optimizer.state.values() for value in state.values())


def model() -> nn.Module:
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)))


def with_accelerate(accelerator: Accelerator, dtype: torch.dtype) -> list[float]:
    """Weights, gradients and AdamW's states after one step under mixed precision."""
    net = model().to(dtype)
    net, optimizer = accelerator.prepare(net, torch.optim.AdamW(net.parameters()))
    accelerator.backward(net(torch.ones(2, WIDTH, dtype=dtype)).float().sum())
    optimizer.step()
    parameters = list(net.parameters())
    return [bytes_of(parameters), bytes_of(one.grad for one in parameters), states(optimizer.optimizer)]


def with_deepspeed(stage: int) -> list[float]:
    """Weights of this rank, and its copy in fp32 with AdamW's states, after one step in bf16."""
    net = model()
    settings = {
        "train_micro_batch_size_per_gpu": 2,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
    }
    engine, optimizer, _, _ = deepspeed.initialize(
        model=net, optimizer=torch.optim.AdamW(net.parameters()), config=settings
    )
    engine.backward(engine(torch.ones(2, WIDTH, dtype=torch.bfloat16)).float().sum())
    engine.step()
    name = "fp32_partitioned_groups_flat" if stage == 3 else "single_partition_of_fp32_groups"
    weights = bytes_of(getattr(one, "ds_tensor", one) for one in engine.module.parameters())
    return [weights, bytes_of(getattr(optimizer, name)) + states(optimizer.optimizer)]


def main() -> None:
    """Measure both libraries and write the result of this rank."""
    accelerator = Accelerator(mixed_precision="bf16", cpu=True)
    found = {
        f"accelerate {name}": with_accelerate(accelerator, getattr(torch, name))
        for name in ("float32", "bfloat16")
    }
    found |= {f"deepspeed {stage}": with_deepspeed(stage) for stage in (1, 2, 3)}
    rank = torch.distributed.get_rank()
    Path(os.environ["RESULTS"], f"rank-{rank}.json").write_text(json.dumps(found))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
