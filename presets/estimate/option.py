"""One strategy of an advice with its remedies: the launch, and the estimate of that launch. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ..finding import PlanError
from ..launchers import megatron
from ..model import Preset
from ..request import Request
from .advice_case import AdviceCase
from .assumptions import Assumptions, Change, changed_preset
from .launch_command import LaunchPlace, command_of, launch_request
from .memory import Estimate, estimate_for, format_for
from .model_kinds import with_adapters
from .strategies import Needs, ScriptKind, Strategy, script_kinds
from .workload import CONTEXT_BYTES, FORMATS, GPU, USABLE, Format, Shape


@dataclass(frozen=True, kw_only=True, slots=True)
class Option:
    """One strategy with its remedies, its estimate and its launch."""

    strategy: Strategy
    title: str
    """With the sizes of the mesh."""
    kind: str
    """Key of the ScriptKind that the estimate is for: that of the script, or what it becomes by an edit."""
    sizes: Mapping[str, int]
    """Chosen sizes of the mesh's dimensions."""
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
    def layout(self) -> tuple[str, str]:
        """Return what two options share if they differ only in remedies, batch, or formats."""
        return self.kind, self.title

    @property
    def fits(self) -> bool:
        return self.estimate.fits and self.fits_whole

    @property
    def command(self) -> str:
        return command_of(self.request)


def option_of(
    case: AdviceCase, strategy: Strategy, change: Change, kind: str, sizes: Mapping[str, int]
) -> Option:
    """Return one strategy with its command and the estimate of that command.

    `kind`: that of the script, or another one that it becomes by an edit.
    """
    script = script_kinds()[kind]
    assumed = Assumptions(case=case, strategy=strategy, change=change, script=script, sizes=sizes)
    overrides, args = assumed.overrides(), assumed.args()
    preset = changed_preset(strategy.preset, overrides)
    model = assumed.model_of_script()
    adopts = kind == "ddp" and (strategy.preset not in ("single", "ddp") or bool(overrides))
    model, form = _formed(case, script, preset, model)
    fused = script.fused or change.fused
    device = replace(GPU, foreach=not fused, fused=fused)
    found = estimate_for(preset, model, form, case.ranks, case.limit, device, args)
    host = None if case.host_limit is None else case.host_limit / case.place.gpus.count
    whole = form.weights * model.parameters + CONTEXT_BYTES
    edits = [strategy.edit] if strategy.edit else []
    if kind != case.kind:
        edits.insert(0, "call distui's parallelize()")
    return Option(
        strategy=strategy,
        title=strategy.title.format(**sizes),
        kind=kind,
        sizes=sizes,
        change=change,
        estimate=replace(found, host_limit=host),
        form=form,
        needs="edit" if kind != case.kind else strategy.needs,
        edits=(*edits, *assumed.of_script()),
        request=launch_request(case.place, strategy.preset, overrides, adopts, (case.script, *args)),
        preset=preset,
        model=model,
        place=case.place,
        fits_whole=not adopts or strategy.preset == "ddp" or whole <= USABLE * case.limit,
    )


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
