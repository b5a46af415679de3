"""Trainings that look idle, stuck or slow, and are not: healthy.py SHAPE. They sign when the shape begins."""

from __future__ import annotations

import hashlib
import itertools
import os
import random
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from job import Trainer, begin, sign  # type: ignore[import-not-found]
from torch.utils.data import DataLoader, Dataset

SHAPE = sys.argv[1]
STEP_S = 11.0
LONG_S = 32.0
IDLE_S = 20.0
BATCHES = 160


def forward(samples: int) -> None:
    """One part of much work, in Python and in torch."""
    torch.randn(samples, 256) @ torch.randn(256, 256)
    hashlib.sha256(os.urandom(1 << 16)).hexdigest()


def validate() -> None:
    """A long validation."""
    until = time.monotonic() + LONG_S
    while time.monotonic() < until:
        forward(256)
        score([time.monotonic() % 1 for _ in range(200)])


def score(values: list[float]) -> float:
    """A metric."""
    return sum(sorted(values)[: len(values) // 2])


def trace() -> None:
    """What a compiler does at the first step: Python that walks, writes and reads."""
    until, text = time.monotonic() + LONG_S, ""
    while time.monotonic() < until:
        source = "\n".join(f"def made_{n}(x): return x * {n} + {n}" for n in range(60))
        code = compile(source, "<made>", "exec")
        space: dict[str, object] = {}
        exec(code, space)
        text = str(sorted(space))
    assert text


def write_slowly(path: Path) -> None:
    """A big checkpoint onto slow storage."""
    until = time.monotonic() + LONG_S
    with path.open("wb") as file:
        while time.monotonic() < until:
            file.write(os.urandom(1 << 18))
            file.flush()
            os.fsync(file.fileno())
            time.sleep(0.2)


def long_steps(rank: int, trainer: Trainer) -> None:
    """Steps of many seconds: all ranks work."""
    for _ in range(3):
        until = time.monotonic() + STEP_S
        while time.monotonic() < until:
            forward(256)
        trainer.step()


def validation(rank: int, trainer: Trainer) -> None:
    """On all ranks."""
    validate()


def validation_on_0(rank: int, trainer: Trainer) -> None:
    """The others wait at a barrier."""
    if rank == 0:
        validate()
    dist.barrier()


def first_trace(rank: int, trainer: Trainer) -> None:
    """On all ranks, before the first step."""
    trace()


def first_compile(rank: int, trainer: Trainer) -> None:
    """On all ranks, before the first step: torch's compiler in earnest, with nothing in its cache."""
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(Path(os.environ["FAULT_SIGN"]).with_name(f"cache-{rank}"))
    for width in (96, 160):
        layer = torch.nn.TransformerEncoderLayer(width, 8, 2 * width, batch_first=True)
        torch.compile(layer)(torch.randn(2, 16, width)).sum().backward()


def idle(rank: int, trainer: Trainer) -> None:
    """Between epochs, all ranks."""
    time.sleep(IDLE_S)


def accumulation(rank: int, trainer: Trainer) -> None:
    """Many micro batches without a collective."""
    for _ in range(2):
        until = time.monotonic() + 12.0
        while time.monotonic() < until:
            trainer.model(trainer.batch()).square().mean().backward()
        trainer.step()


def checkpoint(rank: int, trainer: Trainer) -> None:
    """Rank 0 writes, the others wait."""
    if rank == 0:
        write_slowly(Path(os.environ["FAULT_SIGN"]).with_name("step-100.pt"))
    dist.barrier()


def uneven_load(rank: int, trainer: Trainer) -> None:
    """Each step another rank has more to do."""
    until = time.monotonic() + LONG_S
    step = 0
    while time.monotonic() < until:
        time.sleep(0.15 if step % dist.get_world_size() == rank else 0.05)
        trainer.step(pause_s=0.0)
        step += 1
        until = agreed(until)


def agreed(until: float) -> float:
    """The clock of rank 0 decides, so that all make as many steps."""
    told = torch.tensor([until], dtype=torch.float64)
    dist.broadcast(told, 0)
    return float(told.item())


def preparation(rank: int, trainer: Trainer) -> None:
    """Rank 0 tokenises before the first step of a new stage."""
    if rank == 0:
        trace()
    dist.barrier()


class Samples(Dataset[torch.Tensor]):  # type: ignore[misc]
    """Samples that take very different times, on all ranks alike; but rank 1 is late with its first."""

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> torch.Tensor:
        rank = dist.get_rank()
        time.sleep(2.0 if (index, rank) == (0, 1) else random.Random(2 * index + rank).expovariate(50.0))
        return torch.randn(64)


def prefetch(rank: int, trainer: Trainer) -> None:
    """A training that waits for its data: the queue of one rank is empty, that of the other full."""
    loader = DataLoader(Samples(), batch_size=16, num_workers=2, prefetch_factor=4)
    for batch in itertools.islice(loader, BATCHES):
        trainer.step(batch, pause_s=0.0)


SHAPES = {
    "prefetch": prefetch,
    "long-steps": long_steps,
    "validation": validation,
    "validation-0": validation_on_0,
    "first-compile": first_compile,
    "first-trace": first_trace,
    "idle": idle,
    "accumulation": accumulation,
    "checkpoint": checkpoint,
    "uneven-load": uneven_load,
    "preparation": preparation,
}


def main() -> None:
    """Train, have the shape, train a little, leave."""
    rank = begin()
    trainer = Trainer()
    for _ in range(0 if SHAPE.startswith("first") else 40):
        trainer.step()
    if rank == 0:
        sign(rank)
    SHAPES[SHAPE](rank, trainer)
    for _ in range(100):
        trainer.step()
    dist.barrier()
    dist.destroy_process_group()


main()
