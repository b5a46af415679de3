"""Accelerate: the environment for its scripts, from a mapping in the form of its YAML.

Names and values: accelerate 1.15 (`utils/launch.py`, `utils/dataclasses.py`, `commands/config/config_args.py`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from .. import model
from ..finding import PlanError
from ..model import Preset

IN_THE_FILE = (
    "zero_stage",
    "gradient_accumulation_steps",
    "gradient_clipping",
    "offload_optimizer_device",
    "offload_param_device",
    "offload_optimizer_nvme_path",
    "offload_param_nvme_path",
    "zero3_save_16bit_model",
)
"""Keys of `deepspeed_config` that Accelerate refuses together with a DeepSpeed file, which distui always writes."""

_MIXED = {"fp32": "no", "bf16": "bf16", "fp16": "fp16"}
_RENAMED = {"fsdp_transformer_layer_cls_to_wrap": "FSDP_TRANSFORMER_CLS_TO_WRAP"}
_TO_PARALLEL = "parallelism_config_"


def config(
    preset: Preset, world: int, backend: str, deepspeed_file: str, *, own_precision: bool = False
) -> dict[str, Any]:
    """Return the keys of accelerate's YAML that decide how it trains, overridden by the table [accelerate].

    `world`: number of ranks. `deepspeed_file`: path of DeepSpeed's configuration. `own_precision`: the script decides
    the precision. Raises PlanError.
    """
    kind = preset.strategy.kind
    made: dict[str, Any] = {
        "distributed_type": _type(kind, world, backend),
        "mixed_precision": "no" if own_precision else _MIXED[preset.precision.param],
        "use_cpu": backend == "gloo",
    }
    if made["distributed_type"] == "FSDP":
        made["fsdp_config"] = _fsdp(preset)
        if kind == "fsdp2" and preset.mesh.dp_replicate > 1:
            made["parallelism_config"] = _hybrid(preset, world)
    if kind == "deepspeed":
        made["deepspeed_config"] = _deepspeed(preset, deepspeed_file)
    if preset.strategy.compile:
        made["dynamo_config"] = {"dynamo_backend": "INDUCTOR", "dynamo_use_regional_compilation": True}
    merged = model.merged(made, dict(preset.accelerate))
    assert isinstance(merged, Mapping)
    return dict(merged)


def _type(kind: str, world: int, backend: str) -> str:
    """Return distributed_type.

    On CPU it is MULTI_GPU, because `accelerate launch` starts several ranks for few other types.
    """
    if kind == "deepspeed":
        return "DEEPSPEED"
    if kind in ("fsdp1", "fsdp2") and backend != "gloo":
        return "FSDP"
    return "MULTI_GPU" if world > 1 else "NO"


def _fsdp(preset: Preset) -> dict[str, Any]:
    strategy = preset.strategy
    made: dict[str, Any] = {
        "fsdp_version": 2 if strategy.kind == "fsdp2" else 1,
        "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "fsdp_offload_params": strategy.cpu_offload,
        "fsdp_cpu_ram_efficient_loading": True,
        # `accelerate launch` requires it with efficient loading, although FSDP2 does not need it.
        "fsdp_sync_module_states": True,
    }
    if strategy.wrap:
        made["fsdp_transformer_layer_cls_to_wrap"] = ",".join(strategy.wrap)
    if strategy.activation_checkpointing:
        made["fsdp_activation_checkpointing"] = True
    if strategy.kind == "fsdp2":
        return {**made, "fsdp_reshard_after_forward": bool(strategy.reshard_after_forward)}
    return {
        **made,
        "fsdp_sharding_strategy": strategy.sharding,
        "fsdp_backward_prefetch": "BACKWARD_PRE",
        "fsdp_use_orig_params": True,
    }


def _hybrid(preset: Preset, world: int) -> dict[str, Any]:
    mesh = preset.mesh
    shard = world // math.prod((mesh.pp, mesh.dp_replicate, mesh.cp, mesh.tp))
    return {f"{_TO_PARALLEL}dp_replicate_size": mesh.dp_replicate, f"{_TO_PARALLEL}dp_shard_size": shard}


def _deepspeed(preset: Preset, path: str) -> dict[str, Any]:
    """Return the deepspeed_config. Raises PlanError for keys that Accelerate would refuse."""
    own = preset.accelerate.get("deepspeed_config")
    for key in IN_THE_FILE:
        if isinstance(own, Mapping) and key in own:
            raise PlanError(
                f"accelerate.deepspeed_config.{key} conflicts with the file that distui writes for DeepSpeed: "
                "set it in [strategy], [batch] or [deepspeed]"
            )
    return {
        "deepspeed_config_file": path,
        "zero3_init_flag": preset.strategy.stage == 3,
    }


def environment(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the variables that `accelerate launch` would set per rank, for scripts under another launcher."""
    env = {"ACCELERATE_MIXED_PRECISION": str(config.get("mixed_precision") or "no")}
    kind = config.get("distributed_type")
    # Without it, Accelerate on CPU takes each rank for a separate world. With it, Accelerate ignores DeepSpeed.
    if config.get("use_cpu") and kind != "DEEPSPEED":
        env["ACCELERATE_USE_CPU"] = "true"
    if config.get("debug") is True:
        env["ACCELERATE_DEBUG_MODE"] = "true"
    if config.get("enable_cpu_affinity") is True:
        env["ACCELERATE_CPU_AFFINITY"] = "1"
    for key, value in _table(config, "dynamo_config"):
        env[f"ACCELERATE_{key if key.startswith('dynamo_') else f'dynamo_{key}'}".upper()] = _text(value)
    if kind == "FSDP":
        env |= {**_fsdp_env(config), **_parallelism(config)}
    if kind == "DEEPSPEED":
        env |= _deepspeed_env(config)
    return env


def _fsdp_env(config: Mapping[str, Any]) -> dict[str, str]:
    env = {"ACCELERATE_USE_FSDP": "true"}
    for key, value in _table(config, "fsdp_config"):
        key = key if key.startswith("fsdp_") else f"fsdp_{key}"
        env[_RENAMED.get(key, key.upper())] = _text(value)
    return env


def _parallelism(config: Mapping[str, Any]) -> dict[str, str]:
    env = {key.upper(): _text(value) for key, value in _table(config, "parallelism_config")}
    return {"ACCELERATE_USE_PARALLELISM_CONFIG": "true", **env} if env else {}


def _deepspeed_env(config: Mapping[str, Any]) -> dict[str, str]:
    named = {
        "deepspeed_config_file": "ACCELERATE_DEEPSPEED_CONFIG_FILE",
        "zero3_init_flag": "ACCELERATE_DEEPSPEED_ZERO3_INIT",
        "deepspeed_moe_layer_cls_names": "ACCELERATE_DEEPSPEED_MOE_LAYER_CLS_NAMES",
    }
    table = dict(_table(config, "deepspeed_config"))
    return {
        "ACCELERATE_USE_DEEPSPEED": "true",
        **{named[key]: _text(value) for key, value in table.items() if key in named},
    }


def _table(config: Mapping[str, Any], name: str) -> list[tuple[str, Any]]:
    table = config.get(name)
    if not isinstance(table, Mapping):
        return []
    return [(key, value) for key, value in table.items() if value is not None]


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
