"""The memory estimate: what a training needs on each GPU, from model, batch, precision and sharding. Pure.

Model states as in "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models" (Rajbhandari and others, 2020,
section 3); activations as in "Reducing Activation Recomputation in Large Transformer Models" (Korthikanti and others,
2022, sections 4 and 5), with the attention scores left out, which fused attention does not keep. Compared with what was
allocated in tests/inrank/test_memory_measured.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from .model import Offload, Preset
from .worker_group import dimensions
from .workload import FORMATS, GPU, USABLE, Device, Format, Shape

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
    sizes = dimensions(preset, ranks)
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
    if preset.strategy.kind == "fsdp1":
        return 1 if preset.strategy.sharding in ("SHARD_GRAD_OP", "HYBRID_SHARD_ZERO2") else None
    kept = preset.strategy.reshard_after_forward
    if type(kept) is int:
        return kept
    return None if kept else 1


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
    """A number from the preset's table [deepspeed.zero_optimization]."""
    zero = preset.deepspeed.get("zero_optimization")
    value = zero.get(key) if isinstance(zero, Mapping) else None
    return int(value) if isinstance(value, int | float) and not isinstance(value, bool) else usual


OUTSIDE = 4
"""Numbers kept for the backward pass for each position and unit of the hidden size, outside the divided matrices of a
layer: input and output of two norms."""
INSIDE = 12
"""The same inside them: query, key, value, what attention saw, four for the MLP and four for its activation."""
MASKS = 2
"""Bytes of two dropout masks, in any format."""
AUTOCAST = 4
"""Bytes more under autocast: the norms' outputs stay in 32 bit, too."""
LOGIT_KEPT = 4
"""For each position and word: the logarithms of the softmax in 32 bit."""
LOGIT_BYTES = 12
"""The same where the loss is differentiated: these, and two gradients in 32 bit."""
MOMENT = 4
"""Bytes of one of Adam's moments."""
HOST_COPIES = 1.5
"""DeepSpeed's own estimate for the host: so many times what it offloads, for its pinned buffers."""
HOST_OPTIMIZER = 16
"""Bytes of a parameter that DeepSpeed offloads with the optimizer: weight, gradient and two moments in 32 bit."""

ALONE = Layout(engine="torch")


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryStrategy:
    """One way to spread a model over the ranks, and how distui does it."""

    key: str
    title: str
    words: str
    """Of `distui launch`: a shipped preset and its options."""
    why: str
    preset: Preset
    """What of that preset memory depends on."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """Bytes on each GPU."""

    strategy: MemoryStrategy
    weights: float
    gradients: float
    optimizer: float
    activations: float
    """Beyond the gradients: where each step frees these, they come in backward as the activations go."""
    buffers: float
    """Buckets, gathered layers, what the optimizer's step needs beyond the activations, and the device's own."""
    limit: float
    """Of the GPU."""
    kept: float = 0.0
    """Activations by themselves."""
    host: float = 0.0
    """Bytes of host memory for each rank."""
    host_limit: float | None = None
    """Bytes of host memory that each rank may take; None: not known."""
    disk: float = 0.0
    """Bytes on a local disk for each rank."""
    notes: tuple[str, ...] = ()
    """What the numbers do not say, a sentence each."""

    @property
    def states(self) -> float:
        return self.weights + self.gradients + self.optimizer

    @property
    def total(self) -> float:
        return self.states + self.activations + self.buffers

    @property
    def fits(self) -> bool:
        """On the GPU, and in host memory where its size is known."""
        return self.total <= USABLE * self.limit and (
            self.host_limit is None or self.host <= self.host_limit
        )


def estimate(
    strategy: MemoryStrategy, model: Shape, form: Format, ranks: int, limit: float, device: Device = GPU
) -> Estimate:
    """One strategy on so many ranks; the sum of its components is a rank's peak. `limit`: bytes of a GPU.

    Raises PlanError where the mesh of the strategy does not divide the ranks.
    """
    layout = layout_of(strategy.preset, ranks)
    mine, data = held(layout, model), layout.data
    weight, gradient = _resident(layout, form)
    gradients = gradient * mine / (data if layout.gradients else 1)
    optimizer = form.optimizer * _updated(layout, model, mine) if layout.optimizer_at == "none" else 0.0
    kept = activations(model, form, layout)
    beyond = kept - _shared(layout, model, form, gradients, kept)
    buffers = _buffers(layout, model, form, mine)
    lasting = buffers if layout.engine == "torch" else 0.0
    after = _after(layout, model, mine, form, device) if optimizer else 0.0
    host, disk = _elsewhere(layout, form, mine)
    return Estimate(
        strategy=strategy,
        weights=weight * mine / (data if layout.weights and layout.kept != 1 else 1),
        gradients=gradients,
        optimizer=optimizer,
        activations=beyond,
        buffers=device.context + buffers + max(0.0, after - beyond - (buffers - lasting)),
        limit=limit,
        kept=kept,
        host=host,
        disk=disk,
        notes=layout.notes,
    )


def estimate_for(
    preset: Preset, model: Shape, form: Format, ranks: int, limit: float, device: Device = GPU
) -> Estimate:
    """Any preset on so many ranks in all, as it is: with its mesh, its offloading and its number formats.

    `limit`: bytes of a GPU; `format_for` says which format the preset implies. Raises PlanError where the mesh does
    not divide the ranks.
    """
    strategy = MemoryStrategy(
        key=preset.name,
        title=preset.title or preset.name,
        words=preset.name,
        why=preset.summary,
        preset=preset,
    )
    if preset.strategy.activation_checkpointing:
        model = replace(model, recompute=True)
    return estimate(strategy, model, form, ranks, limit, device)


def format_for(preset: Preset) -> Format:
    """The format of a preset's model states: as the script makes them, fp32 by default; DeepSpeed in half
    precision casts them and keeps a copy in fp32."""
    half = preset.strategy.kind == "deepspeed" and preset.precision.param != "fp32"
    return FORMATS["mixed" if half else "fp32"]


def _updated(layout: Layout, model: Shape, mine: float) -> float:
    share = mine / layout.data if layout.optimizer else mine
    return max(share, min(model.tensor, mine)) if layout.by_tensor else share


def _shared(layout: Layout, model: Shape, form: Format, gradients: float, kept: float) -> float:
    """Bytes that activations have first and gradients later: in backward, these come as those go. Not where gradients
    outlive the step, nor the first of them, the head's, nor a layer that is computed again last."""
    if layout.lasting:
        return 0.0
    head = form.gradients * model.rest / 2 / (layout.data if layout.gradients else 1)
    again = _layer(model, form, layout) * _positions(model, layout) if model.recompute else 0.0
    return max(0.0, min(gradients - head, kept - again))


def _after(layout: Layout, model: Shape, mine: float, form: Format, device: Device) -> float:
    """Bytes that are needed when the activations are gone: Adam at work holds a moment more, and the replicas of a
    pipeline two copies of the gradients while they average them."""
    step = MOMENT * _updated(layout, model, mine) if device.foreach and layout.foreach else 0.0
    copies = (
        2 * form.gradients * mine if layout.pp > 1 and layout.engine == "torch" and layout.data > 1 else 0.0
    )
    return max(step, copies)


def held(layout: Layout, model: Shape) -> float:
    """Parameters of one rank's stage and part of each matrix, whole; tensor parallelism leaves the embedding."""
    if layout.pp == 1:
        return (model.parameters - model.rest / 2) / layout.tp + model.rest / 2
    end = model.rest / 2
    return model.layer * math.ceil(model.layers / layout.pp) / layout.tp + end


def compute_bytes(layout: Layout, form: Format) -> int:
    """Bytes of a number in forward and backward."""
    return form.weights if layout.compute is None else min(layout.compute, form.weights)


def autocasts(layout: Layout, form: Format) -> bool:
    """Whether weights are cast in each forward pass, not gathered in the format of the computation."""
    return layout.engine == "torch" and compute_bytes(layout, form) < form.weights


def activations(model: Shape, form: Format, layout: Layout = ALONE) -> float:
    """Bytes that one GPU keeps between forward and backward, and the gradients of the logits with them."""
    positions = _positions(model, layout)
    layer = _layer(model, form, layout) * positions
    entry = compute_bytes(layout, form) * positions * model.hidden
    if layout.sequence_parallel:
        entry /= layout.tp
    count = math.ceil(model.layers / layout.pp)
    kept = entry * count if model.recompute else layer * count
    work = layer if model.recompute else 0.0  # one layer is whole again while its gradients are computed
    work += 2 * held(layout, model) * autocasts(layout, form)  # the weights as they were cast
    words = positions * model.vocab
    first = kept * layout.flying + work
    last = kept * layout.flying_last + work
    last += words * (LOGIT_BYTES + LOGIT_KEPT * (layout.flying_last - 1))
    return last if layout.pp == 1 else max(first, last)


def _positions(model: Shape, layout: Layout) -> float:
    """Positions that one rank takes at once."""
    return model.seq * max(1.0, model.micro_batch / layout.pieces) / layout.cp


def _layer(model: Shape, form: Format, layout: Layout) -> float:
    """Bytes of one layer for each of this rank's positions."""
    number = compute_bytes(layout, form)
    outside: float = OUTSIDE * number + MASKS + (AUTOCAST if autocasts(layout, form) else 0)
    gathered = 2 * number * (layout.cp - 1)  # keys and values of the other ranks' positions
    if layout.sequence_parallel:
        outside /= layout.tp
    return model.hidden * (outside + (INSIDE * number + gathered) / layout.tp)


def _resident(layout: Layout, form: Format) -> tuple[float, float]:
    """Bytes of a parameter's weight and gradient that rest on the GPU."""
    if layout.weights_at != "none":
        return 0.0, 0.0
    gradients = 0.0 if layout.optimizer_at != "none" and layout.gradients else float(form.gradients)
    if layout.engine == "fsdp" and layout.kept == 1:  # gathered once for forward and backward
        return float(compute_bytes(layout, form)), gradients
    return float(form.weights), gradients


def _buffers(layout: Layout, model: Shape, form: Format, mine: float) -> float:
    """Bytes of buckets and of what is gathered."""
    if layout.engine == "torch":
        return form.gradients * mine * layout.buckets
    if layout.engine == "deepspeed":
        live = max(layout.live, 2 * model.layer) if layout.weights else layout.bucket * layout.optimizer
        return form.weights * min(mine, live) + form.gradients * min(mine, layout.bucket)
    return _gathered(layout, model, form, mine)


def _gathered(layout: Layout, model: Shape, form: Format, mine: float) -> float:
    """What FSDP holds whole: this layer and the next, one layer's gradients and their copy to be reduced, and what
    stands outside the layers, which stays from forward to backward."""
    number, layer = compute_bytes(layout, form), model.layer / layout.tp
    rest = min(model.rest, mine) / (1 if layout.pp == 1 else 2)
    whole = (number + form.gradients) * layer + number * rest / 2  # gradients; half: the head's
    if layout.kept == 1:
        shard = 0.0 if layout.weights_at != "none" else form.weights * mine / layout.data
        whole += number * layer + shard
    else:
        whole += number * (2 * layer + rest)
        if layout.kept is not None and layout.kept < layout.data:
            whole += number * mine / layout.kept
    # several passes: gradients are whole until the last one, and shards come only as they go
    return whole + max(0.0, number - form.gradients / layout.data) * mine * layout.accumulates


def _elsewhere(layout: Layout, form: Format, mine: float) -> tuple[float, float]:
    """Bytes of one rank in host memory and on disk."""
    if layout.engine == "fsdp":
        states = form.weights + form.gradients + form.optimizer
        return (states * mine / layout.data if layout.weights_at == "cpu" else 0.0), 0.0
    host = disk = 0.0
    for where, size in ((layout.optimizer_at, HOST_OPTIMIZER), (layout.weights_at, form.weights)):
        if where == "cpu":
            host += HOST_COPIES * size * mine / layout.data
        elif where == "nvme":
            disk += size * mine / layout.data
    return host, disk
