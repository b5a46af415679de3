"""The rule for sizes of a model that the mesh does not divide (L44)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..finding import Finding
from ..model import Preset
from ..script_facts import COPY, PARALLELIZE, Script, parse
from ..script_values import Values
from ..text_formats import Unreadable
from .lint_rules import issue

SIZE_NAMES: Mapping[str, frozenset[str]] = {
    "heads": frozenset({"heads", "n_head", "n_heads", "nhead", "num_heads", "num_attention_heads"}),
    "key-value heads": frozenset({"kv_heads", "n_kv_heads", "num_kv_heads", "num_key_value_heads"}),
    "layers": frozenset({"layers", "n_layer", "n_layers", "num_layers", "num_hidden_layers", "depth"}),
    "experts": frozenset({"experts", "n_experts", "num_experts", "num_local_experts"}),
    "positions": frozenset(
        {"block", "block_size", "seq_len", "seq_length", "sequence_length", "context_length"}
    ),
    "samples": frozenset({"batch", "batch_size", "micro_batch", "micro_batch_size"}),
    "features": frozenset({"width", "dim", "d_model", "n_embd", "hidden_size", "embed_dim"}),
}
"""Counted things → names of options and constants with their number."""
DIVIDED = (("heads", "tp"), ("key-value heads", "tp"), ("positions", "cp"), ("experts", "ep"))
"""Counted things, and the dimension of the mesh that divides each."""


@dataclass(frozen=True, slots=True)
class Size:
    """A number in the script."""

    count: int
    what: str
    name: str
    """Name of the option or constant."""


def check_sizes(
    sources: Sequence[str | bytes | None], args: Sequence[str], mesh: Mapping[str, int], preset: Preset
) -> Iterator[Finding]:
    """Check the model's sizes against the mesh. Never raises.

    `sources`: the script and its imported files from the same folder. `args`: the script's arguments.
    """
    scripts = list(_parsed(sources))
    if not any(script.find(PARALLELIZE, COPY) for script in scripts):
        return
    sizes = _sizes([Values(script, args) for script in scripts])
    for what, dimension in DIVIDED:
        if what in sizes:
            yield from _divided(sizes[what], dimension, mesh.get(dimension, 1))
    if preset.mesh.sequence_parallel and "positions" in sizes:
        yield from _sequence_parts(sizes["positions"], mesh)
    yield from _features(sizes.get("features"), sizes.get("heads"))
    pp = mesh.get("pp", 1)
    if pp > 1:
        yield from _pipeline(sizes, pp, preset)


def _parsed(sources: Sequence[str | bytes | None]) -> Iterator[Script]:
    for source in sources:
        try:
            if source is not None:
                yield parse(source)
        except Unreadable:
            continue


def _sizes(by_script: Sequence[Values]) -> dict[str, Size]:
    """Return the sizes by the counted thing, from options, or from constants if there is no option.

    A thing that several options or constants count is left out.
    """
    sizes: dict[str, Size] = {}
    for what, names in SIZE_NAMES.items():
        numbers = _options(by_script, names) or _constants(by_script, names)
        if len(numbers) == 1:
            name, value = numbers[0]
            count = _number(value)
            if count:
                sizes[what] = Size(count, what, name)
    return sizes


def _options(by_script: Sequence[Values], names: frozenset[str]) -> list[tuple[str, object]]:
    found: list[tuple[str, object]] = []
    for values in by_script:
        for option in values.options:
            if option.dest in names:
                word = values.word(option)
                found.append((option.name, values.constant(option.default) if word is None else word))
    return found


def _constants(by_script: Sequence[Values], names: frozenset[str]) -> list[tuple[str, object]]:
    found: list[tuple[str, object]] = []
    for values in by_script:
        for name, assigned in values.assigned.items():
            if name.lower() in names and len(assigned) == 1:
                found.append((name, values.constant(assigned[0])))
    return found


def _number(value: object) -> int:
    """Return a number above 0, else 0."""
    if isinstance(value, str) and value.isdecimal() and len(value) < 12:
        return int(value)
    return value if type(value) is int and value > 0 else 0


def _divided(size: Size, dimension: str, ranks: int, parts: int = 1) -> Iterator[Finding]:
    """Check that `ranks` divide a size. `parts`: number of parts that the size is cut into first."""
    count = size.count // parts
    if count % ranks == 0:
        return
    text = f"{count} {size.what} cannot be divided by {dimension} {ranks}: {_ratio(count, ranks)}."
    *others, last = [str(n) for n in range(1, min(count, 64) + 1) if count % n == 0]
    fitting = f"{', '.join(others)} or {last}" if others else last
    remedy = f"Give a multiple of {ranks * parts} with {size.name}, or set mesh.{dimension} to {fitting}."
    yield issue("L44", f"mesh.{dimension}", text, value=str(ranks), remedy=remedy)


def _sequence_parts(positions: Size, mesh: Mapping[str, int]) -> Iterator[Finding]:
    """Check that tp divides the positions that cp leaves to a rank."""
    cp = mesh.get("cp", 1)
    if positions.count % cp == 0:
        yield from _divided(positions, "tp", mesh.get("tp", 1), cp)


def _features(features: Size | None, heads: Size | None) -> Iterator[Finding]:
    if features and heads and features.count % heads.count:
        ratio = _ratio(features.count, heads.count)
        text = f"{features.count} {features.what} cannot be divided by {heads.count} heads: {ratio}."
        remedy = (
            f"Give a multiple of {heads.count} with {features.name}, or another number of {heads.name}."
        )
        yield issue("L44", features.name, text, value=str(features.count), remedy=remedy)


def _pipeline(sizes: Mapping[str, Size], pp: int, preset: Preset) -> Iterator[Finding]:
    layers = sizes.get("layers")
    if layers and layers.count < pp:
        text = f"{layers.count} layers cannot be cut into {pp} stages (pp {pp}): each needs one."
        remedy = f"Give {pp} layers or more with {layers.name}, or set mesh.pp to {layers.count} or less."
        yield issue("L44", "mesh.pp", text, value=str(pp), remedy=remedy)
    yield from _microbatches(sizes.get("samples"), pp, preset)


def _microbatches(samples: Size | None, pp: int, preset: Preset) -> Iterator[Finding]:
    """Check that the samples of a pass can be cut into the pipeline's microbatches."""
    if preset.batch.micro:
        micro, name = preset.batch.micro, "batch.micro"
    elif samples:
        micro, name = samples.count, samples.name
    else:
        return
    pieces = preset.mesh.microbatches or 2 * pp
    whole = micro * preset.batch.accumulation
    if whole % pieces:
        text = f"{whole} samples cannot be cut into {pieces} microbatches: {_ratio(whole, pieces)}."
        remedy = f"Give a multiple of {pieces} samples with {name}, or change mesh.microbatches."
        yield issue("L44", "mesh.microbatches", text, value=str(pieces), remedy=remedy)


def _ratio(count: int, parts: int) -> str:
    return f"{count} / {parts} = {count / parts:.4g}"
