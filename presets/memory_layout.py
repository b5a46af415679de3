"""What a preset does with a model's memory: how often each part of it is divided, gathered, copied. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from . import mesh
from .model import Offload, Preset

BUCKET = 500_000_000
"""Elements that DeepSpeed reduces or gathers at a time where its configuration says nothing else."""
LIVE = 1_000_000_000
"""Elements of gathered parameters that DeepSpeed's stage 3 keeps where its configuration says nothing else."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """One rank's part of a training."""

    engine: Literal["torch", "fsdp", "deepspeed"]
    """Who divides: "torch" leaves the model whole on each rank of the data."""
    data: int = 1
    """Ranks over which what is divided is divided."""
    weights: bool = False
    gradients: bool = False
    optimizer: bool = False
    by_tensor: bool = False
    """Whether the optimizer is divided by whole tensors, as `ZeroRedundancyOptimizer` does."""
    kept: int | None = None
    """fsdp: ranks over which the gathered weights are divided between forward and backward; None: all of `data`."""
    buckets: bool = False
    """A second copy of the gradients, to be reduced."""
    lasting: bool = False
    """Whether gradients keep their memory from step to step or from pass to pass, as in buckets."""
    accumulates: bool = False
    """fsdp: several backward passes before the gradients travel, whole until then."""
    compute: int | None = None
    """Bytes of a number in forward and backward; None: as the weights."""
    tp: int = 1
    sequence_parallel: bool = False
    cp: int = 1
    pp: int = 1
    pieces: int = 1
    """Of a batch, in a pipeline."""
    flying: int = 1
    """Pieces that the first stage holds at once."""
    flying_last: int = 1
    """Pieces that the last stage holds at once."""
    foreach: bool = True
    """Whether the optimizer may update all parameters at once."""
    optimizer_at: Offload = "none"
    weights_at: Offload = "none"
    bucket: int = BUCKET
    live: int = LIVE
    notes: tuple[str, ...] = ()
    """What the estimate leaves out, a sentence each."""


def layout_of(preset: Preset, ranks: int) -> Layout:
    """What `preset` does on so many ranks. Raises PlanError where they do not fit its mesh."""
    kind = preset.strategy.kind
    if kind == "single":
        return Layout(engine="torch", compute=_compute(preset), lasting=preset.batch.accumulation > 1)
    sizes = mesh.dimensions(preset, ranks)
    return _deepspeed(preset, ranks) if kind == "deepspeed" else _torch(preset, sizes)


def _torch(preset: Preset, sizes: Mapping[str, int]) -> Layout:
    """DDP, ZeRO-1, FSDP1 and FSDP2, with the dimensions of the mesh."""
    kind, pp, tp = preset.strategy.kind, preset.mesh.pp, preset.mesh.tp
    sharded = kind in ("fsdp1", "fsdp2") and preset.strategy.sharding != "NO_SHARD"
    pieces = (preset.mesh.microbatches or 2 * pp) if pp > 1 else 1
    everything = preset.mesh.schedule == "gpipe"
    several = preset.batch.accumulation > 1 or pp > 1  # backward passes before a step
    in_buckets = kind in ("ddp", "zero1") and pp == 1  # a pipeline's replicas average by themselves
    offload: Offload = "cpu" if preset.strategy.cpu_offload else "none"
    moe = "Which parameters are experts is not known here: counted as if none were divided."
    return Layout(
        engine="fsdp" if sharded else "torch",
        data=_data(kind, sizes),
        weights=sharded,
        gradients=sharded,
        optimizer=sharded or kind == "zero1",
        by_tensor=kind == "zero1",
        kept=_kept(preset) if sharded else None,
        buckets=in_buckets and not preset.strategy.gradient_as_bucket_view,
        lasting=several or (in_buckets and preset.strategy.gradient_as_bucket_view),
        accumulates=sharded and several,
        compute=_compute(preset),
        tp=tp,
        sequence_parallel=preset.mesh.sequence_parallel,
        cp=preset.mesh.cp,
        pp=pp,
        pieces=pieces,
        flying=pieces
        if everything
        else min(pp + 1, pieces),  # torch's first stage holds one more than stages
        flying_last=pieces if everything else 1,
        foreach=max(tp, preset.mesh.ep) == 1,
        optimizer_at=offload,
        weights_at=offload,
        notes=(moe,) if preset.mesh.ep > 1 else (),
    )


def _data(kind: str, sizes: Mapping[str, int]) -> int:
    """Ranks that share one copy of what is divided: those with other samples, or other pieces of the same."""
    if kind == "zero1":
        return math.prod(sizes.values())
    return sizes.get("dp_shard", sizes.get("dp", 1)) * sizes.get("cp", 1)


def _kept(preset: Preset) -> int | None:
    """See Layout.kept."""
    if preset.strategy.kind == "fsdp1":
        return 1 if preset.strategy.sharding in ("SHARD_GRAD_OP", "HYBRID_SHARD_ZERO2") else None
    kept = preset.strategy.reshard_after_forward
    return kept if type(kept) is int else None if kept else 1


def _compute(preset: Preset) -> int | None:
    """Bytes of a number where the preset asks for half precision."""
    return None if preset.precision.param == "fp32" else 2


def _deepspeed(preset: Preset, ranks: int) -> Layout:
    stage = preset.strategy.stage
    return Layout(
        engine="deepspeed",
        data=ranks,
        weights=stage == 3,
        gradients=stage >= 2,
        optimizer=stage >= 1,
        lasting=True,
        compute=_compute(preset),
        foreach=False,  # DeepSpeed brings its own Adam
        optimizer_at=preset.strategy.offload_optimizer,
        weights_at=preset.strategy.offload_param if stage == 3 else "none",
        bucket=_number(preset, "reduce_bucket_size", BUCKET),
        live=_number(preset, "stage3_max_live_parameters", LIVE),
    )


def _number(preset: Preset, key: str, usual: int) -> int:
    """A number of the preset's own part of DeepSpeed's configuration."""
    zero = preset.deepspeed.get("zero_optimization")
    found = zero.get(key) if isinstance(zero, Mapping) else None
    return int(found) if isinstance(found, int | float) and not isinstance(found, bool) else usual
