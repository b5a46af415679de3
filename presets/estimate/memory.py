"""Estimate the memory of a training per GPU, from model, batch, precision and sharding. Pure.

Model states follow "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models" (Rajbhandari and others,
2020, section 3). Activations follow "Reducing Activation Recomputation in Large Transformer Models" (Korthikanti and
others, 2022, sections 4 and 5), without the attention scores, which fused attention does not keep.
tests/inrank/test_memory_measured.py compares the estimates with allocated memory.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ..model import Offload, Preset
from ..rank_mesh import dimensions
from . import megatron_layout
from .layout import BUCKET, LIVE, Layout
from .workload import FORMATS, GPU, USABLE, Device, Format, Shape


def layout_of(preset: Preset, ranks: int) -> Layout:
    """Return the layout of `preset` on `ranks` ranks. Raises PlanError if they do not fit its mesh."""
    kind = preset.strategy.kind
    if kind == "single":
        return Layout(engine="torch", compute=_compute(preset), lasting=preset.batch.accumulation > 1)
    sizes = dimensions(preset, ranks)
    return _deepspeed(preset, ranks) if kind == "deepspeed" else _torch(preset, sizes)


def _torch(preset: Preset, sizes: Mapping[str, int]) -> Layout:
    """Return the layout of DDP, ZeRO-1, FSDP1 and FSDP2, with the dimensions of the mesh."""
    strategy, mesh = preset.strategy, preset.mesh
    kind = strategy.kind
    several = preset.batch.accumulation > 1 or mesh.pp > 1  # backward passes before a step
    offload: Offload = "cpu" if strategy.cpu_offload else "none"
    pieces, flying, flying_last = _microbatches(preset)
    layout = Layout(
        engine="torch",
        data=_data(kind, sizes),
        lasting=several,
        compute=_compute(preset),
        tp=mesh.tp,
        sequence_parallel=mesh.sequence_parallel,
        ep=mesh.ep,
        cp=mesh.cp,
        pp=mesh.pp,
        pieces=pieces,
        flying=flying,
        flying_last=flying_last,
        foreach=max(mesh.tp, mesh.ep) == 1,
        optimizer_at=offload,
        weights_at=offload,
    )
    if kind in ("fsdp1", "fsdp2") and strategy.sharding != "NO_SHARD":
        sharded = replace(layout, engine="fsdp", weights=True, gradients=True, optimizer=True)
        return replace(sharded, kept=_kept(preset), accumulates=several)
    in_buckets = (
        kind in ("ddp", "zero1") and mesh.pp == 1
    )  # the replicas of a pipeline average without buckets
    views = in_buckets and strategy.gradient_as_bucket_view
    return replace(
        layout,
        optimizer=kind == "zero1",
        by_tensor=kind == "zero1",
        # DDP's no_sync() sums passes in separate tensors, which the last pass copies into the buckets.
        buckets=in_buckets and (not views or preset.batch.accumulation > 1),
        lasting=several or views,
    )


def _microbatches(preset: Preset) -> tuple[int, int, int]:
    """Return the microbatches of a batch, and the most that the first and the last stage of a pipeline hold."""
    pp = preset.mesh.pp
    if pp == 1:
        return 1, 1, 1
    pieces = preset.mesh.microbatches or 2 * pp
    if preset.mesh.schedule == "gpipe":
        return pieces, pieces, pieces
    return pieces, min(pp + 1, pieces), 1  # torch's first stage holds one more microbatch


def _data(kind: str, sizes: Mapping[str, int]) -> int:
    """Return the number of ranks that share one sharded copy: all data-parallel and context-parallel ranks."""
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
    """Return the bytes per number if the preset computes in half precision, else None."""
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
    """Return a number from the preset's table [deepspeed.zero_optimization], or the default `usual`."""
    zero = preset.deepspeed.get("zero_optimization")
    value = zero.get(key) if isinstance(zero, Mapping) else None
    return int(value) if isinstance(value, int | float) and not isinstance(value, bool) else usual


OUTSIDE = 4
"""Numbers kept for backward per position and hidden unit, outside a layer's matrices: input and output of two norms."""
INSIDE = 12
"""Those inside the matrices: query, key, value, attention output, four for the MLP and four for its activation."""
MASKS = 2
"""Bytes of two dropout masks in any format."""
BACKWARD = 5
"""Numbers that a layer's backward adds: gradients of the MLP's activation and of the layer's input."""
AUTOCAST = 4
"""More bytes under autocast, because the norms' outputs also stay in fp32."""
LOGIT_KEPT = 4
"""Bytes per logit that forward keeps: the log-softmax in fp32."""
LOGIT_BYTES = 12
"""Bytes per logit during the loss backward pass: the log-softmax and two fp32 gradients."""
HOST_COPIES = 1.5
"""DeepSpeed's own estimate of host memory: a multiple of the offloaded bytes, for its pinned buffers."""
HOST_OPTIMIZER = 16
"""Bytes per trained parameter that DeepSpeed offloads with the optimizer: weight, gradient, two moments in fp32."""

ALONE = Layout(engine="torch")


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """Bytes per GPU, unless an attribute says otherwise."""

    weights: float
    gradients: float
    optimizer: float
    activations: float
    """Activations, except the bytes that gradients reuse as backward frees activations."""
    buffers: float
    """Buckets, gathered layers, memory of the optimizer step beyond the activations, and the CUDA context."""
    limit: float
    """Memory of the GPU."""
    all_activations: float = 0.0
    host: float = 0.0
    """Bytes of host memory per rank."""
    host_limit: float | None = None
    """Bytes of host memory available per rank, or None if unknown."""
    disk: float = 0.0
    """Bytes of local disk per rank."""
    notes: tuple[str, ...] = ()
    """Limits of the estimate, one sentence each."""

    @property
    def states(self) -> float:
        return self.weights + self.gradients + self.optimizer

    @property
    def total(self) -> float:
        return self.states + self.activations + self.buffers

    @property
    def fits(self) -> bool:
        """Return True if the estimate fits on the GPU, and in host memory if its size is known."""
        return self.total <= USABLE * self.limit and (
            self.host_limit is None or self.host <= self.host_limit
        )


def estimate(layout: Layout, model: Shape, form: Format, limit: float, device: Device = GPU) -> Estimate:
    """Estimate one layout. The sum of the components is a rank's peak.

    `limit`: bytes of a GPU.
    """
    mine = held(layout, model)
    weight, gradient = _resident(layout, form)
    trained = mine * model.trained_share
    gradients = gradient * trained / layout.ranks_of(layout.gradients)
    optimizer = after = 0.0
    if layout.optimizer_at == "none":
        optimizer = form.optimizer * _updated(layout, model, trained)
        after = _after(layout, model, trained, form, device)
    of_layer, lasting = _buffers(layout, model, form, mine, trained)
    stages = stages_of(model, form, layout)
    head = min(gradients, _head_gradients(layout, model, form))
    during = max(_during(layout, stage, gradients, head, 0.0) for stage in stages)
    with_buffers = max(_during(layout, stage, gradients, head, of_layer) for stage in stages)
    in_step = lasting if layout.engine == "torch" else 0.0
    host, disk = _elsewhere(layout, form, mine, trained)
    unknown_experts = layout.ep > 1 and not model.experts
    return Estimate(
        weights=weight * mine / layout.ranks_of(layout.weights and layout.kept != 1),
        gradients=gradients,
        optimizer=optimizer,
        activations=during - gradients,
        buffers=device.context + max(lasting + with_buffers - during, in_step + gradients + after - during),
        limit=limit,
        all_activations=max(during - gradients, *(stage.kept + stage.work for stage in stages)),
        host=host,
        disk=disk,
        notes=(UNKNOWN_EXPERTS,) if unknown_experts else (),
    )


UNKNOWN_EXPERTS = "Which parameters are experts is not known here: counted as if none were divided."


def estimate_for(
    preset: Preset,
    model: Shape,
    form: Format,
    ranks: int,
    limit: float,
    device: Device = GPU,
    args: Sequence[str] = (),
) -> Estimate:
    """Estimate any preset on `ranks` ranks in total, with its mesh, batch, offloading and number formats.

    `limit`: bytes of a GPU. `args`: the script's arguments, which decide if they are Megatron-LM's. `format_for` returns
    the preset's format. Raises PlanError if the mesh does not divide the ranks.
    """
    own = megatron_layout.layout_of(args, ranks)
    if own is not None:
        return estimate(own, megatron_layout.changed(model, args), form, limit, device)
    if preset.strategy.activation_checkpointing:
        model = replace(model, recompute=True)
    if preset.batch.micro is not None:
        model = replace(model, micro_batch=preset.batch.micro)
    return estimate(layout_of(preset, ranks), model, form, limit, device)


def format_for(preset: Preset, weights: str = "fp32") -> Format:
    """Return the format of a preset's model states: that of the script's weights, which torch creates in fp32.

    DeepSpeed in half precision casts them and keeps a copy in fp32.
    """
    half = preset.strategy.kind == "deepspeed" and preset.precision.param != "fp32"
    return FORMATS["mixed" if half else weights]


def _updated(layout: Layout, model: Shape, trained: float) -> float:
    """Return the parameters that this rank's optimizer updates, of those `trained` on its stage."""
    if layout.optimizer:  # ranks that hold different experts still share the states of all of them
        trained = held(replace(layout, ep=1), model) * model.trained_share
    share = trained / layout.ranks_of(layout.optimizer)
    return max(share, min(model.tensor, trained)) if layout.by_tensor else share


def _head_gradients(layout: Layout, model: Shape, form: Format) -> float:
    return form.gradients * model.trained_share * model.rest / 2 / layout.ranks_of(layout.gradients)


def _during(layout: Layout, stage: Stage, gradients: float, head: float, buffers: float) -> float:
    """Return the most bytes of gradients, activations and a layer's buffers during backward.

    The logits are freed before the first layer's backward. Gradients reuse the memory of activations, unless they
    outlive the step; those of the head exist before a layer's activations are freed.
    """
    work = stage.layer + buffers
    if layout.lasting:
        return gradients + stage.kept + max(stage.logits, work)
    return max(stage.kept + stage.logits, max(stage.kept, gradients - head) + head + work)


def _after(layout: Layout, model: Shape, trained: float, form: Format, device: Device) -> float:
    """Return the bytes needed after the activations are freed.

    Adam's step holds one more moment of all parameters, or two of one tensor if it updates them one by one. The replicas
    of a pipeline hold two copies of the gradients while they average.
    """
    step = copies = 0.0
    updated = _updated(layout, model, trained)
    if device.foreach and layout.foreach:
        step = form.optimizer / 2 * updated
    elif layout.engine in ("torch", "fsdp") and not device.fused:  # the others' own Adam needs no copies
        whole = 1 if layout.by_tensor else layout.ranks_of(layout.optimizer)
        step = form.optimizer * min(model.tensor / layout.tp / whole, updated)
    if layout.pp > 1 and layout.engine == "torch" and layout.data > 1:
        copies = 2 * form.gradients * trained
    return max(step, copies)


def held(layout: Layout, model: Shape) -> float:
    """Return the parameters of one rank's pipeline stage.

    distui's tensor parallelism does not divide the embedding, Megatron-LM's does.
    """
    end, inside, share = model.rest / 2, model.parameters - model.rest / 2, 1.0
    if layout.pp > 1:
        share = math.ceil(model.layers / layout.pp) / model.layers
        inside = model.layer * model.layers * share
    experts = min(model.experts * share, inside)
    divided = (inside - experts + experts / layout.ep) / layout.tp
    return divided + end / (layout.tp if layout.divides_vocabulary else 1)


def compute_bytes(layout: Layout, form: Format) -> float:
    """Return the bytes per number in forward and backward."""
    weights = form.weights if form.compute is None else form.compute
    return weights if layout.compute is None else min(layout.compute, weights)


def autocasts(layout: Layout, form: Format) -> bool:
    """Return True if each forward pass casts the weights, instead of gathering them in the compute format."""
    weights = form.weights if form.compute is None else form.compute
    return layout.engine == "torch" and compute_bytes(layout, form) < weights


@dataclass(frozen=True, slots=True)
class Stage:
    """Bytes per GPU of one pipeline stage, or of the whole model."""

    kept: float
    """Activations between forward and backward, without the logits."""
    logits: float
    """The logits and their gradients."""
    layer: float
    """Memory of one layer's backward: gradients of its activations, and what it recomputes."""

    @property
    def work(self) -> float:
        """Most bytes in addition to `kept`. The logits are freed before the first layer's backward."""
        return max(self.logits, self.layer)


def stages_of(model: Shape, form: Format, layout: Layout = ALONE) -> list[Stage]:
    """Return the model as one stage, or the first and the last stage of its pipeline."""
    positions = _positions(model, layout)
    layer = _layer(model, form, layout) * positions
    entry = compute_bytes(layout, form) * positions * model.hidden
    if layout.sequence_parallel:
        entry /= layout.tp
    share = model.layer_kept / (OUTSIDE + INSIDE) if model.layer_kept else 1.0
    backward = BACKWARD * share * compute_bytes(layout, form) / layout.tp
    work = backward * positions * model.hidden
    kept = layer
    if model.recompute:
        kept, work = entry, work + layer  # one recomputed layer is complete during its backward
    kept *= math.ceil(model.layers / layout.pp)
    cast = 2 * held(layout, model) if autocasts(layout, form) else 0.0  # the cast weights
    words = positions * model.vocab / (layout.tp if layout.divides_vocabulary else 1)
    logits = words * (LOGIT_BYTES + LOGIT_KEPT * (layout.flying_last - 1))
    last = Stage(kept * layout.flying_last + cast, logits, work)
    return [last] if layout.pp == 1 else [Stage(kept * layout.flying + cast, 0.0, work), last]


def _positions(model: Shape, layout: Layout) -> float:
    """Return the positions that one rank processes at a time."""
    return model.seq * max(1.0, model.micro_batch / layout.pieces) / layout.cp


def _layer(model: Shape, form: Format, layout: Layout) -> float:
    """Return the bytes of one layer per position of this rank."""
    number = compute_bytes(layout, form)
    outside, inside = OUTSIDE * number + MASKS, INSIDE * number
    if model.layer_kept:  # as it was measured, with its own dropout
        outside = min(OUTSIDE, model.layer_kept) * number
        inside = model.layer_kept * number - outside
    if autocasts(layout, form):
        outside += AUTOCAST
    gathered = 2 * number * (layout.cp - 1)  # keys and values from the other ranks
    if layout.sequence_parallel:
        outside /= layout.tp
    return model.hidden * (outside + (inside + gathered) / layout.tp)


def _resident(layout: Layout, form: Format) -> tuple[float, float]:
    """Return the bytes per parameter of weight and gradient that stay on the GPU."""
    if layout.weights_at != "none":
        return 0.0, 0.0
    gradients = float(form.gradients)
    if layout.optimizer_at != "none" and layout.gradients:
        gradients = 0.0
    if layout.engine == "fsdp" and layout.kept == 1:  # gathered once for forward and backward
        return float(compute_bytes(layout, form)), gradients
    return float(form.weights), gradients


def _buffers(
    layout: Layout, model: Shape, form: Format, mine: float, trained: float
) -> tuple[float, float]:
    """Return the bytes of buckets and gathered parameters: those in a layer's backward only, and the others."""
    if layout.engine in ("torch", "megatron"):
        # A matrix's gradient exists before it is put into its bucket, or before its layer's activations are freed.
        matrix = min(4 * model.hidden**2, model.tensor, model.layer) / layout.tp
        copies = form.gradients * trained if layout.buckets else 0.0
        return form.gradients * model.trained_share * matrix, copies
    if layout.engine == "deepspeed":
        live: float = layout.bucket if layout.optimizer else 0
        if layout.weights:
            live = max(layout.live, 2 * model.layer)
        return 0.0, form.weights * min(mine, live) + form.gradients * min(trained, layout.bucket)
    return _gathered(layout, model, form, mine)


def _gathered(layout: Layout, model: Shape, form: Format, mine: float) -> tuple[float, float]:
    """Return the bytes that FSDP holds unsharded: those in a layer's backward only, and the others.

    They are two layers, one layer's gradients and their reduction copy, and the parameters outside the layers, which
    stay gathered from forward to backward. The reduction copy reuses the memory of the layer's activations.
    """
    number, layer = compute_bytes(layout, form), model.layer / layout.tp
    share = model.trained_share
    rest = min(model.rest, mine) / (1 if layout.pp == 1 else 2)
    freed = _layer(model, form, layout) * _positions(model, layout)
    of_layer = number * share * (layer + rest / 2)  # half of `rest` is the head's
    of_layer += max(0.0, form.gradients * share * layer - freed)
    others = 0.0
    if layout.kept == 1:
        others += 0.0 if layout.weights_at != "none" else form.weights * mine / layout.data
    else:
        of_layer += number * min(2 * layer, mine)
        others += number * rest
        if layout.kept is not None and layout.kept < layout.data:
            others += number * mine / layout.kept
    if layout.accumulates:
        # Gradients stay unsharded until the last pass, which frees them as it adds shards.
        others += max(0.0, number - form.gradients / layout.data) * mine * share
    return of_layer, others


def _elsewhere(layout: Layout, form: Format, mine: float, trained: float) -> tuple[float, float]:
    """Return the bytes of one rank in host memory and on disk."""
    host = disk = 0.0
    if layout.engine == "fsdp":
        if layout.weights_at == "cpu":
            host = (form.weights * mine + (form.gradients + form.optimizer) * trained) / layout.data
        return host, disk
    parts = (
        (layout.optimizer_at, HOST_OPTIMIZER * trained / layout.data),
        (layout.weights_at, form.weights * mine / layout.data),
    )
    for where, size in parts:
        if where == "cpu":
            host += HOST_COPIES * size
        elif where == "nvme":
            disk += size
    return host, disk
