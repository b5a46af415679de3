"""Choose a preset: compare strategies, suggest changes if a model does not fit, and ask questions. Pure."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ..finding import PlanError
from ..load import builtin_library, load
from .memory import Estimate, MemoryStrategy, estimate
from .workload import FORMATS, GB, Format, NodeGpus, Shape, parse_gpus, shape

MOST_RANKS = 1 << 17
"""Most ranks to try."""
SHORTEST = 128
"""Shortest sequence to try, in positions."""
HUGE = 40 * GB
"""Parameters above which tensor parallelism pays off on many nodes."""


def _strategy(key: str, title: str, words: str, why: str) -> MemoryStrategy:
    """Return a strategy by the arguments of `distui launch`: a shipped preset and its options."""
    name, *options = words.split()
    overrides = [option for option in options if option != "--set"]
    preset = load(name, overrides, presets=builtin_library()).preset
    return MemoryStrategy(key=key, title=title, words=words, why=why, preset=preset)


_DATA_PARALLEL = (
    ("single", "one GPU", "single", "nothing is exchanged, nothing can go wrong"),
    ("ddp", "DDP", "ddp", "a replica per rank and one all-reduce per step, the fastest"),
    (
        *("zero1", "ZeRO-1", "zero1"),
        "DDP with the optimizer's states in shards, the same traffic and much less memory",
    ),
    (
        *("zero2", "ZeRO-2", "fsdp2-zero2"),
        "gradients in shards, too; the weights are gathered once per step and kept until backward",
    ),
    ("zero3", "ZeRO-3", "fsdp2", "everything in shards, the least memory and half as much traffic again"),
)
_OFFLOADED = (
    (
        *("offload", "ZeRO-3, host", "fsdp2-offload"),
        "all states rest in host memory and travel each step: several times slower",
    ),
    (
        *("ds-cpu", "DeepSpeed, host", "ds-zero3-cpu"),
        "as fsdp2-offload, for scripts on DeepSpeed, Accelerate or the HF Trainer",
    ),
    (
        *("ds-nvme", "DeepSpeed, NVMe", "ds-zero3-nvme"),
        "all states rest on a local disk of each node: very slow, for what has no room elsewhere",
    ),
)


@functools.cache
def data_parallel() -> Sequence[MemoryStrategy]:
    """Return the strategies with only data parallelism, the simplest first."""
    return [_strategy(*row) for row in _DATA_PARALLEL]


@functools.cache
def offloaded() -> Sequence[MemoryStrategy]:
    """Return the strategies that offload to host memory or disk, the fastest first."""
    return [_strategy(*row) for row in _OFFLOADED]


def simple(ranks: int) -> list[MemoryStrategy]:
    """Return the data-parallel strategies that suit this number of ranks."""
    return [strategy for strategy in data_parallel() if (strategy.key == "single") == (ranks == 1)]


@functools.cache
def hybrid(nodes: int) -> MemoryStrategy:
    """Return the strategy with shards inside a node and one replica per node."""
    words = "hsdp" + _set("dp_replicate", nodes, 2)
    return _strategy(
        "hsdp", "HSDP", words, "shards inside a node, and between nodes no more traffic than DDP has"
    )


@functools.cache
def tensor(ranks: int) -> MemoryStrategy:
    """Return the strategy that divides each matrix over `ranks` of a node, and the rest as in ZeRO-3."""
    why = "matrices and activations are divided inside a node, too; wants NVLink and a tp_plan"
    return _strategy("tp", f"ZeRO-3 + TP {ranks}", "fsdp2-tp" + _set("tp", ranks, 2), why)


@functools.cache
def pipeline(stages: int) -> MemoryStrategy:
    """Return the strategy with `stages` pipeline stages and two microbatches per stage."""
    words = "pp-1f1b" + _set("pp", stages, 2) + _set("microbatches", 2 * stages, 4)
    why = f"stages exchange only activations, for slow links; wants batches of {2 * stages} and a pp_plan"
    return _strategy("pp", f"PP {stages}", words, why)


def _set(name: str, value: int, shipped: int) -> str:
    return "" if value == shipped else f" --set mesh.{name}={value}"


def compare(model: Shape, form: Format, ranks: int, limit: float) -> list[Estimate]:
    """Estimate the strategies with only data parallelism that suit this number of ranks, the simplest first."""
    return [estimate(strategy, model, form, ranks, limit) for strategy in simple(ranks)]


def survey(
    model: Shape, form: Format, per_node: int, nodes: int, limit: float, host_limit: float | None = None
) -> list[Estimate]:
    """Estimate all strategies that suit these nodes, the simplest first.

    `limit`: bytes of a GPU. `host_limit`: bytes of a node's host memory, or None if unknown.
    """
    ranks = per_node * nodes

    def weigh(strategy: MemoryStrategy) -> Estimate:
        plain = estimate(strategy, model, form, ranks, limit)
        return replace(plain, host_limit=None if host_limit is None else host_limit / per_node)

    *first, last = map(weigh, simple(ranks))
    estimates = [*first, *([weigh(hybrid(nodes))] if min(nodes, per_node) > 1 else []), last]
    estimates += _least(tensor, _products(per_node, model), weigh)
    estimates += _least(pipeline, _stages(ranks, model), weigh)
    return [*estimates, *map(weigh, offloaded())]


def _least(
    make: Callable[[int], MemoryStrategy], sizes: Sequence[int], weigh: Callable[[MemoryStrategy], Estimate]
) -> list[Estimate]:
    """Return the smallest size that fits, else the one with the least memory, or [] without sizes."""
    estimates = [weigh(make(size)) for size in sizes]
    fitting = [each for each in estimates if each.fits]
    return (fitting or sorted(estimates, key=lambda each: each.total))[:1]


def _products(per_node: int, model: Shape) -> list[int]:
    """Return the numbers of ranks of a node that can divide a matrix."""
    return [size for size in _powers(per_node) if per_node % size == 0 and model.hidden % size == 0]


def _stages(ranks: int, model: Shape) -> list[int]:
    """Return the possible numbers of pipeline stages."""
    return [size for size in _powers(min(ranks, model.layers)) if ranks % size == 0]


def _powers(most: int) -> Iterable[int]:
    return (1 << power for power in range(1, most.bit_length()) if 1 << power <= most)


def needed(model: Shape, form: Format, limit: float) -> int | None:
    """Return the fewest ranks that ZeRO-3 fits on, or None if its unsharded part is already too large."""

    def fits(ranks: int) -> bool:
        return estimate(data_parallel()[-1], model, form, ranks, limit).fits

    if not fits(MOST_RANKS):
        return None
    low, high = 0, MOST_RANKS  # too few, enough
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high


@dataclass(frozen=True, kw_only=True, slots=True)
class Remedy:
    """One change, and the simplest strategy that fits with it."""

    change: str
    """The advice, as the beginning of a sentence."""
    options: str
    """Options of `distui advise` that show the change in its table, or ""."""
    estimate: Estimate | None
    """None for advice to use ZeRO-3 on more GPUs."""

    @property
    def text(self) -> str:
        if self.estimate is None:
            return f"{self.change}."
        how = f"{self.change} ({self.options})" if self.options else self.change
        return f"{how}: {self.estimate.strategy.title} fits, with `{self.estimate.strategy.words}`."


def on_gpus(estimates: list[Estimate]) -> Estimate | None:
    """Return the simplest estimate that fits completely on the GPUs."""
    return next((row for row in estimates if row.fits and not row.host and not row.disk), None)


def remedies(model: Shape, form: Format, per_node: int, nodes: int, limit: float) -> list[Remedy]:
    """Return changes that make the model fit without host memory or disk, the cheapest first."""

    def simplest(changed: Shape, passes: int = 1) -> Estimate | None:
        rows = survey(changed, form, per_node, nodes, limit)
        if passes > 1:
            # a pipeline already accumulates its microbatches
            plain = [row for row in rows if row.strategy.preset.mesh.pp == 1]
            rows = [_accumulating(row, changed, form, per_node * nodes, passes) for row in plain]
        return on_gpus(rows)

    recomputing = replace(model, recompute=True)
    found = [_recomputed(model, simplest)]
    found.append(_smaller(model, simplest))
    if found == [None, None]:
        found.append(_smaller(recomputing, simplest) or _shorter(recomputing, simplest, model.recompute))
    found.append(_more(model, form, per_node, nodes, limit))
    return [remedy for remedy in found if remedy]


def _recomputed(model: Shape, simplest: Callable[[Shape], Estimate | None]) -> Remedy | None:
    fit = None if model.recompute else simplest(replace(model, recompute=True))
    change = "Compute activations again in backward"
    return Remedy(change=change, options="--recompute", estimate=fit) if fit else None


def _smaller(model: Shape, simplest: Callable[[Shape, int], Estimate | None]) -> Remedy | None:
    """Suggest the fewest passes over smaller batches that fit."""
    for passes in _divisors(model.micro_batch):
        size = model.micro_batch // passes
        if fit := simplest(replace(model, micro_batch=size), passes):
            options = f"--micro-batch {size}"
            if model.recompute:
                options += " --recompute"
            return Remedy(
                change=f"Accumulate gradients over {passes} passes", options=options, estimate=fit
            )
    return None


def _shorter(model: Shape, simplest: Callable[[Shape], Estimate | None], is_given: bool) -> Remedy | None:
    """Suggest the longest sequence that fits, with one sequence per batch. `is_given`: --recompute is an option."""
    seq = model.seq // 2
    while seq >= SHORTEST:
        if fit := simplest(replace(model, seq=seq, micro_batch=1)):
            options = f"--seq {seq}"
            if model.micro_batch > 1:
                options += " --micro-batch 1"
            if not is_given:
                options += " --recompute"
            return Remedy(change="Take shorter sequences", options=options, estimate=fit)
        seq //= 2
    return None


def _more(model: Shape, form: Format, per_node: int, nodes: int, limit: float) -> Remedy | None:
    """Suggest more GPUs of the same type, for the unchanged model or with the least activations."""
    for changed in (model, replace(model, recompute=True, micro_batch=1)):
        ranks = needed(changed, form, limit)
        if ranks is not None and ranks > per_node * nodes:
            least = (
                "" if changed == model else ", with one sequence at a time and activations computed again"
            )
            machines = f" ({-(-ranks // per_node)} nodes)" if ranks > per_node else ""
            change = f"Take more GPUs: ZeRO-3 fits on {ranks} such{machines}{least}"
            return Remedy(change=change, options="", estimate=None)
    return None


def _accumulating(plain: Estimate, model: Shape, form: Format, ranks: int, passes: int) -> Estimate:
    old = plain.strategy
    words = f"{old.words} --set batch.accumulation={passes}"
    return estimate(_strategy(old.key, old.title, words, old.why), model, form, ranks, plain.limit)


def _divisors(number: int) -> list[int]:
    """Return the divisors above 1, the smallest first."""
    small = [each for each in range(1, math.isqrt(number) + 1) if number % each == 0]
    return sorted({*small, *(number // each for each in small)} - {1})


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
        _strategy(f"ds-zero{stage}", f"DeepSpeed's ZeRO-{stage}", f"ds-zero{stage}", why)
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
