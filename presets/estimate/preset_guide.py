"""Ask about model, GPUs and script, and recommend a preset. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ..finding import PlanError
from .memory import Estimate, estimate
from .survey import compare, hybrid, needed, strategy_of
from .workload import FORMATS, GB, NodeGpus, Shape, parse_gpus, shape

HUGE = 40 * GB
"""Parameters above which tensor parallelism pays off on many nodes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    key: str
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    key: str
    text: str
    choices: tuple[Choice, ...]


def _question(key: str, text: str, **choices: str) -> Question:
    options = tuple(Choice(key=name.strip("_"), text=words) for name, words in choices.items())
    return Question(key=key, text=text, choices=options)


QUESTIONS = (
    _question(
        "model",
        "How large is the model?",
        _1B="up to 1 billion parameters",
        _8B="up to 8 billion",
        _34B="up to 34 billion",
        _70B="about 70 billion, or more",
    ),
    _question(
        "gpu",
        "Which GPUs?",
        T4="16 GB each: T4, V100, P100",
        A10="24 GB: A10, L4, RTX 4090",
        L40S="48 GB: L40S, A40, A6000",
        H100="80 GB or more: A100-80GB, H100, H200",
    ),
    _question("count", "How many GPUs has a node?", _1="1", _2="2", _4="4", _8="8"),
    _question("nodes", "How many nodes?", _1="1", _2="2", _4="4", _8="8 or more"),
    _question(
        "script",
        "What parallelizes the model in your script?",
        parallelize="parallelize(), or nothing yet",
        trainer="Accelerate or the HF Trainer",
        deepspeed="DeepSpeed",
        own="the script itself: DDP, FSDP or another wrapper",
    ),
    _question(
        "sequences",
        "How long are the sequences?",
        _4096="a few thousand positions",
        _32768="tens of thousands",
    ),
    _question("experts", "Has the model mixture-of-experts layers?", no="no", yes="yes"),
)
"""In the order of the guide."""

Answers = Mapping[str, str]
"""Key of a question → key of the choice."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Recommendation:
    preset: str
    reasons: tuple[str, ...]
    """Sentences. Numbers assume 16-bit weights and recomputed layers."""
    nproc: int
    """Ranks per node."""
    nodes: int
    params: str
    """In the form of the memory estimate: "8B"."""
    hardware: str
    """The GPUs of a node: "8xA10"."""
    seq: str
    """Positions of a sequence in the estimate."""
    format: str
    """Number formats in the estimate, a key of memory.FORMATS. Layers are recomputed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Case:
    answers: Answers
    model: Shape
    gpus: NodeGpus
    nodes: int
    candidates: list[tuple[str, Estimate]]
    """Presets that this kind of script can obey, the simplest first."""

    @property
    def ranks(self) -> int:
        return self.nodes * self.gpus.count

    @property
    def limit(self) -> float:
        """Memory of a GPU in bytes."""
        return self.gpus.memory_gb * GB

    @property
    def first(self) -> tuple[str, Estimate] | None:
        """Return the simplest candidate that fits."""
        return next((candidate for candidate in self.candidates if candidate[1].fits), None)

    def says(self, question: str, *choices: str) -> bool:
        return self.answers[question] in choices


def recommend(answers: Answers) -> Recommendation:
    """Recommend a preset. `answers` has one answer per question. Raises PlanError."""
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
    plain = [(row.strategy.words, row) for row in compare(model, FORMATS["bf16"], ranks, limit)]
    if script in ("parallelize", "own"):
        return plain
    stages = (
        strategy_of(f"ds-zero{stage}", f"DeepSpeed's ZeRO-{stage}", f"ds-zero{stage}", why)
        for stage, why in _STAGES
    )
    staged = [(stage.words, estimate(stage, model, FORMATS["mixed"], ranks, limit)) for stage in stages]
    return staged if script == "deepspeed" else [plain[0], *staged]


_STAGES = (
    (1, "the optimizer's states in shards"),
    (2, "gradients in shards, too"),
    (3, "everything in shards"),
)


def _decide(case: _Case) -> tuple[str, list[str]]:
    """Return preset and reasons: first by the script, then by the kind of model, then by memory."""
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
    why = "A script that divides its own model decides itself: the preset only starts ranks and sets their environment."
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
    reasons = ["The experts are divided over the ranks; the rest of the model is a replica per rank."]
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
    """Estimate shards inside a node with one replica per node."""
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
