"""What each shipped preset must come to when it trains the example on this machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """One preset on so many ranks."""

    world: int
    twin: str
    """Name of the case that must compute the same losses, because as many ranks see the same samples."""
    holds: tuple[float, float, float]
    """Share of parameters, of gradients, of the optimizer's moments that a rank holds, on average over the ranks."""
    inside: str
    """A class that must be among the model's modules."""
    optimizer: str = "AdamW"
    kind: str = "gpt"
    options: tuple[str, ...] = ()
    """Further words of `distui launch`."""


WHOLE, HALF = (1.0, 1.0, 1.0), (0.5, 0.5, 0.5)

CASES: Mapping[str, Case] = {
    "single": Case(world=1, twin="single", holds=WHOLE, inside="CharGPT"),
    "accumulate": Case(world=1, twin="large", holds=WHOLE, inside="CharGPT"),
    "ddp": Case(world=2, twin="ddp", holds=WHOLE, inside="DistributedDataParallel"),
    "ddp-mesh": Case(world=2, twin="ddp", holds=WHOLE, inside="DistributedDataParallel"),
    "zero1": Case(world=2, twin="ddp", holds=(1, 1, 0.5), inside="DistributedDataParallel",
                  optimizer="ZeroRedundancyOptimizer"),
    "fsdp2": Case(world=2, twin="ddp", holds=HALF, inside="FSDPBlock"),
    "fsdp2-zero2": Case(world=2, twin="ddp", holds=HALF, inside="FSDPBlock"),
    "fsdp2-offload": Case(world=2, twin="ddp", holds=HALF, inside="FSDPBlock"),
    "hsdp": Case(world=4, twin="four", holds=HALF, inside="FSDPBlock"),
    "fsdp1": Case(world=2, twin="ddp", holds=HALF, inside="FullyShardedDataParallel"),
    "fsdp1-grad-op": Case(world=2, twin="ddp", holds=HALF, inside="FullyShardedDataParallel"),
    "fsdp1-no-shard": Case(world=2, twin="ddp", holds=WHOLE, inside="FullyShardedDataParallel"),
    "fsdp1-hybrid": Case(world=4, twin="four", holds=HALF, inside="FullyShardedDataParallel"),
    "fsdp1-hybrid-zero2": Case(world=4, twin="four", holds=HALF, inside="FullyShardedDataParallel"),
    "tp": Case(world=2, twin="single", holds=(0.527, 0.527, 0.527), inside="FSDPBlock"),
    "tp-sp": Case(world=2, twin="single", holds=(0.527, 0.527, 0.527), inside="FSDPBlock"),
    "fsdp2-tp": Case(world=4, twin="ddp", holds=(0.264, 0.264, 0.264), inside="FSDPBlock"),
    "pp-gpipe": Case(world=2, twin="single", holds=HALF, inside="Pipeline"),
    "pp-1f1b": Case(world=2, twin="single", holds=HALF, inside="Pipeline"),
    "3d": Case(world=8, twin="ddp", holds=(0.132, 0.132, 0.132), inside="FSDPBlock"),
    "moe": Case(world=2, twin="moe-ddp", holds=(0.625, 0.625, 0.625), inside="Experts", kind="moe"),
    "context": Case(world=2, twin="single", holds=HALF, inside="FSDPBlock"),
}  # fmt: skip
"""By the preset's name."""

TWINS: Mapping[str, tuple[str, Case]] = {
    "large": ("single", Case(world=1, twin="large", holds=WHOLE, inside="CharGPT",
                             options=("--set", "batch.micro=32"))),
    "four": ("ddp", Case(world=4, twin="four", holds=WHOLE, inside="DistributedDataParallel")),
    "moe-ddp": ("moe", Case(world=2, twin="moe-ddp", holds=WHOLE, inside="Experts",
                            kind="moe", options=("--set", "mesh.ep=1"))),
}  # fmt: skip
"""Cases that stand beside, to compare with: name → preset, case."""

NOT_HERE: Mapping[str, str] = {
    "fsdp1-offload": "needs a GPU: FSDP1 pins host memory for it",
    "ds-zero1": "a script on DeepSpeed or Accelerate",
    "ds-zero2": "a script on DeepSpeed or Accelerate",
    "ds-zero3": "a script on DeepSpeed or Accelerate",
    "ds-zero3-cpu": "needs a GPU: DeepSpeed offloads from one",
    "ds-zero3-nvme": "needs a GPU and libaio",
}
"""Presets that this example cannot show on a machine without a GPU, and why."""
