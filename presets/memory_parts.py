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
    kept: float
    """Activations, by themselves."""
    activations: float
    """Activations beyond the gradients that take their place."""
    buffers: float
    host: float = 0.0
    disk: float = 0.0


def parts(layout: Layout, model: Shape, form: Format, device: Device = GPU) -> Parts:
    """All components of one rank, so that their sum is its peak."""
    mine, data = held(layout, model), layout.data
    weight, gradient = _resident(layout, form)
    gradients = gradient * mine / (data if layout.gradients else 1)
    optimizer = form.optimizer * _updated(layout, model, mine) * (layout.optimizer_at == "none")
    kept = activations(model, form, layout)
    beyond = kept - _shared(layout, model, form, gradients, kept)
    buffers = _buffers(layout, model, form, mine)
    lasting = buffers if layout.engine == "torch" else 0.0
    after = _after(layout, model, mine, form, device) if optimizer else 0.0
    host, disk = _elsewhere(layout, form, mine)
    return Parts(
        weights=weight * mine / (data if layout.weights and layout.kept != 1 else 1),
        gradients=gradients,
        optimizer=optimizer,
        kept=kept,
        activations=beyond,
        buffers=device.context + buffers + max(0.0, after - beyond - (buffers - lasting)),
        host=host,
        disk=disk,
    )


def _updated(layout: Layout, model: Shape, mine: float) -> float:
    """Parameters that this rank's optimizer updates."""
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
    """Of what one rank takes at once."""
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
    """Bytes beside states, activations and the device's own."""
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
        host += HOST_COPIES * size * mine / layout.data * (where == "cpu")
        disk += size * mine / layout.data * (where == "nvme")
    return host, disk
