"""A training script as DeepSpeed's own examples are: its configuration comes by `--deepspeed_config`."""

from __future__ import annotations

import argparse
import gc
import json
import os
import time
from pathlib import Path

import deepspeed
import torch
from torch import nn


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--local_rank", type=int, default=-1)
    parser.add_argument("--steps", type=int, default=24)
    args = deepspeed.add_config_arguments(parser).parse_args()
    torch.manual_seed(0)
    deepspeed.init_distributed()
    model = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 32))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    engine, optimizer, _, _ = deepspeed.initialize(args=args, model=model, optimizer=optimizer)
    rank = torch.distributed.get_rank()
    dtype = torch.bfloat16 if engine.bfloat16_enabled() else torch.float32
    generator = torch.Generator().manual_seed(rank)
    losses = []
    for _ in range(args.steps):
        x = torch.randn(16, 32, generator=generator).to(engine.device)
        loss = nn.functional.mse_loss(engine(x.to(dtype)).float(), x.roll(1, 1))
        engine.backward(loss)
        engine.step()
        losses.append(float(loss))
    parameters = list(engine.module.parameters())
    found = {
        "model": type(engine).__name__,
        "stage": engine.zero_optimization_stage(),
        "processes": torch.distributed.get_world_size(),
        "micro": engine.train_micro_batch_size_per_gpu(),
        "dtype": str(dtype),
        "losses": losses,
        "whole": sum(getattr(one, "ds_numel", one.numel()) for one in parameters),
        "here": sum(
            one.ds_tensor.numel() if hasattr(one, "ds_tensor") else one.numel() for one in parameters
        ),
        "partition": sum(
            part.numel() for part in getattr(optimizer, "single_partition_of_fp32_groups", ())
        ),
    }
    if os.environ.get("RESULTS"):
        (Path(os.environ["RESULTS"]) / f"{rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
    # Gloo's threads outlive the group for a moment, and an interpreter that ends meanwhile aborts.
    gc.collect()
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
    time.sleep(0.5)
