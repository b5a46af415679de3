"""Rules for the YAML of Hugging Face accelerate."""

from __future__ import annotations

from collections.abc import Iterator
from typing import get_args

from ..finding import Finding
from ..known_names import known_names
from ..model import Sharding
from ..text_formats import MarkupNode, place_of
from . import lint_rules
from .launches import total_of_machines
from .lint_rules import DEFAULT_PORT, LOCAL_ADDRESS, issue, once

SHARDINGS: tuple[str, ...] = get_args(Sharding)
"""Also valid as numbers, from 1."""


def is_accelerate(document: MarkupNode) -> bool:
    return bool(document.mapping.keys() & {"distributed_type", "compute_environment"})


def check_accelerate(document: MarkupNode, file: str) -> list[Finding]:
    """Check one file of accelerate."""
    if document.text("compute_environment") == "AMAZON_SAGEMAKER":
        return []
    checks = (_names, _machines, _kind, _nothing_to_shard, _fsdp, _deepspeed)
    return once(finding for check in checks for finding in check(document, file))


def _names(document: MarkupNode, file: str) -> Iterator[Finding]:
    known = known_names("accelerate")
    yield from lint_rules.keys(file, document, known["keys"], "accelerate", refuses=True)
    for key in ("mixed_precision", "distributed_type"):
        yield from lint_rules.choice(file, document.mapping.get(key), key, known[key], "accelerate")
    fsdp = document.get("fsdp_config")
    if fsdp is None:
        return
    yield from lint_rules.keys(file, fsdp, known["fsdp_keys"], "accelerate's fsdp_config", refuses=False)
    for key in ("fsdp_auto_wrap_policy", "fsdp_state_dict_type", "fsdp_backward_prefetch"):
        yield from lint_rules.choice(file, fsdp.get(key), key, known[key], "accelerate")
    key = "fsdp_sharding_strategy"
    if fsdp.number(key) not in range(1, 6):
        yield from lint_rules.choice(file, fsdp.get(key), key, SHARDINGS, "accelerate")


def _machines(document: MarkupNode, file: str) -> Iterator[Finding]:
    machines = document.number("num_machines") or 1
    if machines != 1:
        yield from _several_machines(document, file, machines)
        return
    port = document.get("main_process_port")
    if port is not None and port.shown == DEFAULT_PORT:
        text = f"Port {port.shown} is the default of every job: a second job on the machine does not start."
        where = place_of(file, document, "main_process_port")
        yield issue("L22", where, text, value=f"main_process_port: {port.shown}")


def _several_machines(document: MarkupNode, file: str, machines: int) -> Iterator[Finding]:
    total = document.number("num_processes")
    if total is not None and total > 0:
        gpus = _gpus(document)
        yield from total_of_machines(total, machines, gpus, place_of(file, document, "num_processes"))
    needed = ["main_process_ip", "main_process_port"]
    if document.text("rdzv_backend") in ("", "static"):
        needed.append("machine_rank")
    missing = [key for key in needed if document.get(key) is None]
    if missing:
        text = f"{machines} machines, and no {' and no '.join(missing)}: each takes itself for the first."
        where = place_of(file, document, "num_machines")
        yield issue("L29", where, text, value=f"num_machines: {machines}")
    address = document.get("main_process_ip")
    if (
        address is not None
        and document.get("mpirun_config") is None
        and LOCAL_ADDRESS.fullmatch(address.shown)
    ):
        text = f"On each machine {address.shown} means that machine itself."
        where = place_of(file, document, "main_process_ip")
        yield issue("L38", where, text, value=f"main_process_ip: {address.shown}")


IN_FILE = (
    "gradient_accumulation_steps", "gradient_clipping", "zero_stage", "offload_optimizer_device", "offload_param_device",
    "offload_optimizer_nvme_path", "offload_param_nvme_path", "zero3_save_16bit_model",
)  # fmt: skip
"""Keys that accelerate refuses together with deepspeed_config_file."""


def _kind(document: MarkupNode, file: str) -> Iterator[Finding]:
    """Report what contradicts distributed_type, and keys that deepspeed_config_file excludes."""
    kind = document.text("distributed_type")
    if kind == "MULTI_GPU" and document.number("num_processes") == 1:
        text = "MULTI_GPU needs two processes or more: accelerate refuses one."
        where = place_of(file, document, "num_processes")
        yield issue(
            "L35",
            where,
            text,
            value="num_processes: 1",
            remedy="Write distributed_type: 'NO', or more processes.",
        )
    config = document.get("deepspeed_config")
    both = [key for key in IN_FILE if config and config.get(key) and config.get("deepspeed_config_file")]
    if both:
        text = f"accelerate refuses {', '.join(both)} together with deepspeed_config_file."
        where = place_of(file, document, "deepspeed_config", both[0])
        yield issue(
            "L31", where, text, value=both[0], remedy="Leave them out: they belong in DeepSpeed's file."
        )


def _nothing_to_shard(document: MarkupNode, file: str) -> Iterator[Finding]:
    """Report FSDP whose ranks all belong to other dimensions."""
    sizes = document.get("parallelism_config")
    if document.text("distributed_type") != "FSDP" or sizes is None:
        return
    tp, shard, cp = (
        sizes.number(f"parallelism_config_{name}_size") or 1 for name in ("tp", "dp_shard", "cp")
    )
    if tp > 1 and shard == 1 and cp == 1:
        text = f"FSDP has nothing to shard over: tp_size {tp} takes the ranks, and dp_shard_size is 1."
        where = place_of(file, document, "parallelism_config", "parallelism_config_dp_shard_size")
        yield issue(
            "L18",
            where,
            text,
            value="dp_shard_size: 1",
            remedy="Write dp_shard_size 2 or more, or leave FSDP out.",
        )


def _gpus(document: MarkupNode) -> int | None:
    """Return the number of GPUs of this machine in `gpu_ids`, or None if it is "all" or missing."""
    ids = document.get("gpu_ids")
    listed = ids.shown.split(",") if ids is not None else []
    return len(listed) if listed and all(one.strip().isdecimal() for one in listed) else None


def _fsdp(document: MarkupNode, file: str) -> Iterator[Finding]:
    if document.text("distributed_type") != "FSDP":
        return
    if document.number("num_processes") == 1:
        where = place_of(file, document, "num_processes")
        text = "FSDP with one rank divides nothing and still gathers every layer."
        yield issue("L28", where, text, value="num_processes: 1")
    sharding = sharding_name(document.get("fsdp_config", "fsdp_sharding_strategy"))
    where = place_of(file, document, "fsdp_config", "fsdp_sharding_strategy")
    value = f"fsdp_sharding_strategy: {sharding}"
    if sharding.startswith("HYBRID_SHARD") and (document.number("num_machines") or 1) == 1:
        text = f"{sharding} divides inside a machine and replicates over machines: on one it is plain sharding."
        yield issue("L11", where, text, value=value)
    if sharding == "NO_SHARD":
        text = "NO_SHARD keeps everything on every GPU, as DDP does, and is slower."
        yield issue("L42", where, text, value=value)
    if document.on("fsdp_config", "fsdp_offload_params"):
        where = place_of(file, document, "fsdp_config", "fsdp_offload_params")
        text = "Parameters rest in host memory: each step waits for PCIe and for the CPU's optimizer."
        yield issue("L20", where, text, value="fsdp_offload_params: true")


def sharding_name(node: MarkupNode | None) -> str:
    """Return the sharding name, such as FULL_SHARD, also for its number."""
    if node is None:
        return ""
    text = node.shown
    return SHARDINGS[int(text) - 1] if text in ("1", "2", "3", "4", "5") else text.upper()


def _deepspeed(document: MarkupNode, file: str) -> Iterator[Finding]:
    """Check accelerate's short form of DeepSpeed settings."""
    if document.text("distributed_type") != "DEEPSPEED":
        return
    stage = document.number("deepspeed_config", "zero_stage")
    if stage is None:
        return
    for key, least in (("offload_param_device", 3), ("offload_optimizer_device", 1)):
        device = document.text("deepspeed_config", key)
        if device not in ("cpu", "nvme"):
            continue
        where, value = place_of(file, document, "deepspeed_config", key), f"{key}: {device}"
        if stage < least:
            yield issue(
                "L32", where, f"{key} {device} needs stage {least} and this is stage {stage}.", value=value
            )
        else:
            text = f"{key} {device}: each step waits for PCIe and for the CPU's optimizer."
            yield issue("L20", where, text, value=value)
