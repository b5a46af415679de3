"""Runs inside the ranks: trains small random modules under DistributedDataParallel and writes down what came of each.

adopting.py FOLDER CASES [START]     writes FOLDER/rank-<r>.pt, and FOLDER/saved-<case>.pt on rank 0 alone

The preset acts where the environment asks for it; nothing here is changed for that. START: a folder from which each case
goes on.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

from distui.runners.inrank import gloo_workers
from distui.runners.inrank.adopt import arming, report

gloo_workers.arm()
arming.arm()

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from running_mean import RunningMean  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

WIDTH = 6
STEPS = 4


class Tied(nn.Module):  # type: ignore[misc]
    """The first and the last layer share their weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.last.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.tanh(self.first(x)))


class Nested(nn.Module):  # type: ignore[misc]
    """Blocks in a list in a module, with a residual."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(depth)
        )
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = x + block(x)
        return x * self.scale


def built(chosen: random.Random) -> nn.Module:
    """A module of some random parts."""
    parts: list[nn.Module] = []
    for _ in range(chosen.randint(1, 4)):
        kind = chosen.choice(["linear", "tied", "nested", "buffered", "wide"])
        if kind == "linear":
            parts.append(nn.Linear(WIDTH, WIDTH, bias=chosen.random() < 0.5))
        elif kind == "tied":
            parts.append(Tied())
        elif kind == "nested":
            parts.append(Nested(chosen.randint(1, 3)))
        elif kind == "buffered":
            parts.append(RunningMean(WIDTH))
        else:
            wide = chosen.randint(7, 40)
            parts += [nn.Linear(WIDTH, wide), nn.ReLU(), nn.Linear(wide, WIDTH)]
    model = nn.Sequential(*parts, nn.Linear(WIDTH, 1))
    parameters = list(model.parameters())
    if chosen.random() < 0.4:  # frozen ones
        for parameter in chosen.sample(parameters, len(parameters) // 3):
            parameter.requires_grad_(False)
    return model


def optimizers(chosen: random.Random, model: nn.Module) -> list[torch.optim.Optimizer]:
    """One, or two that share the parameters."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    half = (
        chosen.randint(1, len(trained) - 1) if len(trained) > 1 and chosen.random() < 0.4 else len(trained)
    )
    kinds: list[Any] = [
        lambda p: torch.optim.AdamW(p, lr=0.02),
        lambda p: torch.optim.Adam(p, lr=0.02, amsgrad=True),
        lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True),
        lambda p: torch.optim.SGD(p, lr=0.05),
        lambda p: torch.optim.RMSprop(p, lr=0.01, foreach=False),
        lambda p: torch.optim.Adagrad(p, lr=0.05),
        lambda p: torch.optim.NAdam(p, lr=0.02),
    ]
    made = [chosen.choice(kinds)(part) for part in (trained[:half], trained[half:]) if part]
    if chosen.random() < 0.4:
        made[0].add_param_group({"params": [nn.Parameter(torch.ones(3))], "lr": 0.0})
    return made


def train(case: int, start: Path | None) -> dict[str, Any]:
    """Some steps of one case, on this rank."""
    chosen, rank = random.Random(case), dist.get_rank()
    torch.manual_seed(case + 100 * rank)
    raw = built(chosen)
    before = chosen.random() < 0.5
    made = optimizers(chosen, raw) if before else []
    model = DistributedDataParallel(raw, broadcast_buffers=chosen.random() < 0.5)
    made = made or optimizers(chosen, raw)
    if start is not None:
        saved = torch.load(start / f"saved-{case}.pt")
        model.load_state_dict(saved["model"])
        for optimizer, state in zip(made, saved["optimizers"], strict=True):
            optimizer.load_state_dict(state)
    clip, keep, accumulate = chosen.random() < 0.5, chosen.random() < 0.5, chosen.choice([1, 1, 2])
    source, losses = torch.Generator().manual_seed(7 * case + rank), []
    for step in range(STEPS):
        for part in range(accumulate):
            x = torch.randn(5, WIDTH, generator=source)
            model.require_backward_grad_sync = part == accumulate - 1
            loss = (model(x) - x.sum(1, keepdim=True)).pow(2).mean()
            loss.backward()
            losses.append(loss.item())
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        for optimizer in made:
            optimizer.step()
        if step == STEPS // 2 and rank == case % 2:  # one rank alone
            [optimizer.state_dict() for optimizer in made]
        for optimizer in made:
            optimizer.zero_grad(set_to_none=keep)
    if rank == 0:
        torch.save(
            {"model": model.state_dict(), "optimizers": [each.state_dict() for each in made]},
            f"{FOLDER}/saved-{case}.pt",
        )
    states = (
        value
        for each in made
        for state in each.state.values()
        for value in state.values()
        if torch.is_tensor(value)
    )
    held = sum((value.to_local() if hasattr(value, "to_local") else value).numel() for value in states)
    return {"losses": losses, "weights": {k: v.clone() for k, v in raw.state_dict().items()}, "held": held}


if __name__ == "__main__":
    FOLDER = Path(sys.argv[1])
    dist.init_process_group("gloo")
    results = [
        train(case, Path(sys.argv[3]) if len(sys.argv) > 3 else None) for case in range(int(sys.argv[2]))
    ]
    torch.save(
        {"cases": results, "described": report.adopted.described()}, FOLDER / f"rank-{dist.get_rank()}.pt"
    )
    dist.destroy_process_group()
