"""The formulas: bytes of each component on the fullest GPU, by layout. Pure.

Model states as in "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models" (Rajbhandari and others,
2020, section 3); activations as in "Reducing Activation Recomputation in Large Transformer Models" (Korthikanti and
others, 2022, sections 4 and 5), with the attention scores left out, which fused attention does not keep.
Compared with what was allocated in tests/inrank/test_memory_measured.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from .memory_layout import Layout
from .memory_model import GPU, Device, Format, Shape

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
class Parts:
    """Bytes on each GPU, and of each rank elsewhere."""

    weights: float
    gradients: float
    optimizer: float
    activations: float
    buffers: float
    host: float = 0.0
    disk: float = 0.0


def parts(layout: Layout, model: Shape, form: Format, device: Device = GPU) -> Parts:
    """All components of one rank."""
    mine, data = held(layout, model), layout.data
    kept = activations(model, form, layout)
    resident = _resident(layout, form)
    share = mine / data if layout.optimizer else mine
    if layout.by_tensor:
        share = max(share, min(model.tensor, mine))
    optimizer = 0.0 if layout.optimizer_at != "none" else form.optimizer * share
    # Adam at work holds a moment more, at a time when the activations are gone
    step = MOMENT * share if device.foreach and layout.foreach and optimizer else 0.0
    host, disk = _elsewhere(layout, form, mine)
    return Parts(
        weights=resident[0] * mine / (data if layout.weights and layout.kept != 1 else 1),
        gradients=resident[1] * mine / (data if layout.gradients else 1),
        optimizer=optimizer,
        activations=kept,
        buffers=device.context + _buffers(layout, model, form, mine) + max(0.0, step - kept),
        host=host,
        disk=disk,
    )


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
    sequences = max(1.0, model.micro_batch / layout.pieces)
    positions = model.seq * sequences / layout.cp
    layer = _layer(model, form, layout) * positions
    entry = compute_bytes(layout, form) * positions * model.hidden
    if layout.sequence_parallel:
        entry /= layout.tp
    count = math.ceil(model.layers / layout.pp)
    kept = entry * count if model.recompute else layer * count
    work = layer if model.recompute else 0.0  # one layer is whole again while its gradients are computed
    words = positions * model.vocab
    first = kept * layout.flying + work
    last = kept * layout.flying_last + work
    last += words * (LOGIT_BYTES + LOGIT_KEPT * (layout.flying_last - 1))
    return last if layout.pp == 1 else max(first, last)


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
    """Bytes beside states, activations and the device's own."""
    if layout.engine == "torch":
        return form.gradients * mine * layout.buckets + 2 * mine * autocasts(layout, form)
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
    return whole + number * mine * layout.accumulates


def _elsewhere(layout: Layout, form: Format, mine: float) -> tuple[float, float]:
    """Bytes of one rank in host memory and on disk."""
    if layout.engine == "fsdp":
        states = form.weights + form.gradients + form.optimizer
        return (states * mine / layout.data if layout.weights_at == "cpu" else 0.0), 0.0
    host = disk = 0.0
    for where, size in ((layout.optimizer_at, HOST_OPTIMIZER), (layout.weights_at, form.weights)):
        host += HOST_COPIES * size * mine / layout.data * (where == "cpu")
        disk += size * mine / layout.data * (where == "nvme")
    return host, disk
