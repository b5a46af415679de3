"""`--adopt`: the hook applies the preset at a script's own DistributedDataParallel call, and a plan says what it can do.

Like script_support, this module only reads the syntax tree.
"""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Iterator, Mapping, Sequence

from .finding import PlanError
from .model import LAYERS, Batch, Preset
from .script_facts import PARALLELIZE, Names, Script, ScriptCall, framework, parse, wraps
from .script_support import Obeys
from .text_formats import Unreadable

VARIABLE = "DISTUI_ADOPT"
"""Set to 1 to enable --adopt in the hook."""
DIVIDES = {
    "pp": "cuts the model into stages",
    "ep": "divides its experts",
    "cp": "divides its sequences",
    "tp": "divides its layers",
}
"""Mesh dimensions whose ranks must see the same samples → their effect."""
OTHERS = {
    "single": "is one process, which wraps nothing",
    "fsdp1": "is deprecated in torch",
    "deepspeed": "needs deepspeed.initialize() in the script",
}
"""Strategies that --adopt does not support → the reason."""
_BY_NONE = (
    "torch.optim.LBFGS",
    "torch.optim.SparseAdam",
    "torch.distributed.optim.ZeroRedundancyOptimizer",
)
_BY_PARAMETER = tuple(f"torch.optim.{name}" for name in ("ASGD", "Adadelta", "Adafactor", "Muon", "Rprop"))
OTHER_OPTIMIZERS = {"zero1": _BY_NONE, "fsdp2": (*_BY_NONE, *_BY_PARAMETER)}
"""Optimizers that the ranks refuse. runners/inrank/adopt/optimizers.py lists the accepted ones."""


def adopted(
    preset: Preset, script: str, texts: Mapping[str, str | bytes | None], *, python: bool = True
) -> Obeys:
    """Return how --adopt acts on a script. Raises PlanError if it cannot.

    `texts`: "" → the script's text, path of an imported file → its text. `python`: True if the ranks run Python.
    """
    parts = list(_parts(script, texts))
    refused = refusal(preset, python=python) or _by_itself(parts) or _by_text(preset, parts)
    if refused:
        raise PlanError(refused)
    kind = preset.strategy.kind
    also = ""
    if preset.strategy.powersgd_rank is not None:
        also = ", sends gradients by PowerSGD"
    for name, part in parts:
        if call := _wrapping(part):
            how = f"{name} calls DistributedDataParallel in line {call.line}: --adopt applies {kind} there{also}."
            return Obeys(how, how, "adopt")
    how = (
        f"--adopt applies {kind} where {script} calls DistributedDataParallel{also}. Its text does not show that: "
        "without such a call the run stops at the first optimizer step."
    )
    return Obeys(how, how, "adopt")


def refusal(preset: Preset, *, python: bool = True) -> str:
    """Return a sentence if --adopt cannot apply this preset to any script, else ""."""
    if why := _unsuited_mesh(preset) or _unsuited_fields(preset):
        return f"--adopt cannot apply preset {preset.name}: {why}"
    if not preset.hook:
        return "--adopt works through distui's hook, which is left out: leave out --no-hook"
    return "" if python else "--adopt works in Python, which --no-python leaves out: leave out one of them"


def remedy(preset: Preset, script: str, texts: Mapping[str, str | bytes | None]) -> str:
    """Return what would make a preset act that `script` ignores, as a sentence, or "" if its text does not show it.

    `texts`: as for `adopted`.
    """
    parts = list(_parts(script, texts))
    calls = [call for _, part in parts for call in part.calls]
    if any(_wrapping(part) for _, part in parts):
        try:
            adopted(preset, script, texts)
        except PlanError as error:
            return f"{error}."
        return f"Add --adopt, which applies {preset.strategy.kind} there."
    if own := own_strategies(script, texts):
        return f"Take a preset of strategy {min(own)}, or call parallelize() instead."
    if not parts or any(framework(call.full) for call in calls):
        return ""
    if refusal(preset):
        return "Call parallelize() in the script."
    return "Call parallelize() in the script, or wrap its model in DistributedDataParallel and add --adopt."


def own_strategies(script: str, texts: Mapping[str, str | bytes | None]) -> set[str]:
    """Return the kinds of strategy that a script and its imported files apply by themselves."""
    return {wraps(call.full)[0] for _, part in _parts(script, texts) for call in part.calls} - {""}


def _unsuited_mesh(preset: Preset) -> str:
    for name, what in DIVIDES.items():
        if (size := getattr(preset.mesh, name)) > 1:
            return (
                f"mesh.{name} {size} {what} over ranks that have to see the same samples, which takes parallelize() in "
                "the script"
            )
    return ""


def _unsuited_fields(preset: Preset) -> str:
    """Return the first of the other fields that --adopt cannot apply, and what to do, or ""."""
    strategy = preset.strategy
    if strategy.kind in OTHERS:
        return f"strategy {strategy.kind} {OTHERS[strategy.kind]}; take ddp, zero1 or fsdp2, or call parallelize() in it"
    for name in ("micro", "accumulation"):
        if getattr(preset.batch, name) != getattr(Batch(), name):
            return f"the script's loop makes the batches; leave batch.{name} out"
    for name in LAYERS:
        if getattr(strategy, name):
            how = f"add --set strategy.{name}=false"
            return f"strategy.{name} acts on single layers, which takes parallelize() in the script; {how}"
    if strategy.kind == "fsdp2" and strategy.reshard_after_forward is not True:
        value = str(strategy.reshard_after_forward).lower()
        return (
            f"strategy.reshard_after_forward={value} leaves whole parameters where the script may change them between "
            "passes; take fsdp2"
        )
    return ""


def _by_itself(parts: Sequence[tuple[str, Script]]) -> str:
    """Return a sentence if the script leaves its strategy to something other than DistributedDataParallel, else ""."""
    other = ""
    for name, part in parts:
        if _wrapping(part):
            return ""
        for call in part.calls:
            what = "calls parallelize()" if call.full == PARALLELIZE else framework(call.full)
            other = other or (f"{name} {what} in line {call.line}" if what else "")
    return other and f"{other}, where --adopt does nothing: leave it out"


def _by_text(preset: Preset, parts: Sequence[tuple[str, Script]]) -> str:
    """Return why the ranks would stop, as far as literals and names in the source show it, or ""."""
    for name, part in parts:
        wrapping = _wrapping(part)
        why = wrapping and _unsuited_call(preset, part, wrapping)
        why = why or _unsuited_optimizer(preset.strategy.kind, part)
        if why:
            return f"--adopt cannot apply preset {preset.name}: {name} {why}"
    return ""


def _unsuited_call(preset: Preset, part: Script, wrapping: ScriptCall) -> str:
    """Return why the script's DistributedDataParallel call does not suit the preset, without a subject, or ""."""
    if preset.strategy.kind != "fsdp2":
        return ""
    if _is_true(wrapping.keyword("find_unused_parameters")):
        return (
            f"gives find_unused_parameters=True to DistributedDataParallel in line {wrapping.line}, and ranks may then "
            "gather different parameters; take zero1 or ddp"
        )
    compiled = _compilations(part, wrapping)
    if compiled:
        return (
            f"compiles its model in line {compiled[0].line}, before DistributedDataParallel gets it; compile it after "
            "that, or take zero1 or ddp"
        )
    return ""


def _compilations(part: Script, wrapping: ScriptCall) -> list[ScriptCall]:
    """Return the calls that compile the model which DistributedDataParallel gets."""
    model = wrapping.node.args[0] if wrapping.node.args else None
    values = part.assigned.get(model.id, ()) if isinstance(model, ast.Name) else (model,)
    calls = (call for call in _certain_calls(part) if call.full == "torch.compile")
    return [call for call in calls if call.node in values]


def _unsuited_optimizer(kind: str, part: Script) -> str:
    """Return why the ranks would refuse an optimizer of the script, without a subject, or ""."""
    refused = OTHER_OPTIMIZERS.get(kind)
    if refused is None:
        return ""
    own = _own_optimizers(part)
    for call in _certain_calls(part):
        if call.full in refused or (not call.full and call.last in own):
            each = "element" if kind == "fsdp2" else "parameter"
            return (
                f"makes a {call.last} in line {call.line}, and {kind} takes optimizers of torch that update each {each} "
                "on its own, as AdamW; take ddp"
            )
    return ""


def _own_optimizers(part: Script) -> set[str]:
    """Return the script's classes that derive from torch's optimizers."""
    names = Names(part.tree)
    return {
        node.name
        for node in part.tree.of(ast.ClassDef)
        if any(names.full(base).startswith("torch.optim.") for base in node.bases)
    }


def _wrapping(part: Script) -> ScriptCall | None:
    """Return the first call of DistributedDataParallel."""
    return next((call for call in part.calls if wraps(call.full)[0] == "ddp"), None)


def _certain_calls(part: Script) -> list[ScriptCall]:
    """Return the unconditional calls."""
    tree = part.tree
    return [call for call in part.calls if not any(map(_is_condition, tree.around(call.node)))]


def _is_condition(node: ast.AST) -> bool:
    return isinstance(node, ast.If | ast.IfExp)


def _is_true(keyword: ast.keyword | None) -> bool:
    return keyword is not None and isinstance(keyword.value, ast.Constant) and keyword.value.value is True


def _parts(script: str, texts: Mapping[str, str | bytes | None]) -> Iterator[tuple[str, Script]]:
    """Yield the script and its imported files, each with its name for sentences. Unreadable files are skipped."""
    for path, text in texts.items():
        with contextlib.suppress(Unreadable):
            if text is not None:
                yield (f"{script}, through {path}," if path else script), parse(text)
