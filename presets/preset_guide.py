"""The decision guide: a few questions, and the preset that the answers lead to, with the reasons. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from .cluster import GB, NodeGpus, parse_gpus
from .finding import PlanError
from .memory import FORMATS, Estimate, Shape, compare, estimate, estimate_for, needed, shape
from .model import Precision, Preset, Strategy
from .strategies import hybrid

HUGE = 40 * GB
"""Parameters from which dividing each matrix product pays on many nodes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """One possible answer."""

    key: str
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """One thing to ask."""

    key: str
    text: str
    choices: tuple[Choice, ...]


def _question(key: str, text: str, **choices: str) -> Question:
    options = tuple(Choice(key=name.strip("_"), text=words) for name, words in choices.items())
    return Question(key=key, text=text, choices=options)


QUESTIONS = (
    _question("model", "How large is the model?", _1B="up to 1 billion parameters", _8B="up to 8 billion",
              _34B="up to 34 billion", _70B="about 70 billion, or more"),
    _question("gpu", "Which GPUs?", T4="16 GB each: T4, V100, P100", A10="24 GB: A10, L4, RTX 4090",
              L40S="48 GB: L40S, A40, A6000", H100="80 GB or more: A100-80GB, H100, H200"),
    _question("count", "How many GPUs has a node?", _1="1", _2="2", _4="4", _8="8"),
    _question("nodes", "How many nodes?", _1="1", _2="2", _4="4", _8="8 or more"),
    _question("script", "What divides the model in your script?", parallelize="parallelize(), or nothing yet",
              trainer="Accelerate or the HF Trainer", deepspeed="DeepSpeed",
              own="the script itself: DDP, FSDP or another wrapper"),
    _question("sequences", "How long are the sequences?", _4096="a few thousand positions", _32768="tens of thousands"),
    _question("experts", "Has the model mixture-of-experts layers?", no="no", yes="yes"),
)  # fmt: skip
"""In the order in which they are asked."""

Answers = Mapping[str, str]
"""Key of a question → key of the choice."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Recommendation:
    """Where the answers lead."""

    preset: str
    reasons: tuple[str, ...]
    """Sentences; numbers are for weights in 16 bit and layers that are recomputed."""
    nproc: int
    """Ranks on each node."""
    nodes: int
    params: str
    """As the memory estimate takes it: "8B"."""
    hardware: str
    """The GPUs of a node: "8xA10"."""
    seq: str
    """Positions of a sequence, as they were counted."""
    format: str
    """Number formats as they were counted, a name of memory.FORMATS; layers were counted as recomputed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Case:
    """What the answers come to."""

    answers: Answers
    model: Shape
    gpus: NodeGpus
    nodes: int
    candidates: list[tuple[str, Estimate]]
    """Presets that a script of this kind can obey, from the simplest on."""

    @property
    def ranks(self) -> int:
        return self.nodes * self.gpus.count

    @property
    def limit(self) -> float:
        """Bytes of a GPU."""
        return self.gpus.memory_gb * GB

    @property
    def first(self) -> tuple[str, Estimate] | None:
        """The simplest that fits."""
        return next((candidate for candidate in self.candidates if candidate[1].fits), None)

    def says(self, question: str, *choices: str) -> bool:
        return self.answers[question] in choices


def recommend(answers: Answers) -> Recommendation:
    """The preset for these answers, one for each question. Raises PlanError."""
    for question in QUESTIONS:
        if answers.get(question.key) not in [choice.key for choice in question.choices]:
            raise PlanError(f"The guide has no answer to: {question.text}")
    case = _case(answers)
    preset, reasons = _decide(case)
    return Recommendation(
        preset=preset,
        reasons=tuple(reasons),
        nproc=case.gpus.count,
        nodes=case.nodes,
        params=answers["model"],
        hardware=f"{answers['count']}x{answers['gpu']}",
        seq=answers["sequences"],
        format="mixed" if preset.startswith("ds-") else "bf16",
    )


def _case(answers: Answers) -> _Case:
    gpus, nodes = parse_gpus(f"{answers['count']}x{answers['gpu']}"), int(answers["nodes"])
    model = replace(
        shape(int(answers["model"].removesuffix("B")) * GB), seq=int(answers["sequences"]), recompute=True
    )
    candidates = _candidates(answers["script"], model, gpus.count * nodes, gpus.memory_gb * GB)
    return _Case(answers=answers, model=model, gpus=gpus, nodes=nodes, candidates=candidates)


def _candidates(script: str, model: Shape, ranks: int, limit: float) -> list[tuple[str, Estimate]]:
    names = {"single": "single", "ddp": "ddp", "zero1": "zero1", "zero2": "fsdp2-zero2", "zero3": "fsdp2"}
    plain = [(names[row.strategy.key], row) for row in compare(model, FORMATS["bf16"], ranks, limit)]
    if script in ("parallelize", "own"):
        return plain
    staged = [
        (preset.name, estimate_for(preset, model, FORMATS["mixed"], ranks, limit)) for preset in _STAGES
    ]
    return staged if script == "deepspeed" else [plain[0], *staged]


_SHARDED: Mapping[Literal[1, 2, 3], str] = {
    1: "the optimizer's states in shards", 2: "gradients in shards, too", 3: "everything in shards",
}  # fmt: skip
_STAGES = tuple(
    Preset(
        name=f"ds-zero{stage}", title=f"DeepSpeed's ZeRO-{stage}", summary=why,
        strategy=Strategy(kind="deepspeed", stage=stage), precision=Precision(param="bf16"),
    )
    for stage, why in _SHARDED.items()
)  # fmt: skip
"""What of the shipped presets memory depends on."""


def _decide(case: _Case) -> tuple[str, list[str]]:
    """Preset and reasons: by the script first, then by the model's kind, then by what fits."""
    if case.says("script", "own"):
        return _own(case)
    if case.says("script", "trainer", "deepspeed"):
        return _deepspeed(case)
    if case.ranks > 1 and case.says("experts", "yes"):
        return _experts(case)
    if case.ranks > 1 and case.says("sequences", "32768"):
        return _long(case)
    return _fitting(case)


def _own(case: _Case) -> tuple[str, list[str]]:
    name = "single" if case.ranks == 1 else "ddp"
    why = "A script that divides its model itself decides alone: the preset starts the ranks and sets their environment."
    if case.first is None:
        return name, [why, _too_large(case)]
    title = case.first[1].strategy.title
    return name, [why, f"By the estimate, {title} is the simplest that fits, if the script can do it."]


def _deepspeed(case: _Case) -> tuple[str, list[str]]:
    if case.first is None:
        return "ds-zero3-cpu", [
            _too_large(case),
            "DeepSpeed can let parameters and optimizer rest in host memory.",
        ]
    name, fitting = case.first
    reasons = [_fits(fitting)]
    if name.startswith("ds-") and not case.says("script", "deepspeed"):
        reasons.append("Accelerate and the HF Trainer obey a DeepSpeed configuration.")
    if case.says("experts", "yes") or case.says("sequences", "32768"):
        reasons.append("Experts and long sequences are divided by presets for parallelize() only.")
    return name, reasons


def _experts(case: _Case) -> tuple[str, list[str]]:
    reasons = ["The experts are divided over the ranks; the rest of the model is a replica a rank."]
    if case.says("sequences", "32768"):
        reasons.append("For the long sequences raise mesh.cp in the same preset.")
    if case.says("model", "34B", "70B"):
        reasons.append("Raise mesh.ep until the experts fit, at most to their number.")
    return "moe", reasons


def _long(case: _Case) -> tuple[str, list[str]]:
    reasons = [
        "Activations grow with the length of a sequence: the ranks of mesh.cp take a piece of each.",
        "Parameters, gradients and optimizer state are in shards, as under fsdp2.",
    ]
    return "context", reasons if case.first else [_too_large(case), *reasons]


def _fitting(case: _Case) -> tuple[str, list[str]]:
    if case.first is None:
        return "fsdp2-offload", [
            _too_large(case),
            "Parameters, gradients and optimizer state can rest in host memory, several times slower.",
        ]
    name, first = case.first
    if name != "fsdp2":
        return name, [_fits(first)]
    if case.nodes > 1 and case.gpus.count > 1 and _replicated(case).fits:
        why = "One node's GPUs hold the model together: replicas over nodes spare the network."
        return "hsdp", [_fits(first), why, f"Set mesh.dp_replicate to the number of nodes, {case.nodes}."]
    if case.nodes >= 4 and case.gpus.count > 1 and case.model.parameters >= HUGE:
        name = "3d" if case.nodes >= 8 else "fsdp2-tp"
        why = "On so many nodes, dividing each matrix product inside a node shortens the all-gathers."
        return name, [_fits(first), why]
    return "fsdp2", [_fits(first)]


def _replicated(case: _Case) -> Estimate:
    """Shards inside a node, a replica of them a node."""
    return estimate(hybrid(case.nodes), case.model, FORMATS["bf16"], case.ranks, case.limit)


def _fits(fit: Estimate) -> str:
    return (
        f"{fit.strategy.title} is the simplest that fits, with about {fit.total / GB:.0f} of {fit.limit / GB:.0f} GB "
        f"on each GPU: {fit.strategy.why}."
    )


def _too_large(case: _Case) -> str:
    ranks = needed(case.model, FORMATS["bf16"], case.limit)
    if ranks is None:
        return f"One layer and its activations do not fit into {case.gpus.memory_gb:g} GB, on however many GPUs."
    return f"Nothing fits by the estimate: ZeRO-3 needs {ranks} such GPUs, and these are {case.ranks}."
