"""Parallel sizes of Megatron-LM and NeMo in a script's arguments: the mesh, and checks of the sizes.

Names and rules follow Megatron-LM's arguments and `parallel_state` (tensor parallelism innermost, then context, data
and pipeline; experts are separate groups of the same ranks), and NeMo's overrides (`trainer.strategy.NAME=2`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..text_formats import whole

SIZES: Mapping[str, str] = {
    "tensor_model_parallel_size": "tp",
    "pipeline_model_parallel_size": "pp",
    "context_parallel_size": "cp",
    "expert_model_parallel_size": "ep",
    "expert_tensor_parallel_size": "etp",
}
"""Name of an argument → dimension."""
DATA_OUTSIDE = "use_tp_pp_dp_mapping"
"""Argument that makes data parallelism the outermost dimension instead of the pipeline."""
ELSEWHERE = ("yaml_cfg", "use_checkpoint_args", "factory")
"""Arguments that may load sizes from elsewhere."""


@dataclass(frozen=True, slots=True)
class MegatronArguments:
    words: Mapping[str, str]
    """Name with `_` → the word on the command line, for each of SIZES with a number."""
    sizes: Mapping[str, int]
    """Dimension → size, for the sizes on the command line."""
    data_outside: bool = False
    elsewhere: str = ""
    """The argument that may load further sizes, or ""."""

    def size(self, dimension: str) -> int:
        """Return a size, 1 by default. Experts default to the tensor parallelism of the other layers."""
        return self.sizes.get(dimension, self.size("tp") if dimension == "etp" else 1)

    @property
    def text(self) -> str:
        """Return "tp 2 × pp 4"."""
        return " × ".join(f"{name} {size}" for name, size in self.sizes.items())


def read(args: Sequence[str]) -> MegatronArguments | None:
    """Return the sizes in a script's arguments, or None if there are none."""
    values = dict(_values(args))
    numbers = {name: _number(value) for name, (_, value) in values.items()}
    words = {name: values[name][0] for name in SIZES if numbers.get(name)}
    if not words:
        return None
    sizes = {SIZES[name]: numbers[name] for name in words}
    elsewhere = next((values[name][0] for name in ELSEWHERE if name in values), "")
    return MegatronArguments(words, sizes, DATA_OUTSIDE in values, elsewhere)


def _number(text: str) -> int:
    return whole(text) or 0


def _values(args: Sequence[str]) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield the last part of a name with `_` → its word and value: --name 2, --name=2, a.b.name=2."""
    for at, word in enumerate(args):
        name, equals, value = word.partition("=")
        if not name.startswith("--") and not equals:
            continue
        following = next(iter(args[at + 1 : at + 2]), "")
        plain = name.lstrip("-+~").rpartition(".")[2].replace("-", "_").strip()
        yield plain, (name, value.strip() if equals else following)


def dimensions(asked: MegatronArguments, world: int) -> dict[str, int]:
    """Return name → size, outermost first, in Megatron's rank order, or {} if the sizes do not divide `world`.

    Experts are a dimension only if their groups lie within data parallelism.
    """
    pp, cp, tp, ep = (asked.size(name) for name in ("pp", "cp", "tp", "ep"))
    data, left = divmod(world, pp * cp * tp)
    if left:
        return {}
    within = ep > 1 and (cp, asked.size("etp"), data % ep) == (1, tp, 0)
    inner = {"dp": data // ep, "ep": ep} if within else {"dp": data}
    sizes = {**inner, "pp": pp, "cp": cp} if asked.data_outside else {"pp": pp, **inner, "cp": cp}
    return {name: size for name, size in {**sizes, "tp": tp}.items() if size > 1 or name == "dp"}


def of_command(
    words: Sequence[str], nnodes: int | None = None, per_node: int | None = None
) -> dict[str, int]:
    """Return the mesh of any command, or {}.

    `nnodes` and `per_node` are for options of torchrun with a variable. If the number of ranks is unknown, data
    parallelism is 1, and gets the available ranks at run time.
    """
    asked = read(words)
    if asked is None:
        return {}
    values = {name: _number(value) for name, (_, value) in _values(words)}
    world = (values.get("nnodes") or nnodes or 0) * (values.get("nproc_per_node") or per_node or 0)
    if world and (known := dimensions(asked, world)):
        return known
    fixed = asked.size("pp") * asked.size("cp") * asked.size("tp")
    return dimensions(asked, fixed * (asked.size("ep") if asked.size("cp") == 1 else 1))


def note(script: str, asked: MegatronArguments, sizes: Mapping[str, int]) -> str:
    """Return one sentence on how the script divides its model."""
    lead = f"{script} divides its model by its own arguments ({asked.text}): the preset's strategy does not change that"
    if not sizes:
        return f"{lead}, and its mesh is not known, because they do not divide the ranks."
    apart = asked.size("ep") > 1 and "ep" not in sizes
    experts = (
        "; its groups of experts lie across the dimensions of the mesh, which does not name them"
        if apart
        else ""
    )
    more = (
        f"; {asked.elsewhere} may give further sizes, which are not known from here"
        if asked.elsewhere
        else ""
    )
    return f"{lead}{experts}{more}."


@dataclass(frozen=True, slots=True)
class Misfit:
    """A size that does not fit."""

    where: str
    """The argument as written."""
    value: str
    text: str
    remedy: str


def misfit(asked: MegatronArguments, world: int) -> Misfit | None:
    """Return the sizes whose product does not divide the number of ranks, or None."""
    dense, experts = ("tp", "cp", "pp"), ("etp", "ep", "pp")
    for names in (dense, experts) if {"ep", "etp"} & asked.sizes.keys() else (dense,):
        product = math.prod(asked.size(name) for name in names)
        if world % product:
            shown = [f"{name} {asked.size(name)}" for name in names if asked.size(name) > 1]
            total = f" = {product}" if shown[1:] else ""
            text = f"{' × '.join(shown)}{total} does not divide the {world} ranks."
            where = next(word for name, word in asked.words.items() if asked.sizes[SIZES[name]] > 1)
            fitting = ", ".join(str(size) for size in range(1, min(world, 64) + 1) if world % size == 0)
            return Misfit(where, str(product), text, f"Make the product one of {fitting}.")
    return None
