# mypy: ignore-errors
"""Accelerate, as its quick tour has it."""

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

accelerator = Accelerator()
model = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 32))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
x = torch.randn(2048, 32)
loader = DataLoader(TensorDataset(x, x.roll(1, 1)), batch_size=16, shuffle=True)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
while True:
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        accelerator.backward(loss)
        optimizer.step()
