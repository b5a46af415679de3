# mypy: ignore-errors
"""Plain DDP. Where a file "stall" lies in the working directory, rank 1 sleeps."""

import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def stall():
    time.sleep(3600)


def main():
    dist.init_process_group("gloo")
    model = DistributedDataParallel(nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    while True:
        x = torch.randn(64, 16)
        loss = nn.functional.mse_loss(model(x), x.sum(dim=1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.02)
        if dist.get_rank() == 1 and os.path.exists("stall"):
            stall()


if __name__ == "__main__":
    main()
