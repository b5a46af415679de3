"""A plain DDP script without distui: what most people already have.

    torchrun --nproc-per-node 2 plain_ddp.py --steps 100

A tiny network learns y = sum(x). Without --steps it trains until it is stopped. It has no SIGTERM handler, no
checkpoint and no import except torch.
"""

from __future__ import annotations

import argparse
import gc
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def options() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="Train a tiny network with plain DDP.")
    parser.add_argument("--steps", type=int, default=0, help="optimizer steps; 0: until ended")
    parser.add_argument("--batch", type=int, default=64, help="samples per rank and step")
    parser.add_argument("--width", type=int, default=64, help="hidden units")
    parser.add_argument("--log-every", type=int, default=1, help="steps between two lines of rank 0")
    parser.add_argument("--step-delay", type=float, default=0.05, help="seconds to wait in each step")
    return parser.parse_args()


def train(args: argparse.Namespace, device: torch.device) -> None:
    """Train on random vectors, the same ones in every run."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(16, args.width), nn.ReLU(), nn.Linear(args.width, 1)).to(device)
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    torch.manual_seed(dist.get_rank())
    step = 0
    while not args.steps or step < args.steps:
        x = torch.randn(args.batch, 16, device=device)
        loss = nn.functional.mse_loss(model(x), x.sum(dim=1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if dist.get_rank() == 0 and step % args.log_every == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
        time.sleep(args.step_delay)


def main() -> None:
    """Join the group, train, and leave."""
    args = options()
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    print(f"rank {dist.get_rank()} of {dist.get_world_size()} on {device}, pid {os.getpid()}", flush=True)
    train(args, device)
    # DDP's threads must end before the interpreter does: free the model, wait for the others, and leave.
    gc.collect()
    dist.barrier()
    dist.destroy_process_group()
    time.sleep(0.5)


if __name__ == "__main__":
    main()
