"""Rules for configuration files: Hugging Face accelerate, DeepSpeed, and SkyPilot tasks."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from typing import get_args

from ..finding import Finding
from ..model import Sharding
from ..text_formats import MarkupNode, place, walk, whole
from . import launches, lint_rules, shell
from .launches import total_of_machines
from .lint_rules import DEFAULT_PORT, HERE, issue, once
from .script import saves
from .shell import Surroundings

PRECISIONS = ("no", "fp16", "bf16", "fp8")
TYPES = (
    *("NO", "MULTI_CPU", "MULTI_GPU", "MULTI_NPU", "MULTI_MLU", "MULTI_SDAA", "MULTI_MUSA", "MULTI_XPU"),
    *("MULTI_HPU", "MULTI_NEURON", "DEEPSPEED", "FSDP", "TP", "XLA", "TPU", "MEGATRON_LM"),
)
SHARDINGS: tuple[str, ...] = get_args(Sharding)
"""Also valid as numbers, from 1."""
WRAPS = ("TRANSFORMER_BASED_WRAP", "SIZE_BASED_WRAP", "NO_WRAP")
STATE_DICTS = ("FULL_STATE_DICT", "LOCAL_STATE_DICT", "SHARDED_STATE_DICT")
PREFETCHES = ("BACKWARD_PRE", "BACKWARD_POST", "NO_PREFETCH")
ACCELERATE_KEYS = (
    *("compute_environment", "distributed_type", "mixed_precision", "use_cpu", "debug", "num_processes"),
    *("machine_rank", "num_machines", "gpu_ids", "main_process_ip", "main_process_port", "rdzv_backend"),
    *("same_network", "main_training_function", "enable_cpu_affinity", "fp8_config", "deepspeed_config"),
    *("fsdp_config", "tp_config", "megatron_lm_config", "ipex_config", "mpirun_config", "downcast_bf16"),
    *("tpu_name", "tpu_zone", "tpu_use_cluster", "tpu_use_sudo", "tpu_env", "tpu_vm", "command_file"),
    *("commands", "dynamo_config", "fp16", "dynamo_backend", "parallelism_config"),
)
"""Keys of the releases up to 1.15. `fp16` and `dynamo_backend` are old, but accepted."""
FSDP_KEYS = (
    *("fsdp_version", "fsdp_sharding_strategy", "fsdp_reshard_after_forward", "fsdp_offload_params"),
    *("fsdp_auto_wrap_policy", "fsdp_transformer_layer_cls_to_wrap", "fsdp_min_num_params"),
    *("fsdp_backward_prefetch", "fsdp_forward_prefetch", "fsdp_state_dict_type", "fsdp_sync_module_states"),
    *("fsdp_use_orig_params", "fsdp_cpu_ram_efficient_loading", "fsdp_activation_checkpointing"),
    *("fsdp_limit_all_gathers", "fsdp_backward_prefetch_policy", "fsdp_activation_checkpointing_offload"),
)


def check_accelerate(document: MarkupNode, file: str, gpus: int | None = None) -> list[Finding]:
    """Check one file of accelerate. `gpus`: GPUs per machine, if known."""
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


def _names(document: MarkupNode, file: str) -> Iterator[Finding]:
    yield from lint_rules.keys(file, document, ACCELERATE_KEYS, "accelerate", refuses=True)
    yield from lint_rules.choice(
        file, document.mapping.get("mixed_precision"), "mixed_precision", PRECISIONS, "accelerate"
    )
    yield from lint_rules.choice(
        file, document.mapping.get("distributed_type"), "distributed_type", TYPES, "accelerate"
    )
    fsdp = document.get("fsdp_config")
    if fsdp is None:
        return
    yield from lint_rules.keys(file, fsdp, FSDP_KEYS, "accelerate's fsdp_config", refuses=False)
    for key, allowed in (
        ("fsdp_auto_wrap_policy", WRAPS),
        ("fsdp_state_dict_type", STATE_DICTS),
        ("fsdp_backward_prefetch", PREFETCHES),
    ):
        yield from lint_rules.choice(file, fsdp.get(key), key, allowed, "accelerate")
    sharding = fsdp.get("fsdp_sharding_strategy")
    if fsdp.number("fsdp_sharding_strategy") not in range(1, 6):
        yield from lint_rules.choice(file, sharding, "fsdp_sharding_strategy", SHARDINGS, "accelerate")


def _machines(document: MarkupNode, file: str, gpus: int | None) -> Iterator[Finding]:
    machines = document.number("num_machines") or 1
    port = document.get("main_process_port")
    if machines != 1:
        yield from _several_machines(document, file, machines, gpus)
    elif port is not None and port.shown == DEFAULT_PORT:
        text = f"Port {port.shown} is everybody's default: a second job on the machine does not start."
        where = place(file, port, "main_process_port")
        yield issue("L22", where, text, value=f"main_process_port: {port.shown}")


def _several_machines(
    document: MarkupNode, file: str, machines: int, gpus: int | None
) -> Iterator[Finding]:
    total = document.number("num_processes")
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
        yield issue("L29", where, text, value=f"num_machines: {machines}")
    address = document.get("main_process_ip")
    if address is not None and document.get("mpirun_config") is None and HERE.fullmatch(address.shown):
        text = f"{address.shown} is another place on each machine."
        where = place(file, address, "main_process_ip")
        yield issue("L38", where, text, value=f"main_process_ip: {address.shown}")


def _fsdp(document: MarkupNode, file: str) -> Iterator[Finding]:
    if document.text("distributed_type") != "FSDP":
        return
    total, machines = document.number("num_processes"), document.number("num_machines") or 1
    if total == 1:
        where = place(file, document.get("num_processes"), "num_processes")
        text = "FSDP with one rank divides nothing and still gathers every layer."
        yield issue("L28", where, text, value="num_processes: 1")
    node = document.get("fsdp_config", "fsdp_sharding_strategy")
    path = "fsdp_config.fsdp_sharding_strategy"
    name = sharding_name(node)
    value = f"fsdp_sharding_strategy: {name}"
    if name.startswith("HYBRID_SHARD") and machines == 1:
        text = f"{name} divides inside a machine and replicates over machines: on one it is plain sharding."
        yield issue("L11", place(file, node, path), text, value=value)
    if name == "NO_SHARD":
        text = "NO_SHARD keeps everything on every GPU, as DDP does, and is slower."
        yield issue("L42", place(file, node, path), text, value=value)
    if document.on("fsdp_config", "fsdp_offload_params"):
        where = place(
            file, document.get("fsdp_config", "fsdp_offload_params"), "fsdp_config.fsdp_offload_params"
        )
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
    section = document.get("deepspeed_config")
    stage = section.number("zero_stage") if section is not None else None
    if section is None or stage is None:
        return
    for key, least in (("offload_param_device", 3), ("offload_optimizer_device", 1)):
        device = section.text(key)
        if device not in ("cpu", "nvme"):
            continue
        where = place(file, section.get(key), f"deepspeed_config.{key}")
        if stage < least:
            text = f"{key} {device} needs stage {least} and this is stage {stage}."
            yield issue("L32", where, text, value=f"{key}: {device}")
        else:
            text = f"{key} {device}: each step waits for PCIe and for the CPU's optimizer."
            yield issue("L20", where, text, value=f"{key}: {device}")


DEEPSPEED_KEYS = (
    "train_batch_size",
    "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps",
    "optimizer",
    "scheduler",
    "fp16",
    "bf16",
    "bfloat16",
    "amp",
    "gradient_clipping",
    "zero_optimization",
    "steps_per_print",
    "wall_clock_breakdown",
    "dump_state",
    "activation_checkpointing",
    "communication_data_type",
    "prescale_gradients",
    "gradient_predivide_factor",
    "sparse_gradients",
    "tensorboard",
    "wandb",
    "csv_monitor",
    "comms_logger",
    "flops_profiler",
    "autotuning",
    "aio",
    "elasticity",
    "data_types",
    "zero_allow_untested_optimizer",
    "zero_force_ds_cpu_optimizer",
    "seq_parallel_communication_data_type",
    "data_efficiency",
    "curriculum_learning",
    "compression_training",
    "checkpoint",
    "pipeline",
    "comet",
    "memory_breakdown",
    "sparse_attention",
    "eigenvalue",
    "progressive_layer_drop",
    "nebula",
    "compile",
    "hybrid_engine",
    "tensor_parallel",
    "disable_allgather",
    "graph_harvesting",
    "use_data_before_expert_parallel_",
)
BATCH = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
DEVICES = ("none", "cpu", "nvme")
STAGES = ("0", "1", "2", "3")
NEEDS = {"offload_param": 3, "offload_optimizer": 1}
"""Lowest stage that supports each offload."""


def is_config(document: MarkupNode) -> bool:
    """Return True if a document looks like DeepSpeed's. Other programs use some of its keys, but with plain values."""
    tables = (document.get(key) for key in ("bf16", "fp16", "bfloat16", "scheduler"))
    return bool({"zero_optimization", *BATCH[:2]} & document.mapping.keys()) or any(
        table and table.mapping for table in tables
    )


def check_deepspeed(
    document: MarkupNode, file: str, world: int | None = None, *, filled_in: bool | None = None
) -> list[Finding]:
    """Check one DeepSpeed configuration.

    `world`: data-parallel ranks, or None if unknown. `filled_in`: True if a library will replace "auto", None if
    unknown.
    """
    return once(
        [
            *lint_rules.keys(file, document, DEEPSPEED_KEYS, "DeepSpeed", refuses=False),
            *_batch(document, file, world),
            *_zero(document, file),
            *_formats(document, file),
            *_auto(document, file, filled_in),
        ]
    )


def _batch(document: MarkupNode, file: str, world: int | None) -> Iterator[Finding]:
    for key in BATCH:
        if document.text(key) not in ("", "auto"):
            text = f"{key} is a text, with which DeepSpeed cannot count."
            remedy = "Write a number, without quotes."
            yield issue(
                "L30",
                place(file, document.get(key), key),
                text,
                value=f'{key}: "{document.text(key)}"',
                remedy=remedy,
            )
    yield from _product(document, file, world)


def _product(document: MarkupNode, file: str, world: int | None) -> Iterator[Finding]:
    """Check that the total is micro batch × accumulation × ranks."""
    total, micro, steps = (document.number(key) for key in BATCH)
    if total is None or micro is None or steps is None:
        return
    product = micro * steps
    where, value = place(file, document.get(BATCH[0]), BATCH[0]), f"train_batch_size: {total}"
    parts = f"micro {micro} × accumulation {steps}"
    if world is not None and total != product * world:
        text = f"train_batch_size {total} is not {parts} × {world} ranks = {product * world}: DeepSpeed refuses it."
        yield issue(
            "L17",
            where,
            text,
            value=value,
            remedy=f"Write {product * world}, or leave one of the three out.",
        )
    elif world is None and (product <= 0 or total % product or total < product):
        text = f"train_batch_size {total} is no multiple of {parts} = {product}: no number of ranks makes it so."
        yield issue("L17", where, text, value=value)


def _zero(document: MarkupNode, file: str) -> Iterator[Finding]:
    zero = document.get("zero_optimization")
    if zero is None or not zero.mapping:
        return
    if zero.text("stage") != "auto":
        yield from lint_rules.choice(file, zero.get("stage"), "stage", STAGES, "DeepSpeed")
    stage = zero.number("stage") or 0
    for key, least in NEEDS.items():
        part = zero.get(key)
        if part is not None and part.mapping:
            is_low = stage < least and zero.text("stage") != "auto"
            too_low = f"{key} needs stage {least}, and this is stage {stage}: nothing is offloaded."
            yield from _offload(key, part, file, too_low if is_low else "")


def _offload(key: str, part: MarkupNode, file: str, problem: str) -> Iterator[Finding]:
    """Check one offload. `problem`: why its stage makes it impossible, or ""."""
    yield from lint_rules.choice(file, part.get("device"), "device", (*DEVICES, "auto"), "DeepSpeed")
    device = part.text("device")
    if device not in ("cpu", "nvme"):
        return
    if device == "nvme" and not part.text("nvme_path"):
        problem = problem or f"{key} goes to nvme, but nvme_path is missing."
    where, value = place(file, part, f"zero_optimization.{key}"), f"{key}.device: {device}"
    if problem:
        yield issue("L32", where, problem, value=value)
        return
    what = "Parameters rest" if key == "offload_param" else "Optimizer states rest"
    text = f"{what} on {'a disk' if device == 'nvme' else 'the host'}: each step waits for PCIe and for the CPU."
    yield issue("L20", where, text, value=value)


def _formats(document: MarkupNode, file: str) -> Iterator[Finding]:
    bf16 = "bf16" if document.get("bf16") else "bfloat16"
    if document.on(bf16, "enabled") and document.on("fp16", "enabled"):
        where = place(file, document.get("fp16", "enabled"), "fp16.enabled")
        text = f"{bf16} and fp16 are both on: DeepSpeed refuses that."
        yield issue("L33", where, text, value="fp16.enabled: true")


def _auto(document: MarkupNode, file: str, filled_in: bool | None) -> Iterator[Finding]:
    auto = [(path, node) for path, node in walk(document) if node.value == "auto"]
    if not auto or filled_in:
        return
    path, node = auto[0]
    more = f", and {len(auto) - 1} more" if auto[1:] else ""
    where, value = place(file, node, path), f"{path}: auto"
    if filled_in is None:
        text = f'"auto"{more}: only transformers and accelerate put numbers in its place, deepspeed.initialize does not.'
        yield issue("L34", where, text, value=value, severity="note", remedy="")
    else:
        text = (
            f'The script calls deepspeed.initialize itself, which puts no number in place of "auto"{more}.'
        )
        yield issue("L34", where, text, value=value)


SKYPILOT_KEYS = (
    "name",
    "workdir",
    "event_callback",
    "num_nodes",
    "resources",
    "file_mounts",
    "service",
    "pool",
    "setup",
    "run",
    "envs",
    "secrets",
    "managed_secrets",
    "inputs",
    "outputs",
    "file_mounts_mapping",
    "config",
    "volumes",
    "volume_mounts",
    "api_server_access",
    "execution",
    "experimental",
    "_metadata",
)
"""Keys of release 0.14."""
SKYPILOT_RESOURCES = (
    "cloud",
    "region",
    "zone",
    "infra",
    "cpus",
    "memory",
    "instance_type",
    "use_spot",
    "job_recovery",
    "volumes",
    "disk_size",
    "ephemeral_storage",
    "disk_tier",
    "network_tier",
    "local_disk",
    "max_hourly_cost",
    "ports",
    "labels",
    "accelerator_args",
    "image_id",
    "autostop",
    "priority",
    "priority_class",
    "accelerators",
    "any_of",
    "ordered",
    "spot_recovery",
)
SKYPILOT_MARKS = frozenset({"run", "setup", "resources", "num_nodes", "file_mounts", "workdir"})
"""Keys that identify a file as a task."""
TIERS = ("standard", "best")
TIERLESS = ("slurm", "ssh")
"""Infras that ignore a network tier (release 0.14)."""
PLAIN_GPUS = frozenset(
    {
        "L4",
        "T4",
        "T4G",
        "A10",
        "A10G",
        "K80",
        "P4",
        "P40",
        "P100",
        "M60",
        "M4000",
        "P4000",
        "RTX4000",
        "RTX5000",
        "RTX6000",
        "A2",
        "A4000",
        "A5000",
        "A6000",
        "RTXA6000",
        "RTX3090",
        "RTX4090",
        "RTX5090",
        "RTX6000-ADA",
    }
)
"""Accelerators whose machines have no faster network for a tier to select."""
NETWORKS = re.compile(
    r"(^|[/._-])(efa|rdma|infiniband|ib|roce|hostdev|mlnxnics|sriov\w*)\b|networking\.gke\.io", re.I
)
"""Matches devices and annotations of a fast network in the keys and values of a pod configuration."""
OTHER_MAKERS = re.compile(r"(MI\d|TPU|GAUDI|HPU|TRAINIUM|INFERENTIA|ASCEND)", re.I)
"""Prefixes of accelerators that are not NVIDIA's."""
MIN_TORCH = (2, 7)
"""Oldest torch that distui supports on the nodes."""


def check_skypilot(
    task: MarkupNode, file: str, exists: Callable[[str], bool] | None = None
) -> list[Finding]:
    """Check one task. `exists` returns True if a file exists, by its path relative to the task."""
    nnodes = task.number("num_nodes") or (1 if "num_nodes" not in task.mapping else None)
    env = {name: _text_of(node) for name, node in _envs(task)}
    around = Surroundings(
        file=file, nnodes=nnodes, gpus=gpus(task), env=env, every_node=True, own_nodes=True, exists=exists
    )
    return once(
        [
            *_task_names(task, file),
            *_resources(task, file, nnodes),
            *_variables(task, file, nnodes),
            *(finding for key in ("setup", "run") for finding in _shell(task.get(key), around)),
            *old_torch(task.get("setup"), file),
        ]
    )


def _envs(task: MarkupNode) -> Iterator[tuple[str, MarkupNode]]:
    envs = task.get("envs")
    yield from (envs.mapping if envs else {}).items()


def _text_of(node: MarkupNode) -> str:
    if isinstance(node.value, bool):
        return str(node.value).lower()
    return "$" if node.value is None or isinstance(node.value, dict | list) else str(node.value)


def _shell(node: MarkupNode | None, around: Surroundings) -> list[Finding]:
    if node is None or not isinstance(node.value, str):
        return []
    return launches.check_text(node.value, around, node.text_line)


def _wishes(task: MarkupNode) -> list[MarkupNode]:
    resources = task.get("resources")
    if resources is None:
        return []
    alternatives = [
        wish for key in ("any_of", "ordered") for wish in (resources.get(key) or MarkupNode(0, None)).items
    ]
    return [resources, *alternatives]


def gpus(task: MarkupNode) -> int | None:
    """Return the accelerators per node, 0 if none is requested, or None if they differ or are unknown."""
    wishes = _wishes(task)
    counts = {count for wish in wishes for count in _counts(wish.get("accelerators"))}
    if counts:
        return counts.pop() if len(counts) == 1 else None
    requested = any(
        wish.get(key) for wish in wishes for key in ("accelerators", "instance_type", "any_of", "ordered")
    )
    return None if requested else 0


def _counts(node: MarkupNode | None) -> Iterator[int | None]:
    """Yield the numbers in `accelerators`: "H100:8", {H100: 8}, or a list of such values."""
    if node is None:
        return
    for item in node.items:
        yield from _counts(item)
    for name in node.mapping:
        yield node.number(name)
    if isinstance(node.value, str):
        name, _, count = node.value.partition(":")
        if name.lower().startswith("tpu"):
            yield None
        else:
            yield whole(count) if count else 1


def _task_names(task: MarkupNode, file: str) -> Iterator[Finding]:
    if "working_dir" not in task.mapping:  # an oumi job is similar to a task, but has more keys
        yield from lint_rules.keys(file, task, SKYPILOT_KEYS, "A SkyPilot task", refuses=True)
    nodes = task.get("num_nodes")
    if nodes is not None and (task.number("num_nodes") or 0) < 1:
        text = f"num_nodes {nodes.shown} is no number of nodes."
        value = f"num_nodes: {nodes.shown}"
        yield issue(
            "L30", place(file, nodes, "num_nodes"), text, value=value, remedy="Write a number from 1 on."
        )
    for wish in _wishes(task):
        yield from lint_rules.keys(file, wish, SKYPILOT_RESOURCES, "SkyPilot's resources", refuses=True)


def _resources(task: MarkupNode, file: str, nnodes: int | None) -> Iterator[Finding]:
    wishes = _wishes(task)
    for wish in wishes:
        yield from _wish(wish, file, task.text("run"))
    if nnodes is not None and nnodes > 1:
        yield from _network(task, wishes, file, nnodes)


def _wish(wish: MarkupNode, file: str, run: str) -> Iterator[Finding]:
    """Check `resources:`, or one of its alternatives."""
    tier = wish.get("network_tier")
    if tier is not None and tier.shown.lower() not in TIERS:
        text = f"SkyPilot has no network_tier {tier.shown}, and refuses the task."
        value = f"network_tier: {tier.shown}"
        yield issue("L7", place(file, tier, "resources.network_tier"), text, value=value)
    ports = wish.get("ports")
    if ports is not None:
        text = "ports opens these to the whole internet, on every node."
        yield issue("L13", place(file, ports, "resources.ports"), text, value="ports")
    recovery = wish.get("job_recovery") or wish.get("spot_recovery")
    if recovery is not None:
        text = "job_recovery acts only in managed jobs, whose nodes have no ssh."
        yield issue("L12", place(file, recovery, "resources.job_recovery"), text, value="job_recovery")
    preemptible = wish.get("use_spot")
    if preemptible is not None and preemptible.value is True and not saves(run):
        text = "Spot nodes can be taken back, and nothing in run speaks of a checkpoint."
        yield issue("L37", place(file, preemptible, "resources.use_spot"), text, value="use_spot: true")
    for name in _names_of(wish.get("accelerators")):
        yield from other_makers(name, place(file, wish.get("accelerators"), "resources.accelerators"))


def _network(task: MarkupNode, wishes: list[MarkupNode], file: str, nnodes: int) -> Iterator[Finding]:
    """Report several GPU nodes on the plain network."""
    tiers = [tier for wish in wishes if (tier := wish.get("network_tier"))]
    if any(tier.value != "standard" for tier in tiers):
        return  # including an invalid tier, which L7 reports
    if _ignores_tiers(task, wishes) or _own_network(task):
        return
    tier = next(iter(tiers), None)
    where = place(file, tier or task.get("resources") or task.get("num_nodes"), "resources")
    text = f"{nnodes} nodes with the plain network between them, not the fastest that there is."
    yield issue("L21", where, text, value="network_tier: standard" if tier else "")


def _ignores_tiers(task: MarkupNode, wishes: list[MarkupNode]) -> bool:
    """Return True if a network tier changes nothing: without GPUs, on this infra, or for these accelerators."""
    infras = {(wish.text("infra") or wish.text("cloud")).partition("/")[0].lower() for wish in wishes} - {
        ""
    }
    names = {name for wish in wishes for name in _names_of(wish.get("accelerators"))}
    return gpus(task) == 0 or (bool(infras) and infras <= set(TIERLESS)) or are_plain(names)


def other_makers(name: str, where: str) -> Iterator[Finding]:
    """Report an accelerator of another vendor, whose driver distui does not read."""
    if OTHER_MAKERS.match(name):
        text = f"{name} is not NVIDIA's: distui reads GPU values only from NVIDIA's driver."
        yield issue("L55", where, text, value=name)


def are_plain(gpus: Collection[str]) -> bool:
    return bool(gpus) and {name.upper() for name in gpus} <= PLAIN_GPUS


def _names_of(node: MarkupNode | None) -> Iterator[str]:
    """Yield the accelerators that a task names, in any spelling."""
    if node is None:
        return
    yield from node.mapping
    for item in node.items:
        yield from _names_of(item)
    if isinstance(node.value, str):
        yield node.value.partition(":")[0]


def _own_network(task: MarkupNode) -> bool:
    """Return True if the task's pod configuration requests a fast network."""
    for path in (("config", "kubernetes"), ("experimental", "config_overrides", "kubernetes")):
        pods = task.get(*path, "pod_config")
        for key, node in walk(pods) if pods else ():
            if NETWORKS.search(key) or (isinstance(node.value, str) and NETWORKS.search(node.value)):
                return True
    return False


_INSTALLERS = frozenset(
    {"pip", "pip3", "uv", "conda", "mamba", "micromamba", "poetry", "python", "python3"}
)
_TORCH = re.compile(r"(?:torch|pytorch)(?:\[[^\]]*\])?\s*((?:[=~<>!]=?=?\s*\d[\w.+*]*\s*,?\s*)+)")
_BOUND = re.compile(r"(?<![<>=~!])(===?|~=|<=?|=)\s*(\d+(?:\.(?:\d+|\*))*)")


def old_torch(node: MarkupNode | None, file: str) -> Iterator[Finding]:
    """Report commands that install a torch older than MIN_TORCH."""
    if node is None or not isinstance(node.value, str):
        return
    for command in shell.read_commands(node.value, node.text_line or 1):
        installs = command.words[0].text.rsplit("/", 1)[-1] in _INSTALLERS
        for word in command.words if installs else ():
            match = _TORCH.fullmatch(word.text.strip())
            if match and _too_old(match[1]):
                where = f"{file}:{word.line}" if node.line else file
                text = f"{word.text} is too old: distui needs torch {MIN_TORCH[0]}.{MIN_TORCH[1]} or newer on the nodes."
                yield issue("L47", where, text, value=word.text)


def _too_old(bounds: str) -> bool:
    """Return True if every version within the bounds is older than MIN_TORCH."""
    for relation, version in _BOUND.findall(bounds):
        parts = version.split(".")
        numbers = [int(part) for part in parts if part.isdecimal()]
        if "*" in parts or relation == "~=":
            numbers = numbers[:-1] if relation == "~=" else numbers
            if tuple(numbers) < MIN_TORCH[: len(numbers)]:
                return True
        elif (*numbers, 0)[:2] < MIN_TORCH or (relation == "<" and (*numbers, 0)[:2] == MIN_TORCH):
            return True
    return False


def _variables(task: MarkupNode, file: str, nnodes: int | None) -> Iterator[Finding]:
    nodes = dict(_envs(task))
    env = {name: _text_of(node) for name, node in nodes.items()}
    yield from lint_rules.check_all(env, lambda name: place(file, nodes[name], f"envs.{name}"), nnodes)
    secret = task.get("secrets")
    for section in (nodes, secret.mapping if secret else {}):
        for name, node in section.items():
            for finding in lint_rules.in_plain_text(name, _text_of(node), place(file, node, name)):
                remedy = f"Write `{name}: null` under secrets, and launch with --secret {name}."
                yield issue(finding.id, finding.where, finding.text, value=finding.value, remedy=remedy)
