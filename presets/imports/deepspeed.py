"""DeepSpeed's configuration as a preset. What the fields cannot say stays in [deepspeed], key by key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import PresetError
from .values import Imported, table_of, truth, whole

BATCH = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
REDUCE = ("fp32", "bf16", "fp16")


def imported(document: Mapping[str, Any], source: str) -> Imported:
    """The preset of DeepSpeed's JSON. Raises PresetError."""
    found, rest = Imported(), dict(document)
    found.put("strategy.kind", "deepspeed")
    zero = rest.pop("zero_optimization", {})
    if zero is True or not isinstance(zero, Mapping):
        raise PresetError(f"{source}: zero_optimization is {zero!r}: a table with a stage was expected.")
    kept: dict[str, Any] = {**_batch(rest, found), **_precision(rest, found)}
    # Where the file is silent, DeepSpeed's own default, which the fields alone would not mean.
    rest.setdefault("zero_allow_untested_optimizer", False)
    left = _zero(dict(zero), found, rest)
    found.keep("deepspeed", {**kept, **rest, "zero_optimization": left})
    return found


def _zero(zero: dict[str, Any], found: Imported, rest: dict[str, Any]) -> dict[str, Any]:
    stage = whole(zero.pop("stage", 0))
    found.put("strategy.stage", 0 if stage is None else stage)
    for name in ("offload_optimizer", "offload_param"):
        part = table_of(zero, name)
        zero.pop(name, None)
        device = str(part.pop("device", None) or "none")
        if device == "none":
            continue
        found.put(f"strategy.{name}", device)
        if device == "nvme":
            found.put("strategy.nvme_path", part.pop("nvme_path", None))
        elif name == "offload_optimizer":
            rest.setdefault("zero_force_ds_cpu_optimizer", True)
        zero[name] = part
    return zero


def _batch(rest: dict[str, Any], found: Imported) -> dict[str, Any]:
    """A total without its parts, or beside them, is DeepSpeed's to work out; "auto" is what distui says by itself."""
    said = {name: rest.pop(name) for name in BATCH if name in rest}
    said = {name: value for name, value in said.items() if value != "auto"}
    if "train_batch_size" in said:
        return said
    found.put("batch.micro", whole(said.get("train_micro_batch_size_per_gpu")))
    found.put("batch.accumulation", whole(said.get("gradient_accumulation_steps")))
    return {}


def _precision(rest: dict[str, Any], found: Imported) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    param = "fp32"
    for name in ("bf16", "fp16"):
        table = table_of(rest, name)
        rest.pop(name, None)
        enabled = table.get("enabled")
        if truth(enabled) and not isinstance(enabled, str):
            param = name
            del table["enabled"]
        elif enabled is False and len(table) == 1:
            table = {}
        kept[name] = table
    found.put("precision.param", param)
    reduce = rest.get("communication_data_type")
    if reduce in REDUCE:
        del rest["communication_data_type"]
    found.put("precision.reduce", reduce if reduce in REDUCE else param)
    return {name: table for name, table in kept.items() if table}
