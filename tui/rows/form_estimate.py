"""The memory estimate that the launch form describes. Pure."""

from __future__ import annotations

import shlex
from dataclasses import replace

from ...presets.estimate.advice import Advice, advise
from ...presets.estimate.advice_case import AdviceCase
from ...presets.estimate.guide_questions import CHOSEN, LORA_RANK
from ...presets.estimate.launch_command import LaunchPlace
from ...presets.estimate.model_kinds import mixture
from ...presets.estimate.option import Option
from ...presets.estimate.workload import (
    GB,
    VOCABULARY,
    NodeGpus,
    Shape,
    parse_gpus,
    parse_parameters,
    shape,
)
from ...presets.finding import PlanError
from ...presets.launchers import megatron
from ...presets.model import Preset
from ...runners.launch.launch_form import LaunchForm
from .form_fields import OPTION, SET


def asked(form: LaunchForm, preset: Preset, here: str = "", kind: str = "unknown") -> Advice | None:
    """Return the advice for the launch form; None without a model or GPUs. Raises PlanError.

    `here` names the GPUs of this machine. `kind` is that of the script, as its text shows.
    """
    hardware = form.hardware or form.option("gpus") or here
    if not form.params or not hardware:
        return None
    gpus, size = _parsed(form, hardware)
    if form.nproc.isdecimal() and int(form.nproc):
        gpus = replace(gpus, count=int(form.nproc))
    place = LaunchPlace(gpus=gpus, nodes=_nodes(form, preset))
    return advise(
        AdviceCase(
            model=_model(form, preset, size),
            place=place,
            kind=_kind(form, preset, kind),
            weights=form.format or None,
            lora=LORA_RANK if form.lora else None,
            quantized=form.lora == "QLoRA",
            script=form.script.strip() or "train.py",
        )
    )


def arguments(form: LaunchForm) -> list[str]:
    """Return the script's arguments, [] while a quote is open."""
    try:
        return shlex.split(form.args)
    except ValueError:
        return []


def _kind(form: LaunchForm, preset: Preset, shown: str) -> str:
    """Return what parallelizes the model: by the arguments, by --adopt, by the script's text, then by the preset."""
    if megatron.read(arguments(form)) is not None:
        return "megatron"
    if form.option("adopt") == "true":
        return "ddp"
    if shown == "unknown" and preset.strategy.kind == "deepspeed":
        return "deepspeed"
    return shown


def guided(advice: Advice, option: Option) -> dict[str, str]:
    """Return the fields of the form that an option sets, with the model of its estimate."""
    request, case = option.request, advice.case
    values = {
        "nproc": str(request.nproc_per_node or case.place.gpus.count),
        "place": request.on if request.on != "local" else "",
        "args": shlex.join(request.args),
        f"{OPTION}nnodes": str(request.nnodes or ""),
        f"{OPTION}gpus": request.gpus or "",
        f"{OPTION}network_tier": request.network_tier or "",
        f"{OPTION}adopt": "true" if request.adopt else "",
        "params": f"{case.model.parameters / GB:g}B",
        "hardware": f"{case.place.gpus.count}x{case.place.gpus.name}",
        "seq": str(case.model.seq),
        "recompute": "true" if option.change.recompute else "",
        "format": case.weights or "",
        "lora": _LORA[case.lora is not None, case.quantized],
        "experts": str(case.model.expert_count or ""),
    }
    for override in request.overrides:
        path, _, value = override.partition("=")
        values[f"{SET}{path}"] = value
    return values


_LORA = {(False, False): "", (True, False): "LoRA", (True, True): "QLoRA"}


def _nodes(form: LaunchForm, preset: Preset) -> int:
    """Return the number of nodes, of an elastic launch the largest. Raises PlanError."""
    nodes = form.option("nnodes")
    if not nodes:
        return preset.topology.nnodes
    return _from_one(nodes.rpartition(":")[2], f"nodes {nodes}: a number from 1 on")


def _model(form: LaunchForm, preset: Preset, parameters: int) -> Shape:
    """Return the model that the form and the preset describe. Raises PlanError."""
    recompute = form.recompute == "true" or preset.strategy.activation_checkpointing
    usual = shape(parameters)
    if form.experts:
        count = _from_one(form.experts, f"experts {form.experts}: a number from 3 on")
        usual = mixture(parameters, count, CHOSEN, None, None, None, VOCABULARY)
    model = replace(usual, micro_batch=preset.batch.micro or 1, recompute=recompute)
    if not form.seq:
        return model
    return replace(model, seq=_from_one(form.seq, f"sequence {form.seq}: a number of positions from 1 on"))


def _from_one(text: str, refusal: str) -> int:
    """Parse a number from 1 on. Raises PlanError."""
    if not text.isdecimal() or not int(text):
        raise PlanError(refusal)
    return int(text)


def _parsed(form: LaunchForm, hardware: str) -> tuple[NodeGpus, int]:
    """Return GPUs and parameters; errors use the form's own words. Raises PlanError."""
    try:
        return parse_gpus(hardware), parse_parameters(form.params)
    except PlanError as error:
        text = str(error).replace("--gpus", "GPU").replace("--params", "model")
        raise PlanError(
            text.replace(
                "give its memory with --gpu-memory GB", "write its memory into the name, as in X100-64GB"
            )
        ) from None
