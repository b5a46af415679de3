"""Mixtures of experts and adapters (LoRA, QLoRA): their sizes in an estimate. Pure."""

from __future__ import annotations

from dataclasses import replace

from ..finding import PlanError
from .workload import Format, Shape, shape

LORA_WIDTH = 18
"""LoRA parameters of a layer per rank and hidden unit: 8 for four attention matrices, 10 for the MLP's two."""
QUANTIZED = 0.516
"""Bytes per parameter in NF4 with double quantization: 4 bits, and 0.127 bits of constants (QLoRA, section 3)."""
ADAPTER = Format(name="adapter", weights=4, gradients=4, optimizer=8, text="")
"""peft keeps adapters in fp32 by default (`autocast_adapter_dtype`)."""


def mixture(
    parameters: int,
    count: int,
    chosen: int,
    active: int | None,
    layers: int | None,
    hidden: int | None,
    vocab: int,
) -> Shape:
    """Return a mixture of `count` experts per layer, of which a token takes `chosen`.

    `active`: parameters that a token uses. None: as if a layer had 4 h² parameters of attention and 8 h² per expert.
    Missing dimensions are those of a dense model with the active parameters. Raises PlanError.
    """
    if not 1 <= chosen < count:
        raise PlanError(f"--top-k {chosen}: write fewer experts per token than --experts {count}")
    if active is None:
        active = round(parameters * (4 + 8 * chosen) / (4 + 8 * count))
    if not active < parameters:
        raise PlanError("--active: write fewer parameters than --params, those that a token uses")
    model = replace(shape(active, layers, hidden, vocab), parameters=parameters)
    experts = (parameters - active) / (count - chosen) * count
    return replace(model, experts=min(experts, float(parameters - model.rest)), expert_count=count)


def lora_parameters(model: Shape, rank: int) -> float:
    """Return the parameters of adapters on all matrices of the layers."""
    return min(float(LORA_WIDTH * rank * model.hidden * model.layers), 0.5 * model.parameters)


def with_adapters(model: Shape, form: Format, rank: int, *, quantized: bool) -> tuple[Shape, Format]:
    """Return a frozen model with LoRA adapters, and its format; `quantized`: the frozen part in 4 bits (QLoRA)."""
    trained = lora_parameters(model, rank)
    adapters = form if form.name == "mixed" else ADAPTER  # DeepSpeed casts the adapters, too
    name, frozen, base = form.name, form.weights, "fp32" if form.weights == 4 else "bf16"
    if quantized:
        frozen = (QUANTIZED * (model.parameters - model.rest) + 2 * model.rest) / model.parameters
        name, base = "nf4" if adapters is ADAPTER else form.name, "4 bits"
    adapted = Format(
        name=name,
        weights=frozen + adapters.weights * trained / model.parameters,
        gradients=adapters.gradients,
        optimizer=adapters.optimizer,
        text=f"a frozen base in {base}, LoRA of rank {rank}",
        compute=2 if quantized else int(frozen),
    )
    return replace(model, trained=round(trained)), adapted
