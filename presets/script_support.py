"""Determine which parts of a preset a script obeys, from its syntax tree. The script is not executed."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from .launchers.deepspeed import OPTION, VARIABLE, option_at
from .model import StrategyKind
from .script_facts import (
    COPIED_STEPS,
    COPY,
    PARALLELIZE,
    STEPS,
    Names,
    Script,
    ScriptCall,
    framework,
    parse,
    wraps,
)
from .script_tree import read
from .script_values import Value, Values
from .text_formats import Unreadable

NOTHING = "ignores the preset, which sets only launcher flags and environment"

CLAIMED = (
    "fsdp_plugin",
    "deepspeed_plugin",
    "deepspeed_plugins",
    "megatron_lm_plugin",
    "parallelism_config",
    "cpu",
)
"""Arguments of Accelerator that decide the strategy."""
TRAINER_CLAIMED = ("fsdp", "fsdp_config", "deepspeed")
"""Arguments of TrainingArguments that decide the strategy, and options with these names."""
NO_WAY = ("pp", "ep")
"""Mesh dimensions that Accelerate does not have."""
BY_THE_SCRIPT = {
    "tp": (("tp_plan", "tp_size", "distributed_config"), "it loads its model with a tp_plan"),
    "cp": (("maybe_context_parallel",), "its steps run in accelerator.maybe_context_parallel()"),
}
"""Mesh dimension of Accelerate → the names in a script that takes part in it, and what such a script does."""

Reader = Literal["parallelize", "accelerate", "trainer", "deepspeed", "adopt"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Requirements:
    """The preset's demands on the script."""

    kind: StrategyKind = "ddp"
    backend: str = "nccl"
    mesh: Sequence[str] = ()
    """Names of the mesh dimensions."""
    args: Sequence[str] = ()
    """The script's own arguments."""
    accumulation: int = 1
    """Backward passes per optimizer step."""
    options: Sequence[str] = ()
    """Enabled strategy options that act on layers or on the transfer of gradients."""
    beside: Mapping[str, str | bytes | None] = field(default_factory=dict)
    """Imported files of the script's folder: name → text, or None for a file that is too large."""
    own_config: str = ""
    """The script's own DeepSpeed configuration, if it was readable. See `own_config`."""


@dataclass(frozen=True, slots=True)
class Obeys:
    how: str | None
    """How the script obeys the preset's strategy, or None if it does not."""
    why: str
    """One sentence with the reason."""
    reader: Reader | None = None
    """Mechanism through which the script can obey some preset, even if not this one. None if distui knows none."""
    options: tuple[str, ...] = ()
    """Options to add to the script's arguments. The path of DeepSpeed's configuration follows the last one."""
    casts: bool = False
    """True if the script's names suggest that it casts to bf16 or fp16."""


USUAL = Requirements()


def _obeys(how: str, reader: Reader, options: tuple[str, ...] = (), casts: bool = False) -> Obeys:
    return Obeys(how, how, reader, options, casts)


def _refuses(why: str, reader: Reader | None = None) -> Obeys:
    return Obeys(None, why, reader)


def inspect(script: str | None, source: str | bytes | None, asked: Requirements = USUAL) -> Obeys:
    """Inspect the text (or bytes) `source` of `script`. Never raises."""
    name = script or "the command"
    if source is None:
        return _refuses(f"{name} could not be read as a script, so what it obeys is unknown.")
    try:
        parsed = parse(source)
    except Unreadable as error:
        where = f" (line {error.line})" if error.line else ""
        return _refuses(f"{name} {error}{where}, so what it obeys is unknown.")
    ours = parsed.find(PARALLELIZE, COPY)
    if ours is not None:
        return _parallelize(name, ours, asked, parsed.find(STEPS, COPIED_STEPS) is not None)
    for call in parsed.calls:
        what = framework(call.full)
        if what:
            return _theirs(f"{name} {what} in line {call.line}", parsed, call, asked)
    return _through_imports(name, asked) or _obeys_nothing(name, parsed)


def _through_imports(name: str, asked: Requirements) -> Obeys | None:
    """Inspect the imported files. Return None if all are readable and none decides the strategy."""
    for file, text in asked.beside.items():
        through = inspect(f"{name}, through {file},", text, replace(asked, beside={}))
        if through.how or through.reader or "the preset's strategy does not change that" in through.why:
            return through
    unread = [file for file, text in asked.beside.items() if not _is_readable(text)]
    if not unread:
        return None
    lead = f"{name} names no strategy, and {listed(unread)}, which it imports, could not be read"
    return _refuses(f"{lead}, so what it obeys is unknown.")


def _obeys_nothing(name: str, parsed: Script) -> Obeys:
    used = {module.split(".")[0] for module in Names(parsed.tree).imported} & {"megatron", "nemo"}
    sizes = "".join(
        f"; it uses {top}, and its arguments name no parallel sizes" for top in sorted(used)[:1]
    )
    return _refuses(f"{name} {NOTHING}{sizes}.")


def listed(files: Sequence[str]) -> str:
    """Join file names: "a.py, b.py and 3 more" for a long list."""
    more = f" and {len(files) - 3} more" if len(files) > 3 else ""
    return f"{', '.join(files[:3])}{more}"


def _is_readable(source: str | bytes | None) -> bool:
    try:
        return source is not None and bool(read(source))
    except Unreadable:
        return False


def _parallelize(name: str, call: ScriptCall, asked: Requirements, steps: bool) -> Obeys:
    """Return the answer for a script that calls parallelize(). `steps`: it also calls forward_backward()."""
    lead = f"{name} calls parallelize() in line {call.line}"
    if asked.kind == "deepspeed":
        return _refuses(f"{lead}, which is not DeepSpeed: take fsdp2, or zero1.", "parallelize")
    if "pp" in asked.mesh and not steps:
        return _refuses(f"{lead} and never forward_backward(), by which a pipeline runs.", "parallelize")
    doubt = "" if call.full == PARALLELIZE else ", if the parallelize beside it is distui's"
    but = ""
    if asked.accumulation > 1 and not steps:
        but = ", but not batch.accumulation, which acts in forward_backward()"
    how = f"{lead}: it obeys strategy and precision{doubt}{but}."
    return _obeys(how, "parallelize")


def _theirs(lead: str, script: Script, call: ScriptCall, asked: Requirements) -> Obeys:
    top, last = call.full.split(".", 1)[0], call.full.rpartition(".")[2]
    if top == "deepspeed":
        return _deepspeed(lead, script, call, asked)
    if last == "Accelerator":
        names = tuple(name for name in CLAIMED if not (name == "cpu" and _on_cpu_anyway(asked)))
        values = Values(script, asked.args)
        claims = _claims([call], names, values)
        precise = _claims([call], ("mixed_precision",), values)
        return _accelerate(lead, script, "accelerate", claims, precise, asked)
    if top in ("transformers", "trl"):
        return _trainer(lead, script, asked)
    same = f", which is {asked.kind}, too" if wraps(call.full)[0] == asked.kind != "ddp" else ""
    return _refuses(f"{lead}{same}: the preset's strategy does not change that.")


def _trainer(lead: str, script: Script, asked: Requirements) -> Obeys:
    """Return the answer for a Trainer, whose own settings are in TrainingArguments or on the command line."""
    made = [call for call in script.calls if call.last.endswith(("TrainingArguments", "Config"))]
    values = Values(script, asked.args)
    given = _given(TRAINER_CLAIMED, asked.args)
    if given:
        return _refuses(
            f"{lead}, and its arguments say {given}: the preset's strategy does not change that."
        )
    precise = _claims(made, ("bf16", "fp16"), values)
    given = _given(("bf16", "fp16"), asked.args)
    if given and not precise.sure:
        precise = _Claims(f"{given} among its arguments")
    return _accelerate(lead, script, "trainer", _claims(made, TRAINER_CLAIMED, values), precise, asked)


def _given(names: Sequence[str], args: Sequence[str]) -> str:
    """Return the option of one of these names that a command line gives a value, or ""."""
    for at, word in enumerate(args):
        option, equals, value = word.partition("=")
        behind = value if equals else next(iter(args[at + 1 : at + 2]), "")
        if option.startswith("--") and option[2:] in names and behind not in ("False", "false", '""', "''"):
            return option
    return ""


def _on_cpu_anyway(asked: Requirements) -> bool:
    """Return True if `cpu=True` of an Accelerator changes nothing.

    The ranks then have no GPU, and the Accelerator trains with DDP anyway.
    """
    return asked.kind in ("ddp", "single") and asked.backend == "gloo"


@dataclass(frozen=True, slots=True)
class _Claims:
    """Settings that the script makes itself."""

    sure: str = ""
    """The keyword that overrides any preset, with its line, or ""."""
    unless: tuple[str, ...] = ()
    """Conditions that let the script override the preset at run time."""


def _claims(calls: Sequence[ScriptCall], names: Sequence[str], values: Values) -> _Claims:
    """Return which of these keywords the calls pass."""
    unless: list[str] = []
    for call in calls:
        for keyword in call.node.keywords:
            if keyword.arg is None and not unless:
                unless.append(f"{ast.unparse(keyword.value)} holds {' or '.join(names)}")
            if keyword.arg not in names:
                continue
            value = values.of(keyword.value)
            if value.given or _an_object(keyword, value, values):
                return _Claims(f"{keyword.arg} (line {keyword.value.lineno})")
            if value.unless:
                unless.append(value.unless)
    return _Claims(unless=tuple(dict.fromkeys(unless)))


def _an_object(keyword: ast.keyword, value: Value, values: Values) -> bool:
    """Return True if a keyword passes a name that is only assigned calls: a plugin object, never None."""
    if value.given is not None or keyword.arg == "cpu" or not isinstance(keyword.value, ast.Name):
        return False
    made = values.assigned.get(keyword.value.id, [])
    return keyword.arg in CLAIMED and all(isinstance(expression, ast.Call) for expression in made)


def _accelerate(
    lead: str, script: Script, reader: Reader, claims: _Claims, precise: _Claims, asked: Requirements
) -> Obeys:
    if claims.sure:
        return _refuses(
            f"{lead} with its own {claims.sure}: the preset's strategy does not change that.", reader
        )
    why_not = _beyond_accelerate(asked)
    if why_not:
        return _refuses(f"{lead}, {why_not}.", reader)
    unless = _clause(", unless", claims.unless)
    alone = f"{lead}: it obeys the strategy through the environment{unless}; the precision is its own "
    if precise.sure:
        how = f"{alone}({precise.sure.replace(' (line ', ' in line ').removesuffix(')')})."
    elif reader == "trainer" and asked.kind == "deepspeed":
        how = f"{alone}(under DeepSpeed the Trainer takes bf16 and fp16 only from its arguments)."
    else:
        own = _clause("; the precision is its own if", precise.unless)
        how = f"{lead}: it obeys strategy and precision through the environment{unless}{own}."
    if left := [name for name in asked.options if name not in _options_of_accelerate(asked.kind)]:
        how = f"{how[:-1]}; but not strategy.{left[0]}, which it has no way to set from outside."
    if part := _by_the_script(script, reader, asked):
        how = f"{how[:-1]}; {part}."
    return _obeys(how, reader)


def _by_the_script(script: Script, reader: Reader, asked: Requirements) -> str:
    """Return on what the first dimension of the mesh depends in which the script does not visibly take part, or ""."""
    seen = {keyword.arg for call in script.calls for keyword in call.node.keywords}
    seen |= {call.last for call in script.calls}
    for name, (names, what) in BY_THE_SCRIPT.items():
        done = bool(seen & set(names)) or (name == "cp" and reader == "trainer")
        if name in asked.mesh and not done:
            return f"mesh.{name} only if {what}"
    return ""


def _clause(lead: str, conditions: Sequence[str]) -> str:
    return f"{lead} {' or '.join(conditions)}" if conditions else ""


def _options_of_accelerate(kind: StrategyKind) -> tuple[str, ...]:
    return ("activation_checkpointing", "compile") if kind in ("fsdp1", "fsdp2") else ("compile",)


def _beyond_accelerate(asked: Requirements) -> str | None:
    """Return why Accelerate cannot do what the preset requires, or None if it can."""
    if asked.kind == "zero1":
        return (
            "which has no ZeroRedundancyOptimizer and trains as DDP: ds-zero1 divides its optimizer state"
        )
    if asked.kind in ("fsdp1", "fsdp2") and asked.backend == "gloo":
        return "which knows no FSDP on CPU and trains as DDP there"
    beyond = next((name for name in asked.mesh if name in NO_WAY), None)
    if beyond:
        return f"which does not divide a model by mesh.{beyond}: call parallelize() for that"
    if asked.kind != "fsdp2" and "cp" in asked.mesh:
        return "which divides sequences only under fsdp2: take preset context"
    if "tp" in asked.mesh and not {"dp_shard", "cp"} & set(asked.mesh):
        return "whose FSDP needs ranks to shard over besides mesh.tp: launch more ranks, or lower mesh.tp"
    return None


def _deepspeed(lead: str, script: Script, call: ScriptCall, asked: Requirements) -> Obeys:
    reader: Reader = "deepspeed"
    if asked.kind != "deepspeed":
        return _refuses(f"{lead}, which obeys only strategy deepspeed: take ds-zero1, 2 or 3.", reader)
    casts = bool(_CASTS & {node.attr for node in script.tree.of(ast.Attribute)})
    how = f"{lead}: it obeys strategy and precision through "
    if option_at(asked.args) is not None:
        if asked.own_config:
            merged = f"{how}{OPTION}, which gets {asked.own_config} merged with the preset."
            return _obeys(merged, reader, casts=casts)
        why = f"its arguments name a configuration ({OPTION}) that cannot be read from here: the preset's is not used"
        return _refuses(f"{lead}, and {why}.", reader)
    if VARIABLE in script.texts:
        return _obeys(f"{how}{VARIABLE}.", reader, casts=casts)
    own = _own_keyword(call)
    if own:
        return _refuses(
            f"{lead} with a {own} of its own: the preset's strategy does not change that.", reader
        )
    options = _deepspeed_options(script)
    if options:
        return _obeys(f"{how}{OPTION}, which distui adds to its arguments.", reader, options, casts)
    remedy = f"have it call deepspeed.add_config_arguments(parser), or read the file that {VARIABLE} names"
    return _refuses(f"{lead} and takes no configuration from outside: {remedy}.", reader)


def _own_keyword(call: ScriptCall) -> str:
    """Return the keyword that passes a configuration other than the option's value, or ""."""
    given = call.keyword("config", "config_params")
    if given is None or given.arg is None:
        return ""
    is_option = isinstance(given.value, ast.Attribute) and given.value.attr == OPTION[2:]
    return "" if is_option else given.arg


_CASTS = frozenset({"bfloat16", "float16", "half", "autocast"})


def own_config(source: str | bytes | None, args: Sequence[str]) -> str:
    """Return the DeepSpeed configuration that a script would read without distui, or "". Never raises.

    It is the file in its arguments, or the default of its option.
    """
    at = option_at(args)
    if at is not None:
        return args[at].partition("=")[2] if "=" in args[at] else next(iter(args[at + 1 : at + 2]), "")
    try:
        script = parse(source or "")
    except Unreadable:
        return ""
    for option in script.options:
        if OPTION in option.names and isinstance(option.default, ast.Constant):
            usual = option.default.value
            return usual if isinstance(usual, str) else ""
    return ""


def _deepspeed_options(script: Script) -> tuple[str, ...]:
    """Return the options through which the script takes a configuration."""
    if script.find("deepspeed.add_config_arguments") is not None:
        return ("--deepspeed", OPTION)
    for call in script.calls:
        if call.last == "add_argument" and call.first_text() == OPTION:
            return (OPTION,)
    return ()
