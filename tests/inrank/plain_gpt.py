"""A plain training script that knows nothing of distui: a small GPT around one DistributedDataParallel, as in research.

    torchrun --nproc-per-node 2 plain_gpt.py --steps 12 --out saved.pt [--resume saved.pt] [--losses losses.json]

Weight tying, two groups of an AdamW that is made before the model is wrapped, gradient accumulation, clipping, a
schedule, now and then an evaluation by all ranks, and a checkpoint on rank 0 only.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP


class Block(nn.Module):  # type: ignore[misc]
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn, self.proj = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, c = x.shape
        q, k, v = self.attn(self.ln_1(x)).view(b, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, c))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):  # type: ignore[misc]
    def __init__(
        self, vocab: int = 32, length: int = 16, width: int = 32, layers: int = 3, heads: int = 2
    ) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab, width), nn.Embedding(length, width)
        self.h = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.ln_f, self.lm_head = nn.LayerNorm(width), nn.Linear(width, vocab, bias=False)
        self.wte.weight = self.lm_head.weight

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h = self.wte(x) + self.wpe(torch.arange(x.shape[1], device=x.device))
        for block in self.h:
            h = block(h)
        logits = self.lm_head(self.ln_f(h))
        return logits, F.cross_entropy(logits.flatten(0, 1), y.flatten())

    def configure_optimizers(self, lr: float) -> torch.optim.AdamW:
        parameters = [p for p in self.parameters() if p.requires_grad]
        groups = [
            {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": 0.1},
            {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
        ]
        return torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.95))


def batch(step: int, micro: int, rank: int, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    source = torch.Generator().manual_seed(1000 * step + 10 * micro + rank)
    start = torch.randint(0, 32, (4, 1), generator=source)
    tokens = (start + torch.arange(17) * (1 + start % 3)) % 32
    return tokens[:, :-1].to(device), tokens[:, 1:].to(device)


def evaluate(model: nn.Module, device: str) -> float:
    model.eval()
    with torch.no_grad():
        losses = [float(model(*batch(10_000 + at, 0, 0, device))[1]) for at in range(2)]
    model.train()
    return sum(losses) / len(losses)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--accumulation", type=int, default=2)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--resume", type=Path)
    parser.add_argument("--losses", type=Path)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--layers", type=int, default=3)
    args = parser.parse_args()
    cuda, local = torch.cuda.is_available(), int(os.environ["LOCAL_RANK"])
    if cuda and torch.cuda.device_count() < int(os.environ["LOCAL_WORLD_SIZE"]):
        os.environ["NCCL_HOSTID"] = str(local)  # NCCL wants ranks that share a GPU to be on different hosts
        local %= torch.cuda.device_count()
    dist.init_process_group("nccl" if cuda else "gloo")
    rank = dist.get_rank()
    device = f"cuda:{local}" if cuda else "cpu"
    if cuda:
        torch.cuda.set_device(local)
    torch.manual_seed(1337 + rank)  # DDP gives every rank the weights of rank 0
    raw_model = GPT(width=args.width, layers=args.layers).to(device)
    optimizer = raw_model.configure_optimizers(lr=3e-3)
    begin = 0
    if args.resume:
        saved = torch.load(args.resume, map_location=device)
        raw_model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        begin = saved["step"]
    model = DDP(raw_model, device_ids=[local] if cuda else None)
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda at: 0.5 + 0.5 * math.cos((begin + at) / 20)
    )
    losses, norms, evaluated = [], [], []
    for step in range(begin, begin + args.steps):
        total = 0.0
        for micro in range(args.accumulation):
            last = micro == args.accumulation - 1
            with contextlib.nullcontext() if last else model.no_sync():
                _, loss = model(*batch(step, micro, rank, device))
                (loss / args.accumulation).backward()
            total += loss.item() / args.accumulation
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(total)
        if step % 5 == 4:
            evaluated.append(evaluate(model, device))
        if rank == 0:
            norms.append(norm.item())
            if args.out and (step % 5 == 4 or step == begin + args.steps - 1):
                state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict()}
                torch.save({**state, "step": step + 1}, args.out)
            print(f"step {step} loss {total:.6f} norm {norms[-1]:.4f}", flush=True)
    if rank == 0 and args.losses:
        peak = torch.cuda.max_memory_allocated() if cuda else None
        seen = {"losses": losses, "norms": norms, "evaluated": evaluated, "peak": peak}
        args.losses.write_text(json.dumps(seen))
    del model, optimizer, scheduler
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
