"""How the assumptions of an estimate reach a script: fields of the preset, its own arguments, or an edit. Pure."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from ..load import builtin_library, load
from ..model import Preset
from .advice_case import AdviceCase
from .strategies import ScriptKind, Strategy, computes_in_bf16
from .workload import Shape


@dataclass(frozen=True, slots=True)
class Change:
    """Remedies that keep the strategy."""

    recompute: bool
    """Compute the activations of each layer again in backward."""
    passes: int = 1
    """Backward passes that share the micro-batch."""
    fused: bool = False
    """Take torch's fused optimizer, which updates without a copy of a moment."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Assumptions:
    """How the assumptions of an estimate reach the script."""

    case: AdviceCase
    strategy: Strategy
    change: Change
    script: ScriptKind
    sizes: Mapping[str, int]

    @property
    def micro(self) -> int:
        """Return the sequences per rank and pass."""
        return self.case.model.micro_batch // self.change.passes

    @property
    def pieces(self) -> int:
        """Return the microbatches of a pipeline of distui's, 1 without one: two per stage and pass."""
        return 1 if self.strategy.args else 2 * self.sizes.get("pp", 0) * self.change.passes or 1

    @property
    def kind(self) -> str:
        """Return the preset's kind of strategy."""
        return changed_preset(self.strategy.preset).strategy.kind

    @property
    def sets_recompute(self) -> bool:
        return self.kind in self.script.recompute

    def overrides(self) -> tuple[str, ...]:
        """Return the changed fields of the preset."""
        found = [*self._mesh(), *self._precision()]
        if self.change.recompute and self.sets_recompute:
            found.append("strategy.activation_checkpointing=true")
        return (*found, *self._batch())

    def _mesh(self) -> Iterator[str]:
        if self.strategy.args:  # the script divides the model
            return
        mesh = changed_preset(self.strategy.preset).mesh
        wanted = dict(self.sizes)
        if self.pieces > 1:
            wanted["microbatches"] = self.pieces
        for name, size in wanted.items():
            if getattr(mesh, name) != size:
                yield f"mesh.{name}={size}"

    @property
    def half(self) -> str:
        """Return the format of the computation. DeepSpeed scales the loss for fp16 itself."""
        case = self.case
        if self.kind == "deepspeed" and case.precision is None and not computes_in_bf16(case.place.gpus):
            return "fp16"
        return case.half

    def _precision(self) -> Iterator[str]:
        half = self.half
        is_set = "precision" in self.script.sets or (
            self.script.key == "ddp" and self.case.precision not in (None, "fp32")
        )
        if is_set and changed_preset(self.strategy.preset).precision.param != half:
            yield f"precision.param={half}"

    def _batch(self) -> Iterator[str]:
        if "batch" in self.script.sets:
            yield f"batch.micro={self.micro * self.pieces}"
        if "accumulation" in self.script.sets and self.change.passes > 1 and self.pieces == 1:
            yield f"batch.accumulation={self.change.passes}"

    def args(self) -> tuple[str, ...]:
        """Return the script's arguments."""
        found = [word.format(**self.sizes) for word in self.strategy.args]
        found += self.script.args_for(self.half)
        if self.change.recompute and not self.sets_recompute:
            found += self.script.args_for("recompute")
        found += self.script.args_for("batch", micro=self.micro)
        if self.change.passes > 1:
            found += self.script.args_for("accumulation", passes=self.change.passes)
        return tuple(found)

    def of_script(self) -> Iterator[str]:
        """Yield what only the script itself can do."""
        given = self.script.args
        if self.script.key == "unknown" and self.kind == "deepspeed":
            yield "use DeepSpeed, as by deepspeed.initialize()"
        if self.change.fused:
            yield "make its optimizer with fused=True"
        if self.change.recompute and not self.sets_recompute and "recompute" not in given:
            yield "recompute its layers, as by model.gradient_checkpointing_enable()"
        if "batch" not in self.script.sets and "batch" not in given and self.micro > 1:
            yield f"take {self.micro} sequences per rank and pass"
        elif "batch" not in self.script.sets and "batch" not in given:
            yield "take one sequence per rank and pass"
        if self.change.passes > 1 and self.script.key in ("ddp", "accelerate"):
            yield f"accumulate the gradients of {self.change.passes} passes"
        if self.case.lora is not None:
            yield f"train LoRA adapters, as by peft's LoraConfig(r={self.case.lora})"
            if self.case.quantized:
                yield f"load the base in 4 bits, as by BitsAndBytesConfig({self._quantization()})"

    def _quantization(self) -> str:
        """Return the arguments for a base in 4 bits. FSDP and ZeRO-3 divide only tensors of floats."""
        strategy = changed_preset(self.strategy.preset).strategy
        if not (
            strategy.kind in ("fsdp1", "fsdp2") or (strategy.kind == "deepspeed" and strategy.stage == 3)
        ):
            return "load_in_4bit=True"
        number = "float16" if self.half == "fp16" else "bfloat16"
        return f"load_in_4bit=True, bnb_4bit_quant_storage=torch.{number}"

    def model_of_script(self) -> Shape:
        """Return the model with the assumptions that only the script can make."""
        recompute = self.change.recompute and not self.sets_recompute
        return replace(self.case.model, micro_batch=self.micro * self.pieces, recompute=recompute)


_library = functools.cache(builtin_library)


@functools.lru_cache(maxsize=1024)
def changed_preset(name: str, overrides: tuple[str, ...] = ()) -> Preset:
    """Return a shipped preset with changed fields."""
    return load(name, overrides, presets=_library()).preset
