"""Jobs that look idle, stuck or slow and are not: no alarm may sound."""

from __future__ import annotations

import shutil

import pytest
from e2e.runs import World

from .rig import see_peace, start

pytestmark = pytest.mark.torch
LIMIT_S = 150.0

SHAPES = {
    "long-steps": "steps of 11 s",
    "validation-0": "validation of 32 s on rank 0, the others at a barrier",
    "checkpoint": "rank 0 writes a checkpoint for 32 s, the others wait",
    "idle": "20 s of idleness between epochs",
    "prefetch": "loaders with workers that are too slow on both ranks, samples of uneven time",
    "uneven-load": "each step another rank has more to do",
    "validation": "validation of 32 s on all ranks",
    "first-trace": "32 s of tracing before the first step",
    "first-compile": "torch.compile before the first step",
    "preparation": "rank 0 prepares data for 32 s, the others wait",
    "accumulation": "gradient accumulation of 12 s a step",
}
"""By the argument of healthy.py."""


@pytest.mark.parametrize("shape", SHAPES)
def test_no_alarm(world: World, shape: str) -> None:
    if shape == "first-compile" and shutil.which("c++") is None:
        pytest.skip("torch.compile needs a C++ compiler")
    see_peace(SHAPES[shape], start(world, "healthy.py", shape), LIMIT_S)
