"""accelerate's YAML as a preset. What the fields cannot say stays in [accelerate], key by key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import PresetError
from .values import Imported, table_of, truth, whole

KINDS = {"NO": "single", "FSDP": "fsdp1", "DEEPSPEED": "deepspeed"}
"""distributed_type → kind of strategy; MULTI_… is ddp."""
SHARDINGS = ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2")
"""By their numbers, too, from 1."""
PLACED = ("machine_rank", "main_process_ip", "main_process_port")
"""Keys that are the nodes' own: distui knows them anew at each launch."""


def imported(document: Mapping[str, Any], source: str) -> Imported:
    """The preset of accelerate's YAML. Raises PresetError."""
    found, rest = Imported(), dict(document)
    kind = _kind(rest, source)
    found.put("strategy.kind", kind)
    _precision(rest, found)
    _machines(rest, found, kind)
    if kind in ("fsdp1", "fsdp2"):
        rest["fsdp_config"] = _fsdp(table_of(rest, "fsdp_config"), found, kind)
    if kind == "deepspeed":
        rest["deepspeed_config"] = _deepspeed(table_of(rest, "deepspeed_config"), found)
    replicas = whole(table_of(rest, "parallelism_config").get("parallelism_config_dp_replicate_size"))
    if kind == "fsdp2" and replicas is not None and replicas > 1:
        found.put("mesh.dp_replicate", replicas)
    gpus = rest.get("gpu_ids")
    if gpus not in (None, "all"):
        found.notes.append(
            f"gpu_ids {gpus} acts under `accelerate launch` alone: --env CUDA_VISIBLE_DEVICES={gpus} elsewhere."
        )
    found.keep("accelerate", rest)
    return found


def _kind(rest: dict[str, Any], source: str) -> str:
    """Raises PresetError."""
    place = rest.pop("compute_environment", "LOCAL_MACHINE")
    if place != "LOCAL_MACHINE":
        raise PresetError(f"{source}: compute_environment is {place}: only LOCAL_MACHINE can be a preset.")
    said = str(rest.pop("distributed_type", ""))
    if said in KINDS or said.startswith("MULTI_"):
        kind = KINDS.get(said, "ddp")
        version = whole(table_of(rest, "fsdp_config").get("fsdp_version"))
        return "fsdp2" if kind == "fsdp1" and version == 2 else kind
    raise PresetError(
        f"{source}: distributed_type is {said or 'missing'}: one of NO, MULTI_GPU, MULTI_CPU, FSDP and DEEPSPEED "
        "was expected."
    )


def _precision(rest: dict[str, Any], found: Imported) -> None:
    """Accelerate sums gradients in the format in which it computes."""
    said = str(rest.get("mixed_precision") or "no")
    param = {"no": "fp32", "False": "fp32", "bf16": "bf16", "fp16": "fp16"}.get(said)
    if param is not None:
        rest.pop("mixed_precision", None)
        if said == "fp16" or truth(rest.get("fp16")):
            param = "fp16"
        rest.pop("fp16", None)
    found.put("precision.param", param or "bf16")
    found.put("precision.reduce", param or "bf16")


def _machines(rest: dict[str, Any], found: Imported, kind: str) -> None:
    nodes = whole(rest.pop("num_machines", 1)) or 1
    total = whole(rest.pop("num_processes", None))
    found.put("topology.nnodes", nodes)
    if kind != "single" and total is not None and total > 0:
        found.put("topology.nproc_per_node", max(1, total // nodes))
        if nodes > 1:
            found.notes.append(
                f"num_processes {total} is the total of {nodes} machines: {total // nodes} ranks on each."
            )
    elif kind == "single":
        found.put("topology.nproc_per_node", 1)
    for key in PLACED:
        if rest.pop(key, None) not in (None, 0):
            found.notes.append(f"{key} is left out: it is known anew at each launch.")
    if truth(rest.get("use_cpu")) is not True:
        rest.pop("use_cpu", None)


def _fsdp(table: dict[str, Any], found: Imported, kind: str) -> dict[str, Any]:
    """Where the file is silent, what `accelerate launch` takes then, which the fields alone would not mean."""
    table.pop("fsdp_version", None)
    offload = truth(table.pop("fsdp_offload_params", False))
    found.put("strategy.cpu_offload", bool(offload))
    classes = table.pop("fsdp_transformer_layer_cls_to_wrap", None)
    if classes:
        names = classes if isinstance(classes, list) else str(classes).split(",")
        found.put("strategy.wrap", [str(name).strip() for name in names if str(name).strip()])
    rest = {"fsdp_auto_wrap_policy": "NO_WRAP", **table}
    if kind == "fsdp2":
        said = rest.pop("fsdp_reshard_after_forward", True)
        known = truth(said)
        found.put("strategy.reshard_after_forward", True if known is None else known)
        return rest
    said = rest.pop("fsdp_sharding_strategy", None) or "FULL_SHARD"
    number = whole(said)
    known = number is not None and 1 <= number <= len(SHARDINGS)
    found.put("strategy.sharding", SHARDINGS[number - 1] if known and number else str(said))
    return {"fsdp_backward_prefetch": "NO_PREFETCH", **rest}


def _deepspeed(table: dict[str, Any], found: Imported) -> dict[str, Any]:
    """The fields say what Accelerate would have made of its own keys."""
    if "deepspeed_config_file" in table:
        found.notes.append(
            f"Its DeepSpeed configuration stays the file {table['deepspeed_config_file']}: import that one, too, "
            "to change it by fields."
        )
        return table
    stage = whole(table.pop("zero_stage", 2))
    found.put("strategy.stage", 2 if stage is None else stage)
    paths = []
    for name in ("optimizer", "param"):
        paths.append(table.pop(f"offload_{name}_nvme_path", None))
        found.put(f"strategy.offload_{name}", str(table.pop(f"offload_{name}_device", None) or "none"))
    path = next((str(one) for one in paths if one and one != "none"), None)
    if path is not None:
        found.put("strategy.nvme_path", path)
    found.put("batch.accumulation", whole(table.pop("gradient_accumulation_steps", None)))
    clipping = table.pop("gradient_clipping", None)
    found.keep("deepspeed", {"gradient_clipping": "auto" if clipping is None else clipping})
    if truth(table.pop("zero3_save_16bit_model", False)):
        found.keep("deepspeed", {"zero_optimization": {"stage3_gather_16bit_weights_on_model_save": True}})
    return table
