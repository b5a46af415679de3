# mypy: ignore-errors
"""DeepSpeed, as its getting started has it."""

import argparse

import deepspeed
import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int, default=-1)
parser = deepspeed.add_config_arguments(parser)
args = parser.parse_args()
model = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 32))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
engine, optimizer, _, _ = deepspeed.initialize(args=args, model=model, optimizer=optimizer)
dtype = next(engine.module.parameters()).dtype
while True:
    x = torch.randn(16, 32, dtype=dtype)
    loss = nn.functional.mse_loss(engine(x), x.roll(1, 1))
    engine.backward(loss)
    engine.step()
