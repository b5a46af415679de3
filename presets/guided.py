"""The questions of `presets new --guided`: which field each sets, and when it is asked. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from . import model
from .finding import PresetError
from .load import Library, load
from .model import Preset, Value

BASES: Mapping[str, str] = {
    "single": "single",
    "ddp": "ddp",
    "zero1": "zero1",
    "fsdp2": "fsdp2",
    "fsdp1": "fsdp1",
    "deepspeed": "ds-zero2",
}
"""Answer to the first question, a kind of strategy → the preset to build on."""


def _always(preset: Preset) -> bool:
    return True


def _kinds(*kinds: str) -> Callable[[Preset], bool]:
    return lambda preset: preset.strategy.kind in kinds


def _is_stage_3(preset: Preset) -> bool:
    return preset.strategy.kind == "deepspeed" and preset.strategy.stage == 3


def _is_on_disk(preset: Preset) -> bool:
    offloads = (preset.strategy.offload_optimizer, preset.strategy.offload_param)
    return preset.strategy.kind == "deepspeed" and "nvme" in offloads


@dataclass(frozen=True, slots=True)
class Question:
    path: str
    """The field that the answer sets."""
    text: str
    """Ends with a question mark."""
    is_asked: Callable[[Preset], bool] = _always
    """True for a preset, as far as it is answered, for which the field matters."""


FIRST = Question("strategy.kind", f"Which strategy: {', '.join(BASES)}?")
_NOT_DEEPSPEED = _kinds("single", "ddp", "zero1", "fsdp2", "fsdp1")
_NOT_ALONE = _kinds("ddp", "zero1", "fsdp2", "fsdp1", "deepspeed")
QUESTIONS = (
    Question("topology.nnodes", "How many nodes?", _NOT_ALONE),
    Question(
        "topology.nproc_per_node", "How many ranks on each node: a number, gpu, cpu or auto?", _NOT_ALONE
    ),
    Question("strategy.stage", "Which ZeRO stage: 0, 1, 2 or 3?", _kinds("deepspeed")),
    Question(
        "strategy.offload_optimizer",
        "Where does the optimizer state rest: none, cpu or nvme?",
        _kinds("deepspeed"),
    ),
    Question("strategy.offload_param", "Where do the parameters rest: none, cpu or nvme?", _is_stage_3),
    Question("strategy.nvme_path", "In which folder of a local disk?", _is_on_disk),
    Question(
        "strategy.sharding",
        "What is divided: FULL_SHARD, SHARD_GRAD_OP, NO_SHARD, HYBRID_SHARD or HYBRID_SHARD_ZERO2?",
        _kinds("fsdp1"),
    ),
    Question(
        "strategy.reshard_after_forward",
        "Free gathered parameters after forward (less memory)?",
        _kinds("fsdp2"),
    ),
    Question(
        "strategy.cpu_offload",
        "Keep the shards in host memory (slow, for what fits nowhere else)?",
        _kinds("fsdp1", "fsdp2"),
    ),
    Question(
        "strategy.wrap",
        "Which layer classes are gathered as one: A,B (empty: the members of module lists)?",
        _kinds("fsdp1", "fsdp2"),
    ),
    Question(
        "strategy.find_unused_parameters", "Do some steps leave parameters out?", _kinds("ddp", "zero1")
    ),
    Question("mesh.dp_replicate", "How many replicas, each divided over the other ranks?", _kinds("fsdp2")),
    Question("mesh.tp", "How many ranks share each matrix product (tensor parallelism)?", _kinds("fsdp2")),
    Question("mesh.cp", "How many ranks share a sequence (context parallelism)?", _kinds("ddp", "fsdp2")),
    Question(
        "strategy.activation_checkpointing",
        "Compute activations again in backward (less memory, a third more work)?",
        _NOT_DEEPSPEED,
    ),
    Question("strategy.compile", "Compile each layer?", _NOT_DEEPSPEED),
    Question("precision.param", "In which format do the passes compute: fp32, bf16 or fp16?"),
    Question("precision.reduce", "In which format are gradients summed: fp32, bf16 or fp16?", _NOT_ALONE),
    Question("batch.accumulation", "How many backward passes before each optimizer step?"),
    Question("restart.limit", "Restart after at most how many consecutive failures?"),
)
"""In the order in which they are asked, after FIRST."""


class Interview:
    """The answers so far, as a base and overrides of it."""

    def __init__(self, presets: Library, base: str = "") -> None:
        self._presets = presets
        self.base = base
        """Name of the preset to build on, "" before FIRST is answered."""
        self.overrides: tuple[str, ...] = ()
        self._asked = 0

    def question(self) -> Question | None:
        """Return the next question, or None after the last one. Raises PresetError."""
        if not self.base:
            return FIRST
        preset = self._preset()
        while self._asked < len(QUESTIONS) and not QUESTIONS[self._asked].is_asked(preset):
            self._asked += 1
        return QUESTIONS[self._asked] if self._asked < len(QUESTIONS) else None

    def default(self, question: Question) -> str:
        """Return what an empty answer means. Raises PresetError."""
        if question is FIRST:
            return "ddp"
        return _shown(model.flat(self._preset())[question.path])

    def answer(self, question: Question, text: str) -> None:
        """Take an answer; an empty one means the default. Raises PresetError for one that the field does not take."""
        text = text.strip()
        if question is FIRST:
            self._choose(text or "ddp")
            return
        if text and text != self.default(question):
            override = f"{question.path}={_as_toml(text, model.fields()[question.path])}"
            try:
                load(self.base, (*self.overrides, override), presets=self._presets)
            except PresetError as error:
                raise PresetError(str(error).removeprefix("--set: ")) from None
            self.overrides = (*self.overrides, override)
        self._asked += 1

    def _choose(self, kind: str) -> None:
        if kind not in BASES:
            raise PresetError(f"{kind} is not a strategy: write {', '.join(BASES)}")
        self.base = BASES[kind]

    def _preset(self) -> Preset:
        return load(self.base, self.overrides, presets=self._presets).preset


_WORDS = {"yes": "true", "y": "true", "no": "false", "n": "false"}


def _as_toml(text: str, hint: object) -> str:
    """Return an answer as --set takes it."""
    if hint == tuple[str, ...]:
        names = [name.strip() for name in text.split(",")]
        return f"[{', '.join(model.show(name) for name in names if name)}]"
    return _WORDS.get(text.lower(), text) if bool in (hint, *getattr(hint, "__args__", ())) else text


def _shown(value: Value | None) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ",".join(map(str, value))
    return "" if value is None else str(value)
