"""Accelerate: its YAML from a preset, and the environment for its scripts from a mapping in the form of that YAML.

Names and values: accelerate 1.15 (`utils/launch.py`, `utils/dataclasses.py`, `commands/config/config_args.py`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from .. import model
from ..finding import PlanError
from ..model import Preset
from ..text_formats import whole
from . import own_tables

DEEPSPEED_FILE = "ds_config.json"
"""Path of DeepSpeed's configuration in a YAML that is used without distui."""
IN_THE_FILE = (
    "deepspeed_config_file",
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

MIXED = {"fp32": "no", "bf16": "bf16", "fp16": "fp16"}
MEGATRON = "MEGATRON_LM"
"""A distributed_type without a kind of strategy: only the table [accelerate] can set it."""
_RENAMED = {"fsdp_transformer_layer_cls_to_wrap": "FSDP_TRANSFORMER_CLS_TO_WRAP"}
_TO_PARALLEL = "parallelism_config_"
_TO_MEGATRON = "megatron_lm_"


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
        "mixed_precision": "no" if own_precision else MIXED[preset.precision.param],
        "use_cpu": backend == "gloo",
    }
    if made["distributed_type"] == "FSDP":
        made["fsdp_config"] = _fsdp(preset)
        if sizes := _sizes(preset, world):
            made["parallelism_config"] = sizes
    if kind == "deepspeed":
        made["deepspeed_config"] = _deepspeed(preset, deepspeed_file)
    if preset.strategy.compile:
        made["dynamo_config"] = {"dynamo_backend": "INDUCTOR", "dynamo_use_regional_compilation": True}
    _check_own(preset, made, own_precision)
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
    made["fsdp_activation_checkpointing"] = strategy.activation_checkpointing
    if strategy.kind == "fsdp2":
        return {**made, "fsdp_reshard_after_forward": bool(strategy.reshard_after_forward)}
    return {
        **made,
        "fsdp_sharding_strategy": strategy.sharding,
        "fsdp_backward_prefetch": "BACKWARD_PRE",
        "fsdp_use_orig_params": True,
    }


OF_MESH = ("dp_replicate", "cp", "tp")
"""Dimensions of the mesh that Accelerate's `parallelism_config` has, under FSDP 2."""


def size_key(dimension: str) -> str:
    """Return the key of `parallelism_config` for the size of a dimension."""
    return f"{_TO_PARALLEL}{dimension}_size"


def _sizes(preset: Preset, world: int) -> dict[str, int]:
    """Return the table `parallelism_config`, or {} if FSDP shards over all ranks."""
    sizes = {name: getattr(preset.mesh, name) for name in OF_MESH}
    if preset.strategy.kind != "fsdp2" or max(sizes.values()) == 1:
        return {}
    sizes["dp_shard"] = world // (math.prod(sizes.values()) * preset.mesh.pp)
    return {size_key(name): size for name, size in sizes.items()}


def sequence_ranks(preset: Preset) -> int:
    """Return the ranks that share a sequence by DeepSpeed's sequence parallelism, which the mesh does not have."""
    own = preset.accelerate.get("parallelism_config")
    return (whole(own.get(size_key("sp"))) or 1) if isinstance(own, Mapping) else 1


_FIELDS = {
    "mixed_precision": "precision.param",
    **{f"fsdp_config.fsdp_{key}": f"strategy.{field}" for key, field in (
        ("version", "kind"),
        ("offload_params", "cpu_offload"),
        ("activation_checkpointing", "activation_checkpointing"),
        ("reshard_after_forward", "reshard_after_forward"),
        ("sharding_strategy", "sharding"),
        ("transformer_layer_cls_to_wrap", "wrap"),
    )},
    **{f"parallelism_config.{size_key(name)}": f"mesh.{name}" for name in OF_MESH},
    f"parallelism_config.{size_key('dp_shard')}": "topology.nproc_per_node",
}  # fmt: skip
"""Key that a field decides → the field."""


def _check_own(preset: Preset, made: Mapping[str, Any], own_precision: bool) -> None:
    """Raise PlanError if the table [accelerate] contradicts a field."""
    usual = {size_key(name): 1 for name in ("cp", "tp")}
    if preset.strategy.kind == "fsdp2":
        usual[size_key("dp_replicate")] = 1
    sizes = {**usual, **made.get("parallelism_config", {})}
    has_other_format = preset.accelerate.get("mixed_precision") not in MIXED.values()
    skipped = ("mixed_precision",) if own_precision or has_other_format else ()
    own_tables.check(
        "accelerate",
        preset.accelerate,
        {**made, "parallelism_config": sizes},
        model.without(_FIELDS, skipped),
    )


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
    env |= _prefixed(config, "dynamo_config", "dynamo_", "ACCELERATE_")
    if config.get("mixed_precision") == "fp8":
        env |= _prefixed(config, "fp8_config", "fp8_", "ACCELERATE_")
    if kind == "FSDP":
        env |= _fsdp_env(config)
    if kind == "DEEPSPEED":
        env |= _deepspeed_env(config)
    if kind == MEGATRON:
        env["ACCELERATE_USE_MEGATRON_LM"] = "true"
        env |= _prefixed(config, "megatron_lm_config", _TO_MEGATRON)
    return env | _parallelism(config)


def _prefixed(config: Mapping[str, Any], table: str, prefix: str, before: str = "") -> dict[str, str]:
    """Return the variables of a table: `before`, then the key with its prefix, in capitals."""
    return {
        f"{before}{prefix}{key.removeprefix(prefix)}".upper(): _text(value)
        for key, value in _table(config, table)
    }


def _fsdp_env(config: Mapping[str, Any]) -> dict[str, str]:
    env = {"ACCELERATE_USE_FSDP": "true"}
    for key, value in _table(config, "fsdp_config"):
        key = key if key.startswith("fsdp_") else f"fsdp_{key}"
        env[_RENAMED.get(key, key.upper())] = _text(value)
    return env


def _parallelism(config: Mapping[str, Any]) -> dict[str, str]:
    env = _prefixed(config, "parallelism_config", _TO_PARALLEL)
    has_size = any(name.endswith("_SIZE") for name in env)
    return {"ACCELERATE_USE_PARALLELISM_CONFIG": "true", **env} if has_size else {}


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


_DEGREES = {
    "tp_degree": "tensor_model_parallel_size",
    "pp_degree": "pipeline_model_parallel_size",
    "context_parallel_size": "context_parallel_size",
    "expert_model_parallel_size": "expert_model_parallel_size",
    "expert_tensor_parallel_size": "expert_tensor_parallel_size",
}
"""Key of `megatron_lm_config` without its prefix → Megatron-LM's own name."""


def megatron_words(preset: Preset) -> list[str]:
    """Return the sizes of `megatron_lm_config` as Megatron-LM's arguments, or [] without Megatron-LM."""
    if preset.accelerate.get("distributed_type") != MEGATRON:
        return []
    table = dict(_table(preset.accelerate, "megatron_lm_config"))
    return [
        f"--{_DEGREES[name]}={table[key]}"
        for key in table
        if (name := key.removeprefix(_TO_MEGATRON)) in _DEGREES
    ]


def file(preset: Preset) -> dict[str, Any]:
    """Return accelerate's YAML for use without distui. Raises PlanError if Accelerate has no such strategy."""
    _check_strategy(preset)
    world, on_cpu = _world(preset), runs_on_cpu(preset)
    made: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        **config(preset, world or 2, "nccl", DEEPSPEED_FILE),
        "use_cpu": on_cpu,
        "num_machines": preset.topology.nnodes,
        "machine_rank": 0,
        "gpu_ids": preset.env.get("CUDA_VISIBLE_DEVICES") or "all",
    }
    if world is not None:
        made["num_processes"] = world
    if on_cpu and made["distributed_type"] == "MULTI_GPU":
        made["distributed_type"] = "MULTI_CPU"
    return _with_deepspeed(made, preset) if made["distributed_type"] == "DEEPSPEED" else made


def runs_on_cpu(preset: Preset) -> bool:
    """Return True if the preset starts CPU ranks also on machines with GPUs."""
    return preset.topology.nproc_per_node == "cpu" or preset.env.get("CUDA_VISIBLE_DEVICES") == ""


def _world(preset: Preset) -> int | None:
    """Return the number of ranks, or None if each machine decides it."""
    if preset.strategy.kind == "single":
        return 1
    nproc = preset.topology.nproc_per_node
    return nproc * preset.topology.nnodes if isinstance(nproc, int) else None


def _check_strategy(preset: Preset) -> None:
    """Raise PlanError for a strategy that Accelerate does not have."""
    kind, mesh = preset.strategy.kind, preset.mesh
    if kind == "zero1":
        raise PlanError("Accelerate has no ZeroRedundancyOptimizer: take ds-zero1")
    names = ("pp", "ep") if kind == "fsdp2" else ("pp", "ep", "cp", "tp")
    for name in names:
        if getattr(mesh, name) > 1:
            raise PlanError(f"Accelerate has no mesh.{name} under strategy {kind}: add --set mesh.{name}=1")
    if kind == "fsdp2" and max(getattr(mesh, name) for name in OF_MESH) > 1 and _world(preset) is None:
        raise PlanError(
            "Accelerate's file with a mesh needs the number of ranks: add --set topology.nproc_per_node=N"
        )


_GATHER = "stage3_gather_16bit_weights_on_model_save"


def _with_deepspeed(made: Mapping[str, Any], preset: Preset) -> dict[str, Any]:
    """Return the YAML with DeepSpeed's settings, or with the path of a file if they need one."""
    own = preset.accelerate.get("deepspeed_config")
    if not _is_short(preset):
        # Accelerate refuses a precision of the YAML together with DeepSpeed's file.
        return model.without(made, ("mixed_precision",))
    short = _short_form(preset)
    return {**made, "deepspeed_config": {**short, **own} if isinstance(own, Mapping) else short}


def _is_short(preset: Preset) -> bool:
    """Return True if accelerate's YAML has a key for each of DeepSpeed's settings."""
    zero = preset.deepspeed.get("zero_optimization", {})
    return (
        preset.deepspeed.keys() <= {"gradient_clipping", "zero_optimization"}
        and isinstance(zero, Mapping)
        and zero.keys() <= {_GATHER}
        and preset.batch.micro is None
        and preset.precision.reduce == preset.precision.param
    )


def _short_form(preset: Preset) -> dict[str, Any]:
    strategy, zero = preset.strategy, preset.deepspeed.get("zero_optimization", {})
    made: dict[str, Any] = {
        "zero_stage": strategy.stage,
        "gradient_accumulation_steps": preset.batch.accumulation,
        "offload_optimizer_device": strategy.offload_optimizer,
        "offload_param_device": strategy.offload_param,
        "zero3_init_flag": strategy.stage == 3,
        "zero3_save_16bit_model": isinstance(zero, Mapping) and zero.get(_GATHER) is True,
    }
    for name in ("offload_optimizer", "offload_param"):
        if getattr(strategy, name) == "nvme":
            made[f"{name}_nvme_path"] = strategy.nvme_path
    clipping = preset.deepspeed.get("gradient_clipping")
    return made if clipping in (None, "auto") else {**made, "gradient_clipping": clipping}
