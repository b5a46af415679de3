"""The memory estimate that the launch form describes. Pure."""

from __future__ import annotations

from dataclasses import replace

from ...presets.estimate.memory import format_for
from ...presets.estimate.survey import survey
from ...presets.estimate.workload import FORMATS, GB, NodeGpus, Shape, parse_gpus, parse_parameters, shape
from ...presets.finding import PlanError
from ...presets.model import Preset
from ...runners.launch.advice import Advice
from ...runners.launch.launch_form import LaunchForm


def asked(form: LaunchForm, preset: Preset, here: str = "") -> Advice | None:
    """Return the advice for the launch form; None without a model or GPUs. Raises PlanError.

    `here` names the GPUs of this machine.
    """
    hardware = form.hardware or form.option("gpus") or here
    if not form.params or not hardware:
        return None
    gpus, size = _parsed(form, hardware)
    if form.nproc.isdecimal() and int(form.nproc):
        gpus = replace(gpus, count=int(form.nproc))
    nodes, model = _nodes(form, preset), _model(form, preset, size)
    counted = FORMATS[form.format] if form.format else format_for(preset)
    estimates = survey(model, counted, gpus.count, nodes, gpus.memory_gb * GB)
    return Advice(model, counted, gpus, nodes, estimates)


def _nodes(form: LaunchForm, preset: Preset) -> int:
    """Return the number of nodes, of an elastic launch the largest. Raises PlanError."""
    nodes = form.option("nnodes")
    if not nodes:
        return preset.topology.nnodes
    return _from_one(nodes.rpartition(":")[2], f"nodes {nodes}: a number from 1 on")


def _model(form: LaunchForm, preset: Preset, parameters: int) -> Shape:
    """Return the model that the form and the preset describe. Raises PlanError."""
    recompute = form.recompute == "true" or preset.strategy.activation_checkpointing
    model = replace(shape(parameters), micro_batch=preset.batch.micro or 1, recompute=recompute)
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
