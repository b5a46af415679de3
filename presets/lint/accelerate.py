"""Rules about a configuration file of Hugging Face accelerate."""

from __future__ import annotations

from collections.abc import Iterator

from ..finding import Finding
from . import torchrun, words
from .launches import total_of_machines
from .nodes import Node, place
from .rules import found, once

PRECISIONS = ("no", "fp16", "bf16", "fp8")
TYPES = (
    *("NO", "MULTI_CPU", "MULTI_GPU", "MULTI_NPU", "MULTI_MLU", "MULTI_SDAA", "MULTI_MUSA", "MULTI_XPU"),
    *("MULTI_HPU", "MULTI_NEURON", "DEEPSPEED", "FSDP", "TP", "XLA", "TPU", "MEGATRON_LM"),
)
SHARDINGS = ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2")
"""Also by their numbers, from 1."""
WRAPS = ("TRANSFORMER_BASED_WRAP", "SIZE_BASED_WRAP", "NO_WRAP")
STATE_DICTS = ("FULL_STATE_DICT", "LOCAL_STATE_DICT", "SHARDED_STATE_DICT")
PREFETCHES = ("BACKWARD_PRE", "BACKWARD_POST", "NO_PREFETCH")
KEYS = (
    *("compute_environment", "distributed_type", "mixed_precision", "use_cpu", "debug", "num_processes"),
    *("machine_rank", "num_machines", "gpu_ids", "main_process_ip", "main_process_port", "rdzv_backend"),
    *("same_network", "main_training_function", "enable_cpu_affinity", "fp8_config", "deepspeed_config"),
    *("fsdp_config", "tp_config", "megatron_lm_config", "ipex_config", "mpirun_config", "downcast_bf16"),
    *("tpu_name", "tpu_zone", "tpu_use_cluster", "tpu_use_sudo", "tpu_env", "tpu_vm", "command_file"),
    *("commands", "dynamo_config", "fp16", "dynamo_backend", "parallelism_config"),
)
"""Of the releases up to 1.15; `fp16` and `dynamo_backend` are old, and taken."""
OLD_KEYS = ("fp16", "dynamo_backend", "ipex_config", "tp_config")
"""Of KEYS, those that the newest release does not have itself."""
FSDP_KEYS = (
    *("fsdp_version", "fsdp_sharding_strategy", "fsdp_reshard_after_forward", "fsdp_offload_params"),
    *("fsdp_auto_wrap_policy", "fsdp_transformer_layer_cls_to_wrap", "fsdp_min_num_params"),
    *("fsdp_backward_prefetch", "fsdp_forward_prefetch", "fsdp_state_dict_type", "fsdp_sync_module_states"),
    *("fsdp_use_orig_params", "fsdp_cpu_ram_efficient_loading", "fsdp_activation_checkpointing"),
    *("fsdp_limit_all_gathers", "fsdp_backward_prefetch_policy", "fsdp_activation_checkpointing_offload"),
)


def check(document: Node, file: str, gpus: int | None = None) -> list[Finding]:
    """Everything about one file. `gpus`: of each machine, where that is known."""
    if document.text("compute_environment") == "AMAZON_SAGEMAKER":
        return []
    return once(
        [
            *_names(document, file),
            *_machines(document, file, gpus),
            *_fsdp(document, file),
            *_deepspeed(document, file),
        ]
    )


def _names(document: Node, file: str) -> Iterator[Finding]:
    yield from words.keys(file, document, KEYS, "accelerate", refuses=True)
    yield from words.choice(
        file, document.mapping.get("mixed_precision"), "mixed_precision", PRECISIONS, "accelerate"
    )
    yield from words.choice(
        file, document.mapping.get("distributed_type"), "distributed_type", TYPES, "accelerate"
    )
    fsdp = document.get("fsdp_config")
    if fsdp is None:
        return
    yield from words.keys(file, fsdp, FSDP_KEYS, "accelerate's fsdp_config", refuses=False)
    for key, known in (
        ("fsdp_auto_wrap_policy", WRAPS),
        ("fsdp_state_dict_type", STATE_DICTS),
        ("fsdp_backward_prefetch", PREFETCHES),
    ):
        yield from words.choice(file, fsdp.get(key), key, known, "accelerate")
    sharding = fsdp.get("fsdp_sharding_strategy")
    if fsdp.number("fsdp_sharding_strategy") not in range(1, 6):
        yield from words.choice(file, sharding, "fsdp_sharding_strategy", SHARDINGS, "accelerate")


def _machines(document: Node, file: str, gpus: int | None) -> Iterator[Finding]:
    total, machines = document.number("num_processes"), document.number("num_machines") or 1
    port = document.get("main_process_port")
    if machines == 1:
        if port is not None and str(port.value) == torchrun.DEFAULT_PORT:
            text = f"Port {port.value} is everybody's default: a second job on the machine does not start."
            yield found(
                "L22",
                place(file, port, "main_process_port"),
                text,
                value=f"main_process_port: {port.value}",
            )
        return
    if total is not None and total > 0:
        where = place(file, document.get("num_processes"), "num_processes")
        yield from total_of_machines(total, machines, gpus, where)
    needed = ["main_process_ip", "main_process_port"]
    if document.text("rdzv_backend") in ("", "static"):
        needed.append("machine_rank")
    missing = [key for key in needed if document.get(key) is None]
    where = place(file, document.get("num_machines"), "num_machines")
    if missing:
        text = f"{machines} machines, and no {' and no '.join(missing)}: each takes itself for the first."
        yield found("L29", where, text, value=f"num_machines: {machines}")
    address = document.get("main_process_ip")
    if (
        address is not None
        and document.get("mpirun_config") is None
        and torchrun.HERE.fullmatch(str(address.value))
    ):
        text = f"{address.value} is another place on each machine."
        where = place(file, address, "main_process_ip")
        yield found("L38", where, text, value=f"main_process_ip: {address.value}")


def _fsdp(document: Node, file: str) -> Iterator[Finding]:
    if document.text("distributed_type") != "FSDP":
        return
    total, machines = document.number("num_processes"), document.number("num_machines") or 1
    if total == 1:
        where = place(file, document.get("num_processes"), "num_processes")
        text = "FSDP with one rank divides nothing and still gathers every layer."
        yield found("L28", where, text, value="num_processes: 1")
    node = document.get("fsdp_config", "fsdp_sharding_strategy")
    path = "fsdp_config.fsdp_sharding_strategy"
    name = sharding_name(node)
    value = f"fsdp_sharding_strategy: {name}"
    if name.startswith("HYBRID_SHARD") and machines == 1:
        text = f"{name} divides inside a machine and replicates over machines: on one it is plain sharding."
        yield found("L11", place(file, node, path), text, value=value)
    if name == "NO_SHARD":
        text = "NO_SHARD keeps everything on every GPU, as DDP does, and is slower."
        yield found("L42", place(file, node, path), text, value=value)
    if document.on("fsdp_config", "fsdp_offload_params"):
        where = place(
            file, document.get("fsdp_config", "fsdp_offload_params"), "fsdp_config.fsdp_offload_params"
        )
        text = "Parameters rest in host memory: each step waits for PCIe and for the CPU's optimizer."
        yield found("L20", where, text, value="fsdp_offload_params: true")


def sharding_name(node: Node | None) -> str:
    """FULL_SHARD and so on, also where it is written as a number."""
    if node is None:
        return ""
    text = str(node.value)
    return SHARDINGS[int(text) - 1] if text in ("1", "2", "3", "4", "5") else text.upper()


def _deepspeed(document: Node, file: str) -> Iterator[Finding]:
    """The short form of DeepSpeed's settings that accelerate has."""
    said = document.get("deepspeed_config")
    stage = said.number("zero_stage") if said is not None else None
    if said is None or stage is None:
        return
    for key, least in (("offload_param_device", 3), ("offload_optimizer_device", 1)):
        device = said.text(key)
        if device not in ("cpu", "nvme"):
            continue
        where = place(file, said.get(key), f"deepspeed_config.{key}")
        if stage < least:
            text = f"{key} {device} needs stage {least} and this is stage {stage}."
            yield found("L32", where, text, value=f"{key}: {device}")
        else:
            text = f"{key} {device}: each step waits for PCIe and for the CPU's optimizer."
            yield found("L20", where, text, value=f"{key}: {device}")
