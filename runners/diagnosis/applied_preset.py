"""Compare the models of the ranks with the preset, and report a preset or a launch without effect."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from ...presets.finding import Finding
from ..run.model import Outcome, PlanSummary, Wrapped
from ..run.state import RunState

if TYPE_CHECKING:
    from .view import View

DIMENSIONS = ("pp", "ep", "cp", "tp")
"""Mesh dimensions that shard the model or its input, which a wrapper's class does not show."""
WRAPPER_NAMES = {
    "ddp": "DistributedDataParallel",
    "zero1": "ZeroRedundancyOptimizer",
    "fsdp1": "FullyShardedDataParallel",
    "fsdp2": "fully_shard",
    "deepspeed": "DeepSpeed",
}


class Applied(Struct, frozen=True):
    """Whether the preset was applied to the models of the ranks."""

    state: Literal["applied", "not applied", "unknown"]
    text: str
    """The reason in a few words."""


def check_applied(state: RunState) -> Applied | None:
    """Compare the ranks' models with the preset; None for a run without a preset."""
    plan = state.plan
    if plan is None or not plan.preset:
        return None
    made = _wrappers(state)
    if not made:
        yet = "" if state.phase.ended else " yet"
        return Applied("unknown", f"no rank has shown{yet} what its model is wrapped with")
    world = state.world_size or len(state.ranks)
    judged = {number: _judge(plan, wrapped, world) for number, wrapped in made.items()}
    for number, check in judged.items():
        if check.state != "applied":
            return Applied(check.state, f"rank {number}: {check.text}" if len(judged) > 1 else check.text)
    return judged[min(judged)]


def _wrappers(state: RunState) -> dict[int, Wrapped]:
    """Return the models of the ranks that reported one."""
    return {number: rank.made for number, rank in sorted(state.ranks.items()) if rank.made is not None}


def _judge(plan: PlanSummary, made: Wrapped, world: int) -> Applied:
    seen = _seen(made)
    missing = _missing(plan, made, world)
    if missing:
        return Applied("not applied", f"{plan.preset} asks for {missing}, and the model {seen}")
    # The preset still counts as applied: a script may choose another precision on purpose.
    if plan.precision and made.param and plan.precision != made.param:
        return Applied("applied", f"the model {seen}, in {made.param} instead of {plan.precision}")
    return Applied("applied", f"the model {seen}")


def _missing(plan: PlanSummary, made: Wrapped, world: int) -> str:
    """Return the preset's requirement that the model lacks; "" for none."""
    wrapper = _missing_wrapper(plan, made, world)
    if wrapper:
        return wrapper
    stage = plan.zero_stage
    if stage is not None and made.zero_stage not in (None, stage):
        return f"ZeRO stage {stage}"
    for name in DIMENSIONS:
        size = plan.mesh.get(name, 1)
        if size > 1 and made.dims.get(name) != size:
            return f"{name} {size}"
    return ""


def _missing_wrapper(plan: PlanSummary, made: Wrapped, world: int) -> str:
    """Return the preset's wrapper that the model lacks, or that others contradict; "" for none."""
    kind, has = plan.strategy, set(made.strategies)
    if kind == "single":
        return "a whole model" if has - {"ddp"} else ""
    if kind == "ddp" and (world == 1 or _is_piped(plan, made)):
        return WRAPPER_NAMES[kind] if has - {"ddp"} else ""
    if kind not in has:
        return WRAPPER_NAMES.get(kind, kind)
    if kind == "ddp" and has & {"zero1", "fsdp1", "fsdp2", "deepspeed"}:
        return "DistributedDataParallel alone"
    return ""


def _is_piped(plan: PlanSummary, made: Wrapped) -> bool:
    """Whether the model is split into the pipeline stages of the plan."""
    stages = plan.mesh.get("pp", 1)
    return stages > 1 and made.dims.get("pp") == stages


def _seen(made: Wrapped) -> str:
    """Wrappers in words: "is wrapped in fully_shard, divided by tp 2"."""
    # `adopted` already names ZeroRedundancyOptimizer's part of an adopted model.
    shown = [each for each in made.strategies if each != "zero1" or not made.adopted]
    names = " and ".join(WRAPPER_NAMES.get(strategy, strategy) for strategy in shown)
    if made.zero_stage is not None:
        names = names.replace("DeepSpeed", f"DeepSpeed (ZeRO stage {made.zero_stage})")
    dims = _dims_text(made.dims)
    text = f"is wrapped in {names or 'nothing'}"
    if dims:
        text += f", divided by {dims}"
    return f"{text}; {made.adopted}" if made.adopted else text


def _dims_text(dims: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {size}" for name, size in dims.items() if name in DIMENSIONS and size > 1)


REMEDY_IDLE = "see why the script had nothing to do: its last lines, its arguments, a checkpoint that was done already"
REMEDY_ALONE = (
    "see whether the script makes its group under a condition, such as a GPU, that is not met here"
)
REMEDY_OTHERWISE = (
    "call parallelize() in the script, take the preset that matches what it does, or see the plan's notes"
)


def find_not_applied(view: View) -> Iterable[Finding]:
    """Report a preset without effect, ranks that train independently, and success without a step."""
    yield from _find_idle(view)
    yield from _find_ungrouped(view)
    result = check_applied(view.state)
    expected = view.state.plan.obeys if view.state.plan is not None else None
    if result is not None and result.state == "not applied" and expected:  # else the plan reports it
        yield Finding(
            "acted-otherwise",
            "warning",
            f"the preset is not applied: {result.text}",
            remedy=REMEDY_OTHERWISE,
            evidence=(f"the plan expected: {expected}",),
        )


def _find_idle(view: View) -> Iterable[Finding]:
    attempt = view.attempt
    if attempt is not None and attempt.outcome is Outcome.SUCCEEDED and attempt.idle:
        text = f"every rank succeeded, but {attempt.idle}"
        yield Finding("acted-idle", "warning", text, remedy=REMEDY_IDLE, since=attempt.ended)


def _find_ungrouped(view: View) -> Iterable[Finding]:
    made = [rank.made for rank in view.state.ranks.values()]
    if len(made) > 1 and all(each and each.grouped is False and not each.strategies for each in made):
        text = f"the {len(made)} ranks train without a process group: each trains a model of its own"
        yield Finding("acted-alone", "warning", text, remedy=REMEDY_ALONE)
