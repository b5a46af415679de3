"""`--adopt`: what the hook can apply where a script calls DistributedDataParallel itself, and what a plan says of it.

Nothing is executed: like script_support, it reads the syntax tree.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from .finding import PlanError
from .model import Preset
from .script_support import PARALLELIZE, Obeys, ScriptCall, framework, parse, wraps
from .text_formats import Unreadable

VARIABLE = "DISTUI_ADOPT"
"""By which the hook knows that it was asked for: 1."""
DIVIDES = {
    "pp": "cuts the model into stages",
    "ep": "divides its experts",
    "cp": "divides its sequences",
    "tp": "divides its layers",
}
"""Dimensions of a mesh over which ranks have to see the same samples; what each does."""
OTHERS = {
    "single": "is one process, which wraps nothing",
    "fsdp1": "is deprecated in torch",
    "deepspeed": "needs deepspeed.initialize() in the script",
}
"""Why the others are not."""


def adopted(
    preset: Preset, script: str, texts: Mapping[str, str | bytes | None], *, python: bool = True
) -> Obeys:
    """How --adopt acts on a script. Raises PlanError where it cannot.

    `texts`: "" → the script's text, path of a file beside it that it imports → its text; `python`: whether what the
    ranks execute is Python.
    """
    calls = list(_calls(script, texts))
    refused = refusal(preset, python=python) or _by_itself(calls)
    if refused:
        raise PlanError(refused)
    kind = preset.strategy.kind
    also = _also(preset)
    for name, call in calls:
        if wraps(call.full)[0] == "ddp":
            how = f"{name} calls DistributedDataParallel in line {call.line}: --adopt applies {kind} there{also}."
            return Obeys(how, how, "adopt")
    without = "the run stops at the first optimizer step"
    if kind == "zero1":
        without = "it is applied at the first optimizer step, or the run stops there where ranks have other gradients"
    how = (
        f"--adopt applies {kind} where {script} calls DistributedDataParallel{also}. Its text does not show that: "
        f"without such a call {without}."
    )
    return Obeys(how, how, "adopt")


def _also(preset: Preset) -> str:
    """What is done there beside the strategy, and to the steps, with a comma before it."""
    done = []
    if preset.strategy.activation_checkpointing:
        done.append("has the activations of its layers computed again in backward")
    if preset.strategy.compile:
        done.append("compiles its layers")
    if preset.strategy.powersgd_rank is not None:
        done.append("sends gradients by PowerSGD")
    if (passes := preset.batch.accumulation) > 1:
        done.append(f"makes 1 optimizer step of {passes}, with the mean gradient of {passes} batches")
    if not done:
        return ""
    if len(done) == 1:
        return f", {done[0]}"
    return f", {', '.join(done[:-1])} and {done[-1]}"


def refusal(preset: Preset, *, python: bool = True) -> str:
    """Why --adopt cannot apply this preset to any script, as a sentence; "" where it can."""
    kind, lead = preset.strategy.kind, f"--adopt cannot apply preset {preset.name}"
    for name, what in DIVIDES.items():
        if (size := getattr(preset.mesh, name)) > 1:
            return (
                f"{lead}: mesh.{name} {size} {what} over ranks that have to see the same samples, which takes "
                "parallelize() in the script"
            )
    if kind in OTHERS:
        return (
            f"{lead}: strategy {kind} {OTHERS[kind]}; take ddp, zero1 or fsdp2, or call parallelize() in it"
        )
    if preset.batch.micro is not None:
        return f"{lead}: the batch is the script's own; leave batch.micro out"
    if preset.launcher.kind != "torchrun":
        return f"{lead}: its launcher is {preset.launcher.kind}; add --set launcher.kind=torchrun"
    if not preset.hook:
        return "--adopt works through distui's hook, which is left out: leave out --no-hook"
    return "" if python else "--adopt works in Python, which --no-python leaves out: leave out one of them"


def _by_itself(calls: Iterable[tuple[str, ScriptCall]]) -> str:
    """That a script without a DistributedDataParallel of its own leaves that to something else, as a sentence."""
    other = ""
    for name, call in calls:
        if wraps(call.full)[0] == "ddp":
            return ""
        what = "calls parallelize()" if call.full == PARALLELIZE else framework(call.full)
        other = other or (f"{name} {what} in line {call.line}" if what else "")
    return other and f"{other}, where --adopt does nothing: leave it out"


def _calls(script: str, texts: Mapping[str, str | bytes | None]) -> Iterator[tuple[str, ScriptCall]]:
    """Each call with the name of its file as a sentence has it; none of what cannot be read."""
    for path, text in texts.items():
        try:
            calls = () if text is None else parse(text).calls
        except Unreadable:
            continue
        yield from ((f"{script}, through {path}," if path else script, call) for call in calls)
