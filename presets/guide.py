"""The decision guide: a few questions, and the preset that the answers lead to, with the reasons. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .errors import PlanError
from .hardware import GB, Gpus, parse_gpus
from .memory import FORMATS, Estimate, Shape, compare, needed, shape

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
    found = tuple(Choice(key=name.strip("_"), text=words) for name, words in choices.items())
    return Question(key=key, text=text, choices=found)


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
    _question("sequences", "How long are the sequences?", usual="up to 8,192 positions", long="32,768 or more"),
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
    """Sentences."""
    nproc: int
    """Ranks on each node."""
    nodes: int
    params: str
    """As the memory estimate takes it: "8B"."""
    hardware: str
    """The GPUs of a node: "8xA10"."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Case:
    """What the answers come to."""

    answers: Answers
    model: Shape
    gpus: Gpus
    nodes: int
    estimates: list[Estimate]

    @property
    def ranks(self) -> int:
        return self.nodes * self.gpus.count

    @property
    def first(self) -> Estimate | None:
        """The simplest strategy that fits."""
        return next((one for one in self.estimates if one.fits), None)

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
    )


def _case(answers: Answers) -> _Case:
    gpus = parse_gpus(f"{answers['count']}x{answers['gpu']}")
    nodes = int(answers["nodes"])
    model = _model(answers)
    found = compare(model, FORMATS["bf16"], nodes * gpus.count, gpus.memory_gb * GB)
    return _Case(answers=answers, model=model, gpus=gpus, nodes=nodes, estimates=found)


def _model(answers: Answers) -> Shape:
    usual = shape(int(answers["model"].removesuffix("B")) * GB)
    return Shape(parameters=usual.parameters, layers=usual.layers, hidden=usual.hidden, recompute=True)


def _decide(case: _Case) -> tuple[str, list[str]]:
    """Preset and reasons: by the script first, then by the model's kind, then by what fits."""
    if case.says("script", "own"):
        return _own(case)
    if case.says("script", "trainer", "deepspeed"):
        return _deepspeed(case)
    if case.ranks > 1 and case.says("experts", "yes"):
        return _experts(case)
    if case.ranks > 1 and case.says("sequences", "long"):
        return _long(case)
    return _fitting(case)


def _own(case: _Case) -> tuple[str, list[str]]:
    name = "single" if case.ranks == 1 else "ddp"
    why = "A script that divides its model itself decides alone: the preset starts the ranks and sets their environment."
    if case.first is None:
        return name, [why, _too_large(case)]
    fitting = (
        f"By the estimate, {case.first.strategy.title} is the simplest that fits, if the script can do it."
    )
    return name, [why, fitting]


def _deepspeed(case: _Case) -> tuple[str, list[str]]:
    names = {
        "single": "single",
        "ddp": "ddp",
        "zero1": "ds-zero1",
        "zero2": "ds-zero2",
        "zero3": "ds-zero3",
    }
    who = "DeepSpeed" if case.says("script", "deepspeed") else "Accelerate and the HF Trainer"
    first = case.first
    if first is None:
        return "ds-zero3-cpu", [
            _too_large(case),
            "DeepSpeed can let parameters and optimizer rest in host memory.",
        ]
    name = names[first.strategy.key]
    if name == "ddp" and case.says("script", "deepspeed"):
        name = "ds-zero1"
    reasons = [_fits(first)]
    if name.startswith("ds-"):
        reasons.append(f"{who} obey{'s' * case.says('script', 'deepspeed')} a DeepSpeed configuration.")
    if case.says("experts", "yes") or case.says("sequences", "long"):
        reasons.append("Experts and long sequences are divided by presets for parallelize() only.")
    return name, reasons


def _experts(case: _Case) -> tuple[str, list[str]]:
    reasons = ["The experts are divided over the ranks; the rest of the model is a replica a rank."]
    if case.says("sequences", "long"):
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
    first = case.first
    if first is None:
        return "fsdp2-offload", [
            _too_large(case),
            "Parameters, gradients and optimizer state can rest in host memory, several times slower.",
        ]
    if first.strategy.key != "zero3":
        names = {"single": "single", "ddp": "ddp", "zero1": "zero1", "zero2": "fsdp2-zero2"}
        return names[first.strategy.key], [_fits(first)]
    if case.nodes > 1 and _one_node(case):
        why = "One node's GPUs hold the model together: replicas over nodes spare the network."
        return "hsdp", [_fits(first), why, f"Set mesh.dp_replicate to the number of nodes, {case.nodes}."]
    if case.nodes >= 4 and case.gpus.count > 1 and case.model.parameters >= HUGE:
        name = "3d" if case.nodes >= 8 else "fsdp2-tp"
        why = "On so many nodes, dividing each matrix product inside a node shortens the all-gathers."
        return name, [_fits(first), why]
    return "fsdp2", [_fits(first)]


def _one_node(case: _Case) -> bool:
    """Whether shards over the GPUs of one node are enough."""
    inside = compare(case.model, FORMATS["bf16"], case.gpus.count, case.gpus.memory_gb * GB)
    return case.gpus.count > 1 and inside[-1].fits


def _fits(one: Estimate) -> str:
    return (
        f"{one.strategy.title} is the simplest that fits, with about {one.total / GB:.0f} of {one.limit / GB:.0f} GB "
        f"on each GPU: {one.strategy.why}."
    )


def _too_large(case: _Case) -> str:
    ranks = needed(case.model, FORMATS["bf16"], case.gpus.memory_gb * GB)
    if ranks is None:
        return f"One layer and its activations do not fit into {case.gpus.memory_gb:g} GB, on however many GPUs."
    return f"Nothing fits by the estimate: ZeRO-3 needs {ranks} such GPUs, and these are {case.ranks}."
