"""Rules about DeepSpeed's configuration (JSON, or the same as values)."""

from __future__ import annotations

from collections.abc import Iterator

from ..finding import Finding
from . import words
from .nodes import Node, place, walk
from .rules import found, once

KEYS = (
    *("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "optimizer"),
    *(
        "scheduler",
        "fp16",
        "bf16",
        "bfloat16",
        "amp",
        "gradient_clipping",
        "zero_optimization",
        "steps_per_print",
    ),
    *("wall_clock_breakdown", "dump_state", "activation_checkpointing", "communication_data_type"),
    *("prescale_gradients", "gradient_predivide_factor", "sparse_gradients", "tensorboard", "wandb"),
    *("csv_monitor", "comms_logger", "flops_profiler", "autotuning", "aio", "elasticity", "data_types"),
    *(
        "zero_allow_untested_optimizer",
        "zero_force_ds_cpu_optimizer",
        "seq_parallel_communication_data_type",
    ),
    *("data_efficiency", "curriculum_learning", "compression_training", "checkpoint", "pipeline", "comet"),
    *("memory_breakdown", "sparse_attention", "eigenvalue", "progressive_layer_drop", "nebula", "compile"),
    *(
        "hybrid_engine",
        "tensor_parallel",
        "disable_allgather",
        "graph_harvesting",
        "use_data_before_expert_parallel_",
    ),
)
BATCH = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
DEVICES = ("none", "cpu", "nvme")
STAGES = ("0", "1", "2", "3")
NEEDS = {"offload_param": 3, "offload_optimizer": 1}
"""The lowest stage that looks at each."""


def is_config(document: Node) -> bool:
    """Whether a document looks like DeepSpeed's; other programs have some of its keys, too, with plain values."""
    tables = (document.get(key) for key in ("bf16", "fp16", "bfloat16", "scheduler"))
    return bool({"zero_optimization", *BATCH[:2]} & document.mapping.keys()) or any(
        one and one.mapping for one in tables
    )


def check(
    document: Node, file: str, world: int | None = None, *, filled_in: bool | None = None
) -> list[Finding]:
    """Everything about one configuration. `world`: data-parallel ranks; `filled_in`: whether "auto" will be replaced.

    None: not known.
    """
    return once(
        [
            *words.keys(file, document, KEYS, "DeepSpeed", refuses=False),
            *_batch(document, file, world),
            *_zero(document, file),
            *_formats(document, file),
            *_auto(document, file, filled_in),
        ]
    )


def _batch(document: Node, file: str, world: int | None) -> Iterator[Finding]:
    for key in BATCH:
        if document.text(key) not in ("", "auto"):
            text = f"{key} is a text, with which DeepSpeed cannot count."
            remedy = "Write a number, without quotes."
            yield found(
                "L30",
                place(file, document.get(key), key),
                text,
                value=f'{key}: "{document.text(key)}"',
                remedy=remedy,
            )
    total, micro, steps = (document.number(key) for key in BATCH)
    if total is None or micro is None or steps is None:
        return
    product = micro * steps
    where, value = place(file, document.get(BATCH[0]), BATCH[0]), f"train_batch_size: {total}"
    said = f"micro {micro} × accumulation {steps}"
    if world is not None and total != product * world:
        text = f"train_batch_size {total} is not {said} × {world} ranks = {product * world}: DeepSpeed refuses it."
        yield found(
            "L17",
            where,
            text,
            value=value,
            remedy=f"Write {product * world}, or leave one of the three out.",
        )
    elif world is None and (product <= 0 or total % product or total < product):
        text = f"train_batch_size {total} is no multiple of {said} = {product}: no number of ranks makes it so."
        yield found("L17", where, text, value=value)


def _zero(document: Node, file: str) -> Iterator[Finding]:
    zero = document.get("zero_optimization")
    if zero is None or not zero.mapping:
        return
    if zero.text("stage") != "auto":
        yield from words.choice(file, zero.get("stage"), "stage", STAGES, "DeepSpeed")
    stage = zero.number("stage") or 0
    for key, least in NEEDS.items():
        part = zero.get(key)
        if part is None or not part.mapping:
            continue
        path = f"zero_optimization.{key}"
        yield from words.choice(file, part.get("device"), "device", (*DEVICES, "auto"), "DeepSpeed")
        device = part.text("device")
        if device not in ("cpu", "nvme"):
            continue
        where, value = place(file, part, path), f"{key}.device: {device}"
        if stage < least and zero.text("stage") != "auto":
            text = f"{key} needs stage {least}, and this is stage {stage}: nothing is offloaded."
            yield found("L32", where, text, value=value)
            continue
        if device == "nvme" and not part.text("nvme_path"):
            text = f"{key} goes to nvme, and no nvme_path says where."
            yield found("L32", where, text, value=value)
            continue
        what = "Parameters rest" if key == "offload_param" else "Optimizer states rest"
        text = f"{what} on {'a disk' if device == 'nvme' else 'the host'}: each step waits for PCIe and for the CPU."
        yield found("L20", where, text, value=value)


def _formats(document: Node, file: str) -> Iterator[Finding]:
    bf16 = "bf16" if document.get("bf16") else "bfloat16"
    if document.on(bf16, "enabled") and document.on("fp16", "enabled"):
        where = place(file, document.get("fp16", "enabled"), "fp16.enabled")
        text = f"{bf16} and fp16 are both on: DeepSpeed refuses that."
        yield found("L33", where, text, value="fp16.enabled: true")


def _auto(document: Node, file: str, filled_in: bool | None) -> Iterator[Finding]:
    auto = [(path, node) for path, node in walk(document) if node.value == "auto"]
    if not auto or filled_in:
        return
    path, node = auto[0]
    more = f", and {len(auto) - 1} more" if auto[1:] else ""
    where, value = place(file, node, path), f"{path}: auto"
    if filled_in is None:
        text = f'"auto"{more}: only transformers and accelerate put numbers in its place, deepspeed.initialize does not.'
        yield found("L34", where, text, value=value, severity="note", remedy="")
    else:
        text = (
            f'The script calls deepspeed.initialize itself, which puts no number in place of "auto"{more}.'
        )
        yield found("L34", where, text, value=value)
