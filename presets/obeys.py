"""Whether, and by what way, a script obeys a preset's strategy: a look at its syntax tree. Nothing is executed."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from .model import StrategyKind
from .obeys_names import PARALLELIZE, STEPS, Call, Script, framework, parse

__all__ = ["Asked", "Obeys", "look"]

NOTHING = "obeys nothing: the preset sets only flags and environment"

COPY = "parallelize.parallelize"
"""The one call that obeys, from a copy of the folder beside the script."""
COPIED_STEPS = "parallelize.forward_backward"

VARIABLE = "DISTUI_DEEPSPEED_CONFIG"
"""By which a DeepSpeed script may ask for the configuration itself (launchers.deepspeed.VARIABLE)."""
OPTION = "--deepspeed_config"
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
"""Arguments of TrainingArguments that do so; also options, where the script reads its own from the command line."""
NO_WAY = {"pp": "mesh.pp", "ep": "mesh.ep", "cp": "mesh.cp", "tp": "mesh.tp"}
"""Dimensions of a mesh that Accelerate does not make of a model by itself."""

Reader = Literal["parallelize", "accelerate", "trainer", "deepspeed"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """What the preset wants of the script."""

    kind: StrategyKind = "ddp"
    backend: str = "nccl"
    mesh: Sequence[str] = ()
    """Names of the dimensions that there are."""
    args: Sequence[str] = ()
    """The script's own arguments."""
    accumulation: int = 1
    """Backward passes before each optimizer step."""


@dataclass(frozen=True, slots=True)
class Obeys:
    """What the look found."""

    how: str | None
    """How the script obeys the preset's strategy; None when it does not."""
    why: str
    """One sentence with the reason."""
    reader: Reader | None = None
    """By what it would obey some preset, if not this one; None: by nothing that distui knows."""
    options: tuple[str, ...] = ()
    """Options of the script that are to be given, the last with the path of DeepSpeed's configuration behind it."""


USUAL = Asked()


def look(script: str | None, source: str | bytes | None, asked: Asked = USUAL) -> Obeys:
    """Look at the text (or bytes) `source` of `script`. Never raises."""
    name = script or "the command"
    if source is None:
        return Obeys(None, f"{name} could not be read as a script, so what it obeys is unknown.")
    try:
        found = parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return Obeys(None, f"{name} {_unreadable(error, source)}, so what it obeys is unknown.")
    ours = found.find(PARALLELIZE, COPY)
    if ours is not None:
        return _parallelize(name, ours, asked, found.find(STEPS, COPIED_STEPS) is not None)
    for call in found.calls:
        what = framework(call.full)
        if what:
            return _theirs(f"{name} {what} in line {call.line}", found, call, asked)
    return Obeys(None, f"{name} {NOTHING}.")


def _parallelize(name: str, call: Call, asked: Asked, steps: bool) -> Obeys:
    """`steps`: whether it leaves forward and backward to distui, too."""
    said = f"{name} calls parallelize() in line {call.line}"
    if asked.kind == "deepspeed":
        return Obeys(None, f"{said}, which is not DeepSpeed: take fsdp2, or zero1.", "parallelize")
    if "pp" in asked.mesh and not steps:
        return Obeys(None, f"{said} and never forward_backward(), by which a pipeline runs.", "parallelize")
    doubt = "" if call.full == PARALLELIZE else ", if the parallelize beside it is distui's"
    but = ", but not batch.accumulation, which acts in forward_backward()" * (
        asked.accumulation > 1 and not steps
    )
    how = f"{said}: it obeys strategy and precision{doubt}{but}."
    return Obeys(how, how, "parallelize")


def _theirs(said: str, found: Script, call: Call, asked: Asked) -> Obeys:
    top, last = call.full.split(".", 1)[0], call.full.rpartition(".")[2]
    if top == "deepspeed":
        return _deepspeed(said, found, call, asked)
    if last == "Accelerator":
        return _accelerate(
            said, "accelerate", call.keyword(*CLAIMED), call.keyword("mixed_precision"), asked
        )
    if top in ("transformers", "trl"):
        return _trainer(said, found, asked)
    return Obeys(None, f"{said}: the preset's strategy does not change that.")


def _trainer(said: str, found: Script, asked: Asked) -> Obeys:
    """The Trainer's own settings stand where its arguments are made, or on the command line."""
    made = [call for call in found.calls if call.last.endswith(("TrainingArguments", "Config"))]
    claims = next(filter(None, (call.keyword(*TRAINER_CLAIMED) for call in made)), None)
    for word in asked.args:
        option = word.split("=", 1)[0]
        if option.removeprefix("--") in TRAINER_CLAIMED and option.startswith("--"):
            return Obeys(
                None, f"{said}, and its arguments say {option}: the preset's strategy does not change that."
            )
    precise = next(filter(None, (call.keyword("bf16", "fp16") for call in made)), None)
    return _accelerate(said, "trainer", claims, precise, asked)


def _accelerate(
    said: str, reader: Reader, claims: ast.keyword | None, precise: ast.keyword | None, asked: Asked
) -> Obeys:
    if claims is not None:
        where = f"{claims.arg} (line {claims.value.lineno})"
        return Obeys(
            None, f"{said} with its own {where}: the preset's strategy does not change that.", reader
        )
    why_not = _beyond_accelerate(asked)
    if why_not:
        return Obeys(None, f"{said}, {why_not}.", reader)
    how = f"{said}: it obeys strategy and precision through the environment."
    own = f"{said}: it obeys the strategy through the environment; the precision is its own "
    if precise is not None:
        how = f"{own}({precise.arg} in line {precise.value.lineno})."
    elif reader == "trainer" and asked.kind == "deepspeed":
        how = f"{own}(under DeepSpeed the Trainer takes bf16 and fp16 from its arguments alone)."
    return Obeys(how, how, reader)


def _beyond_accelerate(asked: Asked) -> str | None:
    """Why Accelerate cannot do what is asked; None when it can."""
    if asked.kind == "zero1":
        return (
            "which has no ZeroRedundancyOptimizer and trains as DDP: ds-zero1 divides its optimizer state"
        )
    if asked.kind in ("fsdp1", "fsdp2") and asked.backend == "gloo":
        return "which knows no FSDP on CPU and trains as DDP there"
    beyond = next((NO_WAY[name] for name in asked.mesh if name in NO_WAY), None)
    return f"which does not divide a model by {beyond}: call parallelize() for that" if beyond else None


def _deepspeed(said: str, found: Script, call: Call, asked: Asked) -> Obeys:
    if asked.kind != "deepspeed":
        return Obeys(
            None, f"{said}, which obeys strategy deepspeed alone: take ds-zero1, 2 or 3.", "deepspeed"
        )
    if any(word.split("=", 1)[0] == OPTION for word in asked.args):
        return Obeys(
            None,
            f"{said}, and its arguments name a configuration ({OPTION}): the preset's is not used.",
            "deepspeed",
        )
    how = f"{said}: it obeys strategy and precision through "
    if VARIABLE in found.texts:
        return Obeys(f"{how}{VARIABLE}.", f"{how}{VARIABLE}.", "deepspeed")
    given = call.keyword("config", "config_params")
    if given is not None and not (
        isinstance(given.value, ast.Attribute) and given.value.attr == OPTION[2:]
    ):
        return Obeys(
            None,
            f"{said} with a {given.arg} of its own: the preset's strategy does not change that.",
            "deepspeed",
        )
    options = _deepspeed_options(found)
    if not options:
        return Obeys(
            None,
            f"{said} and takes no configuration from outside: have it call deepspeed.add_config_arguments(parser), "
            f"or read the file that {VARIABLE} names.",
            "deepspeed",
        )
    how += f"{OPTION}, which distui adds to its arguments."
    return Obeys(how, how, "deepspeed", options)


def _deepspeed_options(found: Script) -> tuple[str, ...]:
    """By which options the script takes a configuration."""
    if found.find("deepspeed.add_config_arguments") is not None:
        return ("--deepspeed", OPTION)
    for call in found.calls:
        if call.last == "add_argument" and call.first_text() == OPTION:
            return (OPTION,)
    return ()


def _unreadable(error: Exception, source: str | bytes) -> str:
    zero = b"\0" in source if isinstance(source, bytes) else "\0" in source
    if zero:
        return "is not text"
    if isinstance(error, SyntaxError):
        if "print" in (error.msg or "") and "parentheses" in (error.msg or ""):
            return f"is Python 2 (line {error.lineno}: print without parentheses)"
        where = f" in line {error.lineno}" if error.lineno else ""
        return f"is not Python that can be read{where} ({error.msg})"
    return "is too deeply nested to be read"
