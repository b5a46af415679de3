"""The question of an advice: a model, its training, and the GPUs. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from .launch_command import LaunchPlace
from .strategies import computes_in_bf16, script_kinds
from .workload import GB, Shape


@dataclass(frozen=True, kw_only=True, slots=True)
class AdviceCase:
    """The question."""

    model: Shape
    place: LaunchPlace
    kind: str = "unknown"
    """Key of a ScriptKind."""
    weights: str | None = None
    """Format of the script's weights, "fp32" or "bf16". None: unknown."""
    precision: str | None = None
    """Format of the computation, or None for the usual one."""
    lora: int | None = None
    """Rank of LoRA adapters, or None for training all parameters."""
    quantized: bool = False
    """True if the frozen base is in 4 bits (QLoRA)."""
    host_limit: float | None = None
    """Bytes of a node's host memory, or None if unknown."""
    script: str = "train.py"

    @property
    def ranks(self) -> int:
        return self.place.nodes * self.place.gpus.count

    @property
    def limit(self) -> float:
        """Memory of a GPU in bytes."""
        return self.place.gpus.memory_gb * GB

    @property
    def counted_weights(self) -> str:
        """Return the format that the estimates count: torch creates weights in fp32."""
        return self.weights or "fp32"

    @property
    def may_be_bf16(self) -> bool:
        """Return True if weights in bf16 are worth an estimate: the GPU has bf16, and no GradScaler refuses them."""
        return computes_in_bf16(self.place.gpus) and self.half != "fp16"

    @property
    def half(self) -> str:
        """Return the format of the computation if the preset or the script's arguments set it."""
        if self.precision is not None:
            return self.precision
        if computes_in_bf16(self.place.gpus):
            return "bf16"
        # A GradScaler refuses the gradients of bf16 weights.
        return "fp32" if self.weights == "bf16" else script_kinds()[self.kind].half
