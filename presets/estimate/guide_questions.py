"""The questions of the launch screen's guide, and the case that their answers describe. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ..finding import PlanError
from .advice_case import AdviceCase
from .launch_command import LaunchPlace
from .model_kinds import mixture
from .workload import VOCABULARY, parse_gpus, parse_parameters, shape

LORA_RANK = 16
EXPERTS, CHOSEN = 8, 2
"""Experts per layer, and those that a token takes, if the model has some."""


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
        _70B="about 70 billion",
        _175B="100 billion or more",
    ),
    _question("experts", "Has the model mixture-of-experts layers?", no="no", yes="yes"),
    _question(
        "training",
        "What is trained?",
        all="all parameters",
        lora="adapters (LoRA)",
        qlora="adapters, the model in 4 bits (QLoRA)",
    ),
    _question(
        "sequences",
        "How long are the sequences?",
        _4096="a few thousand positions",
        _32768="tens of thousands",
        _131072="a hundred thousand or more",
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
    _question("nodes", "How many nodes?", _1="1", _2="2", _4="4", _8="8", _16="16 or more"),
    _question(
        "kind",
        "What parallelizes the model in your script?",
        parallelize="parallelize(), or nothing yet",
        ddp="DistributedDataParallel",
        accelerate="Accelerate",
        trainer="the HF Trainer or TRL",
        deepspeed="DeepSpeed",
        megatron="Megatron-LM",
    ),
)
"""In the order of the guide."""

Answers = Mapping[str, str]
"""Key of a question → key of the choice."""


def case_of(answers: Answers) -> AdviceCase:
    """Return the case that one answer per question describes. Raises PlanError."""
    for question in QUESTIONS:
        if answers.get(question.key) not in [choice.key for choice in question.choices]:
            raise PlanError(f"The guide has no answer to: {question.text}")
    parameters = parse_parameters(answers["model"])
    model = shape(parameters)
    if answers["experts"] == "yes":
        model = mixture(parameters, EXPERTS, CHOSEN, None, None, None, VOCABULARY)
    gpus = parse_gpus(f"{answers['count']}x{answers['gpu']}")
    return AdviceCase(
        model=replace(model, seq=int(answers["sequences"])),
        place=LaunchPlace(gpus=gpus, nodes=int(answers["nodes"])),
        kind=answers["kind"],
        lora=None if answers["training"] == "all" else LORA_RANK,
        quantized=answers["training"] == "qlora",
    )
