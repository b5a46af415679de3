"""A training script as people write it for Accelerate: nothing in it knows distui, or any strategy.

Like many it writes down, beside its losses, what it trained with: the class that prepare() gave and how large its parts
are on this rank. RESULTS names a folder for that; without it nothing is written.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Block(nn.Module):  # type: ignore[misc]
    """Two layers."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.out(torch.relu(self.into(x)))


class Model(nn.Module):  # type: ignore[misc]
    """A few blocks."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(width) for _ in range(2))
        self.head = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def described(accelerator: Accelerator, model: Any, optimizer: Any, losses: list[float]) -> dict[str, Any]:
    """What this rank trained with."""
    parameters = list(model.parameters())
    inner = getattr(optimizer, "optimizer", optimizer)
    return {
        "model": type(model).__name__,
        "mixed_precision": accelerator.mixed_precision,
        "processes": accelerator.num_processes,
        "losses": losses,
        "whole": sum(getattr(one, "ds_numel", one.numel()) for one in parameters),
        "here": sum(
            one.ds_tensor.numel() if hasattr(one, "ds_tensor") else one.numel() for one in parameters
        ),
        "dtype": str(parameters[0].dtype),
        "stage": model.zero_optimization_stage() if hasattr(model, "zero_optimization_stage") else None,
        "partition": sum(part.numel() for part in getattr(inner, "single_partition_of_fp32_groups", ())),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--lr", type=float, default=3e-3)
    args = parser.parse_args()
    torch.manual_seed(0)
    accelerator = Accelerator()
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    x = torch.randn(256, 32)
    loader = DataLoader(TensorDataset(x, x.roll(1, 1)), batch_size=16, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    losses = []
    for _ in range(args.epochs):
        total = torch.zeros((), device=accelerator.device)
        for inputs, wanted in loader:
            dtype = next(model.parameters()).dtype
            loss = nn.functional.mse_loss(model(inputs.to(dtype)).float(), wanted)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            total += loss.detach()
        losses.append(float(accelerator.reduce(total, "mean")) / len(loader))
    if os.environ.get("RESULTS"):
        path = Path(os.environ["RESULTS"]) / f"{accelerator.process_index}.json"
        path.write_text(json.dumps(described(accelerator, model, optimizer, losses)))
    accelerator.wait_for_everyone()
    accelerator.end_training()
    time.sleep(
        0.5
    )  # gloo's threads outlive the group for a moment, and an interpreter that ends meanwhile aborts


if __name__ == "__main__":
    main()
