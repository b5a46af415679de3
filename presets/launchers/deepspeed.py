"""DeepSpeed: its configuration from a preset, and how a script gets it.

Keys: DeepSpeed 0.19 (`deepspeed/runtime/config.py`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from .. import model
from ..finding import PlanError
from ..model import Preset, Strategy
from ..secrets import mask_text
from . import own_tables

CONFIG_FILE = "ds_config.json"
"""Name in the run directory."""

VARIABLE = "DISTUI_DEEPSPEED_CONFIG"
"""Variable with the configuration's path, for a script that reads it."""
OPTION = "--deepspeed_config"
"""Command-line option for the configuration of a script."""

Reader = Literal["deepspeed", "accelerate", "trainer"]
"""Program that reads the configuration. The latter two replace "auto"."""


def config(preset: Preset, reader: Reader, own: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return DeepSpeed's configuration: the fields' values, overridden by the table [deepspeed]. Raises PlanError.

    `own`: the script's configuration, which the preset's values override.
    """
    made: dict[str, Any] = {
        **_batch(preset, reader),
        **_precision(preset, reader),
        "zero_optimization": _zero(preset.strategy),
        "zero_allow_untested_optimizer": True,
    }
    if reader == "deepspeed" and preset.strategy.offload_optimizer == "cpu":
        made["zero_force_ds_cpu_optimizer"] = False
    is_batch_open = preset.batch.micro is None and preset.batch.accumulation == 1
    own_tables.check(
        "deepspeed", preset.deepspeed, made, model.without(_FIELDS, BATCH if is_batch_open else ())
    )
    made = made if own is None else _over(own, made, preset)
    merged = model.merged(made, dict(preset.deepspeed))
    assert isinstance(merged, Mapping)
    return dict(merged)


def file(preset: Preset) -> dict[str, Any]:
    """Return DeepSpeed's configuration for use without distui. Raises PlanError if the strategy is another one.

    Batch sizes that the preset does not set are "auto", which Accelerate and the Trainer replace.
    """
    if preset.strategy.kind != "deepspeed":
        raise PlanError(
            f"strategy {preset.strategy.kind} is not DeepSpeed's: take ds-zero2 or another preset of DeepSpeed"
        )
    usual = {
        "bf16": {"enabled": False},
        "fp16": {"enabled": False},
        "communication_data_type": preset.precision.reduce,
    }
    made = model.merged(usual, config(preset, "deepspeed" if preset.batch.micro else "accelerate"))
    assert isinstance(made, Mapping)
    return dict(made)


def text(made: Mapping[str, Any]) -> str:
    return json.dumps(made, indent=2) + "\n"


def parsed(source: str | bytes | None) -> dict[str, Any] | None:
    """Parse a script's own configuration. Return None if it is missing or no JSON object."""
    try:
        value = None if source is None else json.loads(source)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


BATCH = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
FORMATS = ("bf16", "fp16", "amp")
_FIELDS = {
    "zero_optimization.stage": "strategy.stage",
    "zero_optimization.offload_optimizer.device": "strategy.offload_optimizer",
    "zero_optimization.offload_optimizer.nvme_path": "strategy.nvme_path",
    "zero_optimization.offload_param.device": "strategy.offload_param",
    "bf16.enabled": "precision.param",
    "fp16.enabled": "precision.param",
    "communication_data_type": "precision.reduce",
    "train_micro_batch_size_per_gpu": "batch.micro",
    "gradient_accumulation_steps": "batch.accumulation",
}
"""Key that a field decides → the field."""
OFFLOADS = ("offload_optimizer", "offload_param", "cpu_offload", "cpu_offload_params")
"""Keys of `zero_optimization`. The last two are old names."""


def _over(own: Mapping[str, Any], made: Mapping[str, Any], preset: Preset) -> dict[str, Any]:
    """Return the script's configuration with strategy, precision and batch of the preset."""
    below = {"bf16" if key == "bfloat16" else key: value for key, value in own.items()}
    below |= _disabled_formats(below, made)
    above = dict(made)
    if preset.batch.micro is not None or preset.batch.accumulation > 1:
        below = model.without(below, BATCH)
    elif below.keys() & set(BATCH):
        above = model.without(above, BATCH)
    for name in ("zero_allow_untested_optimizer", "zero_force_ds_cpu_optimizer"):
        above[name] = below.get(name, above.get(name))
    zero = below.get("zero_optimization")
    if isinstance(zero, Mapping):
        below["zero_optimization"] = model.without(zero, set(OFFLOADS) - made["zero_optimization"].keys())
    merged = model.merged(below, {key: value for key, value in above.items() if value is not None})
    assert isinstance(merged, Mapping)
    return dict(merged)


def _disabled_formats(own: Mapping[str, Any], made: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tables of the script's formats, disabled, unless the preset has the same format."""
    others = [name for name in FORMATS if name not in made and isinstance(own.get(name), Mapping)]
    return {name: {**own[name], "enabled": False} for name in others}


def merge_notes(path: str, own: Mapping[str, Any], made: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a sentence on the merge of a script's configuration `path`, and a second one if it holds a secret."""
    kept = [key for key, value in own.items() if made.get(key) == value]
    changed = [f"{name} {before} → {after}" for name, before, after in _changes(own, made)]
    added = [key for key in made if key not in own]
    parts = (("kept", kept), ("changed", changed), ("added", added))
    shown = "; ".join(f"{what} {', '.join(names)}" for what, names in parts if names)
    note = f"DeepSpeed gets {path} with strategy and precision of the preset in it: {shown}."
    if mask_text(text(made)) == text(made):
        return (note,)
    secret = f"{path} holds a secret: the copy in the run directory has it, too, and on other nodes it is masked."
    return note, f"{secret} Pass it in a variable (--env)."


def _changes(own: object, made: object, path: str = "") -> list[tuple[str, str, str]]:
    """Return dotted path, old and new value of each difference from `own`."""
    if isinstance(own, Mapping) and isinstance(made, Mapping):
        inner = ((f"{path}.{key}".lstrip("."), value, made.get(key)) for key, value in own.items())
        return [change for name, value, after in inner for change in _changes(value, after, name)]
    if own == made:
        return []
    return [(path, _brief(own), "left out" if made is None else _brief(made))]


def _brief(value: object) -> str:
    shown = json.dumps(value)
    return shown if len(shown) <= 40 else f"{shown[:39]}…"


def _batch(preset: Preset, reader: Reader) -> dict[str, Any]:
    """Return the batch keys. DeepSpeed requires numbers; Accelerate and the Trainer take them from the data loader."""
    steps = preset.batch.accumulation
    if "train_batch_size" in preset.deepspeed and preset.batch.micro is None and steps == 1:
        return {}  # [deepspeed] has the other values, or DeepSpeed computes them
    if reader == "deepspeed":
        return {
            "train_micro_batch_size_per_gpu": preset.batch.micro or 1,
            "gradient_accumulation_steps": steps,
        }
    made: dict[str, Any] = {
        "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": steps if steps > 1 else "auto",
    }
    # Accelerate replaces "auto" with 1.0, even for scripts that never clip. The Trainer uses its max_grad_norm.
    return {**made, "gradient_clipping": "auto"} if reader == "trainer" else made


def _precision(preset: Preset, reader: Reader) -> dict[str, Any]:
    param, reduce = preset.precision.param, preset.precision.reduce
    if reader == "trainer":  # it refuses a value that differs from its arguments
        return {name: {"enabled": "auto"} for name in ("bf16", "fp16")}
    made: dict[str, Any] = {}
    if param != "fp32":
        made[param] = {"enabled": True}
    if reduce != param:
        made["communication_data_type"] = reduce
    return made


def _zero(strategy: Strategy) -> dict[str, Any]:
    made: dict[str, Any] = {"stage": strategy.stage}
    for name, device in (
        ("offload_optimizer", strategy.offload_optimizer),
        ("offload_param", strategy.offload_param),
    ):
        if device == "none":
            continue
        _check_offload(name, device, strategy)
        made[name] = {"device": device}
        if device == "nvme":
            made[name]["nvme_path"] = strategy.nvme_path
    return made


LEAST_STAGE = {"offload_param": 3, "offload_optimizer": 1}
"""Lowest stage that supports each offload to host memory. A disk needs stage 3."""


def _check_offload(name: str, device: str, strategy: Strategy) -> None:
    """Raise PlanError if the stage or path does not allow this offload."""
    least = 3 if device == "nvme" else LEAST_STAGE[name]
    if strategy.stage < least:
        raise PlanError(
            f'strategy.{name} "{device}" needs strategy.stage {least}{"" if least == 3 else " or more"}, '
            f'not {strategy.stage}: raise the stage, or set {name} = "none"'
        )
    if device == "nvme" and not strategy.nvme_path.startswith("/"):
        raise PlanError(
            f'strategy.{name} "nvme" needs strategy.nvme_path, a folder on a local disk, from / on: '
            f"not {strategy.nvme_path!r}"
        )


def with_config(args: Sequence[str], path: str) -> tuple[str, ...] | None:
    """Return a script's arguments with another path of DeepSpeed's configuration, or None if they name none."""
    at = option_at(args)
    if at is None:
        return None
    words = (f"{OPTION}={path}",) if "=" in args[at] else (OPTION, path)
    return (*args[:at], *words, *args[at + (1 if "=" in args[at] else 2) :])


def option_at(args: Sequence[str]) -> int | None:
    """Return the index of OPTION in a script's arguments, or None."""
    return next((at for at, word in enumerate(args) if word.partition("=")[0] == OPTION), None)


def environment(backend: str, path: str) -> dict[str, str]:
    """Return the variables of every rank. By default DeepSpeed assumes that a machine has GPUs."""
    return {VARIABLE: path, **({"DS_ACCELERATOR": "cpu"} if backend == "gloo" else {})}
