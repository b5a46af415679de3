"""Runs inside the ranks: training loops of several kinds, each with its own small model, and what came of each.

loops.py FOLDER     writes FOLDER/rank-<r>.pt: name of the loop → losses, and further tensors
"""

from __future__ import annotations

import copy
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from distui.runners.inrank import gloo_workers
from distui.runners.inrank.adopt import arming

gloo_workers.arm()
arming.arm()

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from running_mean import RunningMean  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

WIDTH = 8
STEPS = 5
Made = tuple[Any, Any, Any]


class Block(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(3 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.tanh(self.up(x)))


class Net(nn.Module):  # type: ignore[misc]
    """Blocks in a list, applied so many times."""

    def __init__(self, times: int = 1, saves: bool = False) -> None:
        super().__init__()
        self.blocks, self.head = nn.ModuleList(Block() for _ in range(3)), nn.Linear(WIDTH, WIDTH)
        self.times, self.saves = times, saves

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(self.times):
            for block in self.blocks:
                x = checkpoint(block, x, use_reentrant=False) if self.saves else block(x)
        return self.head(x)


def made(net: nn.Module | None = None) -> Made:
    """A wrapped model, its optimizer, and a function that gives a batch."""
    torch.manual_seed(1)
    model = DistributedDataParallel(net or Net())
    source = torch.Generator().manual_seed(dist.get_rank())
    return (
        model,
        torch.optim.AdamW(model.parameters(), lr=0.01),
        lambda: torch.randn(4, WIDTH, generator=source),
    )


def update(optimizer: Any, loss: torch.Tensor) -> float:
    """One step."""
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return float(loss)


def plain(net: nn.Module | None = None) -> list[float]:
    model, optimizer, batch = made(net)
    return [update(optimizer, model(batch()).pow(2).mean()) for _ in range(STEPS)]


def recurrent() -> list[float]:
    return plain(Net(times=2))


def checkpointed() -> list[float]:
    return plain(Net(saves=True))


def two_passes() -> list[float]:
    """Of which one backward pass is made."""
    model, optimizer, batch = made()
    return [update(optimizer, model(batch()).pow(2).mean() - model(batch()).mean()) for _ in range(STEPS)]


def adversarial() -> list[float]:
    """Gradients of the inputs by torch.autograd.grad()."""
    model, optimizer, batch = made()
    losses = []
    for _ in range(STEPS):
        x = batch().requires_grad_()
        (slope,) = torch.autograd.grad(model(x).mean(), x)
        losses.append(update(optimizer, model((x + slope.sign()).detach()).pow(2).mean()))
    return losses


def cleared_late() -> list[float]:
    """Gradients are cleared by the model, between the two passes."""
    model, optimizer, batch = made()
    losses = []
    for _ in range(STEPS):
        loss = model(batch()).pow(2).mean()
        model.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def averaged() -> list[Any]:
    """An average of the weights, with which rank 0 evaluates; the weights go back to it at the end."""
    net = Net()
    mean = copy.deepcopy(net)
    model, optimizer, batch = made(net)
    mean.load_state_dict(model.module.state_dict())
    results: list[Any] = []
    for _ in range(STEPS):
        results.append(update(optimizer, model(batch()).pow(2).mean()))
        with torch.no_grad():
            for slow, fast in zip(mean.parameters(), model.parameters(), strict=True):
                slow.mul_(0.5).add_(fast, alpha=0.5)
        if dist.get_rank() == 0:
            results.append(mean(torch.ones(1, WIDTH)).detach())
    for slow, fast in zip(mean.parameters(), model.module.parameters(), strict=True):
        fast.data.copy_(slow.data)
    results.append(update(optimizer, model(batch()).pow(2).mean()))
    return [*results, model.state_dict()]


def two_models() -> list[Any]:
    """A GAN: the one is trained through the other."""
    one, of_one, batch = made()
    other, of_other, _ = made(nn.Sequential(Block(), Block(), nn.Linear(WIDTH, 1)))
    results: list[Any] = []
    for _ in range(STEPS):
        fake = one(batch())
        for optimizer in (of_other,):
            optimizer.zero_grad()
            other(batch()).sigmoid().mean().neg().backward()
            other(fake.detach()).sigmoid().mean().backward()
            optimizer.step()
        results.append(update(of_one, -other(fake).mean()))
    return [*results, one.state_dict(), other.state_dict()]


def logged() -> list[Any]:
    """Every rank reads norms of gradients; rank 0 evaluates the model inside, and counts parameters."""
    model, optimizer, batch = made()
    results: list[Any] = []
    for step in range(STEPS):
        loss = model(batch()).pow(2).mean()
        loss.backward()
        results += [p.grad.norm().item() for p in model.parameters()]
        results.append(nn.utils.clip_grad_norm_(model.parameters(), 0.1).item())
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if dist.get_rank() == 0 and step % 2:
            with torch.no_grad():
                results.append(model.module(torch.ones(2, WIDTH)).clone())
            results.append(sum(p.numel() for p in model.parameters()))
        results.append(loss.item())
    return results


class Keeping(Net):
    """The loss is no output, and a buffer of which each rank has its own is left alone."""

    def __init__(self) -> None:
        super().__init__()
        self.loss = torch.zeros(())
        self.register_buffer("shift", torch.full((WIDTH,), 0.1 * dist.get_rank()))
        self._ddp_params_and_buffers_to_ignore = {"shift", "gone"}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = super().forward(x + self.shift)
        self.loss = y.pow(2).mean()
        return y


def kept() -> list[Any]:
    model, optimizer, batch = made(Keeping())
    losses = []
    for _ in range(STEPS):
        model(batch())
        losses.append(update(optimizer, model.module.loss))
    return [*losses, model.module.shift]


class Shifted(Net):
    """With a running mean that comes from rank 0."""

    def __init__(self) -> None:
        super().__init__()
        self.running = RunningMean(WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(self.running(x))


def evaluated() -> list[Any]:
    """On rank 0 only, through what was wrapped. Not in the second step, in which bare DDP arranges its buckets."""
    model, optimizer, batch = made(Shifted())
    results: list[Any] = []
    for step in range(STEPS):
        if dist.get_rank() == 0 and step != 1:
            model.eval()
            with torch.no_grad():
                results += [model(torch.ones(2, WIDTH)).clone() for _ in range(2)]
            model.train()
        results.append(update(optimizer, model(batch()).pow(2).mean()))
    return [*results, model.module.running.mean.clone()]


LOOPS: list[Callable[[], list[Any]]] = [
    plain, recurrent, checkpointed, two_passes, adversarial, cleared_late, two_models, kept,
]  # fmt: skip
WHOLE: list[Callable[[], list[Any]]] = [averaged, logged, evaluated]
"""Those that use parameters in their own way, or make a pass on rank 0 only, which fsdp2 does not take."""


def run(loops: list[Callable[[], Any]]) -> None:
    """Each in these ranks; what came of them goes into the folder that is the first argument."""
    dist.init_process_group("gloo")
    seen = {loop.__name__: loop() for loop in loops}
    torch.save(seen, Path(sys.argv[1]) / f"rank-{dist.get_rank()}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    run(LOOPS if os.environ.get("DISTUI_STRATEGY") == "fsdp2" else [*LOOPS, *WHOLE])
