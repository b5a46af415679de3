"""An advice in sentences, which `distui advise` and the launch screen's guide both print. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from ..plurals import plural
from .advice import Advice, weights_matter
from .launch_command import LaunchPlace
from .memory import Estimate
from .option import Option
from .workload import GB, USABLE

KINDS = "ddp, accelerate, trainer, deepspeed or megatron"


def title_of(option: Option) -> str:
    """Return "ZeRO-3 (FSDP2) with recomputed layers and 4 passes per step"."""
    remedies = remedies_of(option)
    return f"{option.title} with {remedies}" if remedies else option.title


def remedies_of(option: Option) -> str:
    """Return "recomputed layers and 4 passes per step"; "" without remedies."""
    change, found = option.change, []
    if change.recompute:
        found.append("recomputed layers")
    if change.passes > 1:
        found.append(f"{change.passes} passes per step")
    if change.fused:
        found.append("a fused optimizer")
    *most, last = found or [""]
    return f"{', '.join(most)} and {last}" if most else last


def size_of(option: Option) -> str:
    """Return "61.0 of 80 GB"."""
    found = option.estimate
    return f"{amount(found.total, 1)} of {found.limit / GB:g} GB"


def amount(size: float, decimals: int) -> str:
    """Return bytes in GB: "61.04", and "1,311" without decimals from 1000 on."""
    number = size / GB
    return f"{number:,.0f}" if number >= 1000 else f"{number:.{decimals}f}"


def beside(estimate: Estimate, place: LaunchPlace) -> str:
    """Return the memory that is needed outside the GPUs: "840 GB of host memory per node"; "" if none."""
    parts = (("host memory", estimate.host), ("disk", estimate.disk))
    sizes = [(name, size * place.gpus.count / GB) for name, size in parts if size]
    return ", ".join(
        f"{f'{size:,.0f}' if size >= 10 else f'{size:.2g}'} GB of {name} per node" for name, size in sizes
    )


def formats(advice: Advice) -> str:
    """Return the assumptions of the estimates: formats, batch and recomputation."""
    case, model = advice.case, advice.case.model
    parts = list(dict.fromkeys(row.form.text for row in advice.rows if not row.needs))
    if case.kind != "ddp" or case.precision:
        parts.append(f"{case.half} computation")
    parts.append(f"{model.micro_batch} × {model.seq} positions per GPU")
    if model.recompute:
        parts.append("layers are recomputed")
    if case.weights is not None and not weights_matter(case):
        parts.append(f"whether the script's weights are {case.weights} changes nothing")
    return "; ".join(parts)


def verdict(advice: Advice) -> list[str]:
    """Return the sentences on the first option, without commands."""
    first = advice.first
    if first is None:
        nothing = f"Nothing fits: {USABLE:.0%} of {advice.case.place.gpus.memory_gb:g} GB are usable."
        helps = any(line(advice)[0] for line in (weights_line, more_line, shorter_line))
        return [nothing] if helps else [nothing, "Take a smaller model, or GPUs with more memory."]
    lead = (
        f"{title_of(first)} is the simplest that fits, with {size_of(first)} per GPU: {first.strategy.why}."
    )
    return [lead, *_needs(first), *_experts(advice)]


def _experts(advice: Advice) -> Iterator[str]:
    """Yield why a mixture of experts is trained without expert parallelism."""
    for row in advice.rows:
        if row.strategy.key == "ep" and not row.fits:
            yield f"{row.title} would take {size_of(row)}: each rank has the rest of the model."


def _needs(option: Option) -> Iterator[str]:
    if option.edits:
        yield f"{option.request.script} has to {'; '.join(option.edits)}."
    if needed := beside(option.estimate, option.place):
        yield f"It takes {needed}."
    if option.request.adopt:
        yield "The whole model has to fit on one GPU before --adopt divides it."
    yield from option.estimate.notes


def weights_line(advice: Advice) -> tuple[str, str]:
    """Return a sentence on weights in bf16, and the command if it is another; ("", "") if they change nothing."""
    other, first = advice.with_bf16, advice.first
    if other is None or other.first is None:
        return "", ""
    second = other.first
    if first is not None and second.form == first.form:
        return "", ""
    if first is not None and (second.layout, second.change) == (first.layout, first.change):
        return f"If the script's weights are bf16, it takes {size_of(second)}.", ""
    text = f"If the script's weights are bf16, {title_of(second)} fits, with {size_of(second)}"
    return _with_edits(text, second), second.command


def more_line(advice: Advice) -> tuple[str, str]:
    """Return a sentence on more GPUs, and the command; ("", "") if these GPUs hold everything."""
    more = advice.more
    if more is None:
        return "", ""
    lead = f"To have everything on the GPUs take {_gpus(more)}"
    if advice.first is None:
        lead = f"{_gpus(more)} are enough"
    text = _with_edits(f"{lead}: {title_of(more)} fits, with {size_of(more)}", more)
    other = advice.with_bf16.more if advice.with_bf16 else None
    if other is not None and other.place != more.place:
        text += f" With bf16 weights {_gpus(other)} are enough."
    return text, more.command


def shorter_line(advice: Advice) -> tuple[str, str]:
    """Return a sentence on shorter sequences, and the command; ("", "") if another way helps."""
    short = advice.shorter
    if short is None:
        return "", ""
    text = f"Sequences of {short.model.seq} positions fit: {title_of(short)}, with {size_of(short)}"
    return _with_edits(text, short), short.command


def plain_line(advice: Advice) -> tuple[str, str]:
    """Return for whom the command is, and the command of a plain DDP script; ("", "") if the kind is known."""
    if advice.case.kind != "unknown" or advice.first is None:
        return "", ""
    for_whom = "parallelize()"
    if advice.first.preset.strategy.kind == "deepspeed":
        for_whom = "deepspeed.initialize()"
    lead = f"This is for a script that calls {for_whom}; for others add --kind {KINDS}."
    if advice.plain is None:
        return lead, ""
    plain = advice.plain
    return _with_edits(f"{lead} With DistributedDataParallel: {title_of(plain)}", plain), plain.command


def _with_edits(text: str, option: Option) -> str:
    """Return the sentence, and others on what the option needs beyond its command."""
    sentences = [text]
    if option.edits:
        sentences.append(f"{option.request.script} has to {'; '.join(option.edits)}")
    if needed := beside(option.estimate, option.place):
        sentences.append(f"It takes {needed}")
    return f"{'. '.join(sentences)}."


def _gpus(option: Option) -> str:
    place = option.place
    if place.nodes == 1:
        return f"{place.gpus.count} GPUs"
    return f"{plural(place.nodes, 'node')} ({place.nodes * place.gpus.count} GPUs)"
