"""Runs inside the ranks: loops of several kinds, with the samples of a step in one batch, or in as many as PASSES.

accumulating.py FOLDER PASSES     writes FOLDER/rank-<r>.pt: name of the loop → weights at the end
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

from loops import WIDTH, Net, run  # isort: skip  # before torch: it has the preset act in this process

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_, clip_grad_value_

BATCH, STEPS = 8, 3
PASSES = int(sys.argv[2])
Weights = dict[str, torch.Tensor]


def wrapped() -> Any:
    torch.manual_seed(1)
    return DistributedDataParallel(Net())


def batches(steps: int = STEPS) -> Iterator[torch.Tensor]:
    """All ranks' samples differ; a step's are the same, in whatever pieces."""
    source = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(steps):
        yield from torch.randn(BATCH, WIDTH, generator=source).chunk(PASSES)


def loss_of(model: Any, batch: torch.Tensor) -> torch.Tensor:
    return (model(batch) - batch.sin()).pow(2).mean()


def state(*models: Any) -> list[Weights]:
    return [{name: value.clone() for name, value in model.state_dict().items()} for model in models]


def plain() -> Any:
    model = wrapped()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for batch in batches():
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        optimizer.step()
    return state(model)


def cleared_by_hand() -> Any:
    """Behind the step, with a momentum."""
    model = wrapped()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for batch in batches():
        loss_of(model, batch).backward()
        optimizer.step()
        for parameter in model.parameters():
            parameter.grad = None
    return state(model)


def kept_at_zero() -> Any:
    model = wrapped()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, weight_decay=0.1)
    for batch in batches():
        loss_of(model, batch).backward()
        optimizer.step()
        model.zero_grad(set_to_none=False)
    return state(model)


def clipped() -> Any:
    model = wrapped()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for batch in batches():
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        assert clip_grad_norm_(model.parameters(), max_norm=0.05) > 0.05
        optimizer.step()
    return state(model)


def clipped_values() -> Any:
    model = wrapped()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in batches():
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        clip_grad_value_(model.parameters(), 0.004)
        optimizer.step()
    return state(model)


def scaled() -> Any:
    """By a GradScaler, with a schedule that the script steps for each batch."""
    model, scaler = wrapped(), torch.amp.GradScaler("cpu", init_scale=256.0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1.0)
    for batch in batches():
        optimizer.zero_grad()
        scaler.scale(loss_of(model, batch)).backward()
        scaler.unscale_(optimizer)
        clip_grad_norm_(model.parameters(), 0.1)
        scaler.step(optimizer)
        scaler.update()
        schedule.step()
    return state(model)


def two_models() -> Any:
    """One is trained through the other, whose gradients from that are cleared; each has its optimizer."""
    one, other = wrapped(), wrapped()
    of_one = torch.optim.SGD(one.parameters(), lr=0.05)
    of_other = torch.optim.SGD(other.parameters(), lr=0.05)
    for batch in batches():
        one.zero_grad()
        other(one(batch)).mean().backward()
        other.zero_grad()
        (loss_of(other, batch) + other(one(batch).detach()).pow(2).mean()).backward()
        of_other.step()
        of_one.step()
    return state(one, other)


def a_rest() -> Any:
    """The batches end in the middle of a step, which is not made."""
    model = wrapped()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for number, batch in enumerate(batches(STEPS + 1)):
        if number > STEPS * PASSES:
            break
        if PASSES == 1 and number == STEPS:
            break
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        optimizer.step()
    return state(model)


def another_optimizer() -> Any:
    """Of something that the script does not wrap: each of its steps is made."""
    model, own = wrapped(), nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    beside = torch.optim.SGD([own], lr=0.1)
    for number, batch in enumerate(batches()):
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        optimizer.step()
        if number % PASSES == 0:
            beside.zero_grad()
            own.sum().backward()
            clip_grad_norm_([own], 0.5)
            beside.step()
    return [*state(model), own.detach()]


LOOPS: list[Callable[[], Any]] = [
    plain, cleared_by_hand, kept_at_zero, clipped, clipped_values, scaled, two_models, a_rest, another_optimizer,
]  # fmt: skip

if __name__ == "__main__":
    run(LOOPS)
