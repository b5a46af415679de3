"""Rules for DeepSpeed's configuration: its JSON, and the table [deepspeed] of a preset."""

from __future__ import annotations

from collections.abc import Iterator

from ..finding import Finding
from ..known_names import known_names
from ..launchers.deepspeed import BATCH, LEAST_STAGE
from ..plurals import plural
from ..text_formats import MarkupNode, place, place_of, walk
from . import lint_rules
from .lint_rules import issue, once

DEVICES = ("none", "cpu", "nvme", "auto")
STAGES = ("0", "1", "2", "3")


def is_deepspeed(document: MarkupNode) -> bool:
    """Return True if a document looks like DeepSpeed's. Other programs use some of its keys, but with plain values."""
    if {"zero_optimization", *BATCH[:2]} & document.mapping.keys():
        return True
    tables = (document.get(key) for key in ("bf16", "fp16", "bfloat16", "scheduler"))
    return any(table and table.mapping for table in tables)


def check_deepspeed(
    document: MarkupNode, file: str, world: int | None = None, *, filled_in: bool | None = None
) -> list[Finding]:
    """Check one DeepSpeed configuration.

    `world`: data-parallel ranks, or None if unknown. `filled_in`: True if a library will replace "auto", None if
    unknown.
    """
    keys = known_names("deepspeed")["keys"]
    return once(
        [
            *lint_rules.keys(file, document, keys, "DeepSpeed", refuses=False),
            *_texts_for_numbers(document, file),
            *check_product(document, file, world),
            *_zero(document, file),
            *_formats(document, file),
            *_auto(document, file, filled_in),
        ]
    )


def _texts_for_numbers(document: MarkupNode, file: str) -> Iterator[Finding]:
    for key in BATCH:
        value = document.text(key)
        if value not in ("", "auto"):
            text = f"{key} is a text, with which DeepSpeed cannot count."
            where, remedy = place_of(file, document, key), "Write a number, without quotes."
            yield issue("L30", where, text, value=f'{key}: "{value}"', remedy=remedy)


def check_product(document: MarkupNode, file: str, world: int | None) -> Iterator[Finding]:
    """Check that the total is micro batch × accumulation × ranks."""
    total, micro, steps = (document.number(key) for key in BATCH)
    if total is None or micro is None or steps is None:
        return
    product = micro * steps
    where, value = place_of(file, document, BATCH[0]), f"train_batch_size: {total}"
    parts = f"micro {micro} × accumulation {steps}"
    if world is None:
        if product <= 0 or total % product or total < product:
            text = f"train_batch_size {total} is not a multiple of {parts} = {product}: no number of ranks makes it so."
            yield issue("L17", where, text, value=value)
    elif total != product * world:
        text = f"train_batch_size {total} is not {parts} × {world} ranks = {product * world}: DeepSpeed refuses it."
        remedy = f"Write {product * world}, or leave one of the three out."
        yield issue("L17", where, text, value=value, remedy=remedy)


def _zero(document: MarkupNode, file: str) -> Iterator[Finding]:
    zero = document.get("zero_optimization")
    if zero is None or not zero.mapping:
        return
    is_auto = zero.text("stage") == "auto"
    is_tuned = document.get("autotuning") is not None  # which takes a list of stages
    if not is_auto and not is_tuned:
        yield from lint_rules.choice(file, zero.get("stage"), "stage", STAGES, "DeepSpeed")
    stage = zero.number("stage") or 0
    for key, least in LEAST_STAGE.items():
        part = zero.get(key)
        if part is None or not part.mapping:
            continue
        problem = ""
        if stage < least and not is_auto:
            problem = f"{key} needs stage {least}, and this is stage {stage}: nothing is offloaded."
        yield from _offload(key, part, file, problem)


def _offload(key: str, part: MarkupNode, file: str, problem: str) -> Iterator[Finding]:
    """Check one offload. `problem`: why its stage makes it impossible, or ""."""
    yield from lint_rules.choice(file, part.get("device"), "device", DEVICES, "DeepSpeed")
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
    target = "a disk" if device == "nvme" else "the host"
    yield issue("L20", where, f"{what} on {target}: each step waits for PCIe and for the CPU.", value=value)


def _formats(document: MarkupNode, file: str) -> Iterator[Finding]:
    bf16 = "bf16" if document.get("bf16") else "bfloat16"
    if document.on(bf16, "enabled") and document.on("fp16", "enabled"):
        where = place_of(file, document, "fp16", "enabled")
        text = f"{bf16} and fp16 are both on: DeepSpeed refuses that."
        yield issue("L33", where, text, value="fp16.enabled: true")


def _auto(document: MarkupNode, file: str, filled_in: bool | None) -> Iterator[Finding]:
    auto = [(path, node) for path, node in walk(document) if node.value == "auto"]
    if not auto or filled_in:
        return
    path, node = auto[0]
    more = f" here and in {plural(len(auto) - 1, 'more place')}" if auto[1:] else ""
    where, value = place(file, node, path), f"{path}: auto"
    if filled_in is None:
        text = f'"auto"{more}: transformers and accelerate replace it by numbers, deepspeed.initialize does not.'
        yield issue("L34", where, text, value=value, severity="note", remedy="")
    else:
        text = (
            f'The script calls deepspeed.initialize itself, which does not replace "auto"{more} by numbers.'
        )
        yield issue("L34", where, text, value=value)
