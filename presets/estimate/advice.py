"""Rank the strategies that let a model train on some GPUs, with the command of each. Pure.

`distui advise`, the Python API, MCP and the launch screen's guide all render the result of `advise`.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ..finding import PlanError
from ..launchers import megatron
from ..load import builtin_library, load
from ..model import Preset
from ..request import Request
from .launch_command import LaunchPlace, command_of, launch_request
from .memory import Estimate, estimate_for, format_for
from .model_kinds import with_adapters
from .strategies import (
    Needs,
    ScriptKind,
    Strategy,
    computes_in_bf16,
    mesh_sizes,
    script_kinds,
    strategies,
)
from .workload import CONTEXT_BYTES, FORMATS, GB, GPU, USABLE, Format, Shape

GROUPS: Sequence[Needs] = ("", "edit", "host", "disk")
"""What a strategy needs, the cheapest first. More GPUs come after these."""
LARGEST_NODE = 8
"""GPUs of a usual node."""
MOST_NODES = 1 << 14
SHORTEST = 128
"""Shortest sequence to try, in positions."""


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
    def half(self) -> str:
        """Return the format of the computation if the preset or the script's arguments set it."""
        kind = script_kinds()[self.kind]
        return self.precision or ("bf16" if computes_in_bf16(self.place.gpus) else kind.half)


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
class Option:
    """One strategy with its remedies, its estimate and its launch."""

    strategy: Strategy
    title: str
    """With the sizes of the mesh."""
    change: Change
    estimate: Estimate
    form: Format
    needs: Needs
    edits: tuple[str, ...]
    """What the script itself has to do, as verbs."""
    request: Request
    preset: Preset
    model: Shape
    """The model as the script gets it: the command may change batch and recomputation."""
    place: LaunchPlace
    fits_whole: bool = True
    """False if the model has to fit on one GPU before it is divided, and does not."""

    @property
    def fits(self) -> bool:
        return self.estimate.fits and self.fits_whole

    @property
    def command(self) -> str:
        return command_of(self.request)


@dataclass(frozen=True, kw_only=True, slots=True)
class Advice:
    """The answer."""

    case: AdviceCase
    rows: list[Option]
    """Every strategy as asked, without remedies, the simplest first."""
    ranked: list[Option]
    """Every strategy that fits, with its cheapest remedies, the cheapest first."""
    more: Option | None
    """The cheapest option on the fewest GPUs that hold everything, if these do not."""
    shorter: Option | None
    """An option with the longest sequence that fits, if nothing else helps."""
    plain: Option | None = None
    """The first option for a script that calls DistributedDataParallel, if the kind of the script is unknown."""
    with_bf16: Advice | None = None
    """The answer for weights in bf16, if the script decides their format and it is unknown."""

    @property
    def first(self) -> Option | None:
        return next(iter(self.ranked), None)

    def remedied(self, option: Option) -> Option | None:
        """Return the row's strategy with its cheapest remedies, or None if it fits without, or not at all."""
        if option.fits:
            return None
        return next((ranked for ranked in self.ranked if ranked.strategy is option.strategy), None)

    def also(self, option: Option) -> Option | None:
        """Return the row of the same strategy for weights in bf16, or None if it is the same estimate."""
        rows = self.with_bf16.rows if self.with_bf16 else []
        twin = next((row for row in rows if row.strategy is option.strategy), None)
        return None if twin is None or twin.form == option.form else twin


def advise(case: AdviceCase) -> Advice:
    """Rank the strategies for a case."""
    advice = _advise(case)
    if case.kind == "unknown" and advice.first is not None:
        plain = _ranked(replace(case, kind="ddp"), ("",))
        advice = replace(advice, plain=next(iter(plain), None))
    if case.weights is not None:
        return advice
    other = _advise(replace(case, weights="bf16"))
    depends = any(one.form != two.form for one, two in zip(advice.rows, other.rows, strict=True))
    return replace(advice, with_bf16=other if depends else None)


def _advise(case: AdviceCase) -> Advice:
    ranked = _ranked(case)
    on_gpus = any(option.needs in ("", "edit") for option in ranked)
    more = None if on_gpus else _on_more_gpus(case)
    shorter = _with_shorter_sequences(case) if not ranked and more is None else None
    base = Change(case.model.recompute)
    rows = [_best_size(case, strategy, base, case.kind) for strategy in _suitable(case, case.kind)]
    return Advice(case=case, rows=rows, ranked=ranked, more=more, shorter=shorter)


# --- ranking


def _suitable(case: AdviceCase, kind: str) -> list[Strategy]:
    place, model = case.place, case.model
    suited = [row for row in strategies(kind) if row.suits(model, place.gpus, place.nodes)]
    return [row for row in suited if mesh_sizes(row, model, place.gpus, place.nodes)]


def _ranked(case: AdviceCase, groups: Sequence[Needs] = GROUPS) -> list[Option]:
    """Return every strategy with its cheapest change that fits, the cheapest first."""
    found: list[Option] = []
    for needs in groups:
        found += _of_group(
            case, case.kind, [row for row in _suitable(case, case.kind) if row.needs == needs]
        )
        other = script_kinds()[case.kind].edit
        if needs == "edit" and other and not found:
            rows = [row for row in _suitable(case, other) if row.needs in ("", "edit")]
            found += _of_group(case, other, rows)
    return found


def _of_group(case: AdviceCase, kind: str, rows: Sequence[Strategy]) -> list[Option]:
    """Return the strategies that fit, by the cost of their change, then in the given order."""
    changes = list(_changes(case.model))
    fitting: list[Option] = []
    for strategy in rows:
        if not _best_size(case, strategy, changes[-1], kind).fits:
            continue  # the smallest batch does not fit, so no larger one does
        options = (_best_size(case, strategy, change, kind) for change in changes)
        cheapest = next((option for option in options if option.fits), None)
        if cheapest is not None:
            fitting.append(cheapest)
    return sorted(fitting, key=lambda option: (option.change.passes, option.change.recompute))


def _changes(model: Shape) -> Iterator[Change]:
    """Yield the remedies, the cheapest first: a fused optimizer, recomputed layers, smaller batches."""
    recomputing = [model.recompute] if model.recompute else [False, True]
    for passes in _divisors(model.micro_batch):
        for recompute in recomputing:
            for fused in (False, True):
                yield Change(recompute, passes, fused)


def _divisors(number: int) -> list[int]:
    small = [each for each in range(1, int(number**0.5) + 1) if number % each == 0]
    return sorted({*small, *(number // each for each in small)})


def _best_size(case: AdviceCase, strategy: Strategy, change: Change, kind: str) -> Option:
    """Return the option with the smallest sizes that fit, else with the sizes that need the least memory."""
    place = case.place
    options = (
        _option(case, strategy, change, kind, sizes)
        for sizes in mesh_sizes(strategy, case.model, place.gpus, place.nodes)
    )
    best: Option | None = None
    for option in options:
        if option.fits:
            return option
        if best is None or option.estimate.total < best.estimate.total:
            best = option
    assert best is not None  # _suitable keeps only strategies with a size
    return best


# --- one option


def _option(
    case: AdviceCase, strategy: Strategy, change: Change, kind: str, sizes: Mapping[str, int]
) -> Option:
    """Return one strategy with its command and the estimate of that command."""
    script = script_kinds()[kind]
    assumed = _Assumed(case=case, strategy=strategy, change=change, script=script, sizes=sizes)
    overrides, args = assumed.overrides(), assumed.args()
    preset = _changed_preset(strategy.preset, overrides)
    model = assumed.model_of_script()
    adopts = kind == "ddp" and (strategy.preset not in ("single", "ddp") or bool(overrides))
    model, form = _formed(case, script, preset, model)
    fused = script.fused or change.fused
    device = replace(GPU, foreach=not fused, fused=fused)
    found = estimate_for(preset, model, form, case.ranks, case.limit, device, args)
    host = None if case.host_limit is None else case.host_limit / case.place.gpus.count
    whole = form.weights * model.parameters + CONTEXT_BYTES
    is_edit = bool(strategy.edit) or kind != case.kind
    edits = (
        *(("call distui's parallelize()",) if kind != case.kind else ()),
        *filter(None, (strategy.edit,)),
    )
    return Option(
        strategy=strategy,
        title=strategy.title.format(**sizes),
        change=change,
        estimate=replace(found, host_limit=host),
        form=form,
        needs="edit" if is_edit and strategy.needs == "" and kind != case.kind else strategy.needs,
        edits=(*edits, *assumed.of_script()),
        request=launch_request(case.place, strategy.preset, overrides, adopts, (case.script, *args)),
        preset=preset,
        model=model,
        place=case.place,
        fits_whole=not adopts or strategy.preset == "ddp" or whole <= USABLE * case.limit,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Assumed:
    """How the assumptions of an estimate reach the script."""

    case: AdviceCase
    strategy: Strategy
    change: Change
    script: ScriptKind
    sizes: Mapping[str, int]

    @property
    def micro(self) -> int:
        return self.case.model.micro_batch // self.change.passes

    @property
    def kind(self) -> str:
        """Return the preset's kind of strategy."""
        return _shipped(self.strategy.preset).strategy.kind

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
        mesh = _shipped(self.strategy.preset).mesh
        wanted = dict(self.sizes)
        if "pp" in wanted:
            wanted["microbatches"] = 2 * wanted["pp"]
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
        if is_set and _shipped(self.strategy.preset).precision.param != half:
            yield f"precision.param={half}"

    def _batch(self) -> Iterator[str]:
        pieces = 2 * self.sizes["pp"] if "pp" in self.sizes else 1
        if "batch" in self.script.sets:
            yield f"batch.micro={self.micro * pieces}"
        if "accumulation" in self.script.sets and self.change.passes > 1 and pieces == 1:
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
                yield "load the base in 4 bits, as by BitsAndBytesConfig(load_in_4bit=True)"

    def model_of_script(self) -> Shape:
        """Return the model with the assumptions that only the script can make."""
        pieces = 2 * self.sizes["pp"] if "pp" in self.sizes and not self.strategy.args else 1
        recompute = self.change.recompute and not self.sets_recompute
        return replace(self.case.model, micro_batch=self.micro * pieces, recompute=recompute)


@functools.cache
def _shipped(name: str) -> Preset:
    return load(name, presets=_library()).preset


@functools.cache
def _changed_preset(name: str, overrides: tuple[str, ...]) -> Preset:
    return load(name, overrides, presets=_library()).preset


_library = functools.cache(builtin_library)


def _formed(case: AdviceCase, script: ScriptKind, preset: Preset, model: Shape) -> tuple[Shape, Format]:
    """Return the model, and the format of its states that this kind of script has under the preset."""
    form = format_for(preset, case.counted_weights)
    if script.key == "megatron":
        form = FORMATS["megatron"]
    if case.lora is not None:
        return with_adapters(model, form, case.lora, quantized=case.quantized)
    upcasts = script.key in ("accelerate", "trainer") and preset.strategy.kind == "fsdp2"
    if upcasts and preset.precision.param != "fp32":
        return model, FORMATS["fp32"]  # Accelerate: fsdp2_prepare_model
    return model, form


def estimate_preset(case: AdviceCase, preset: Preset, args: Sequence[str] = ()) -> Estimate:
    """Estimate any preset for the case, with Megatron-LM's sizes in the script's arguments.

    Raises PlanError if the mesh or these sizes do not divide the ranks.
    """
    ranks = 1 if preset.strategy.kind == "single" else case.ranks
    asked = megatron.read(args)
    wrong = None if asked is None else megatron.misfit(asked, ranks)
    if wrong is not None:
        raise PlanError(f"{wrong.where} {wrong.value}: {wrong.text} {wrong.remedy}")
    model, form = _formed(case, script_kinds()[case.kind], preset, case.model)
    return estimate_for(preset, model, form, ranks, case.limit, args=args)


# --- more than these GPUs


def _on_more_gpus(case: AdviceCase) -> Option | None:
    """Return the cheapest option on the fewest GPUs that hold everything: in one node, else on more such nodes."""

    def on(count: int, nodes: int) -> Option | None:
        gpus = replace(case.place.gpus, count=count)
        place = replace(case.place, gpus=gpus, nodes=nodes, hosts=())
        return next(iter(_ranked(replace(case, place=place), ("", "edit"))), None)

    count, few = case.place.gpus.count, case.place.nodes
    if few == 1:
        for larger in range(count + 1, LARGEST_NODE + 1):
            if found := on(larger, 1):
                return found
        count = LARGEST_NODE if count == 1 else count
    many = few
    while on(count, many) is None:
        few, many = many, many * 2
        if many > MOST_NODES:
            return None
    while many - few > 1:
        middle = (few + many) // 2
        few, many = (middle, many) if on(count, middle) is None else (few, middle)
    return on(count, many)


def _with_shorter_sequences(case: AdviceCase) -> Option | None:
    """Return the cheapest option with the longest sequence, of halves of the given one, that fits here."""
    seq = case.model.seq // 2
    while seq >= SHORTEST:
        found = _ranked(replace(case, model=replace(case.model, seq=seq)))
        if found:
            return found[0]
        seq //= 2
    return None
