"""The strategies of an advice, and the kinds of scripts that obey them: strategies.toml as objects. Pure."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from typing import Any, Literal

from .workload import NodeGpus, Shape

Needs = Literal["", "edit", "host", "disk"]
LEAST_PIECE = 2048
"""Fewest positions of a sequence that context parallelism leaves to a rank."""
MOST_SIZE = 1 << 12
"""Largest size of a mesh dimension to try."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ScriptKind:
    """What parallelizes the model in a script, and which assumptions a command line can give it."""

    key: str
    text: str
    sets: tuple[str, ...] = ()
    """Tables of a preset that act: "precision", "batch"; "accumulation" for batch.accumulation."""
    recompute: tuple[str, ...] = ()
    """Strategies in which strategy.activation_checkpointing acts."""
    args: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Assumption → the script's own arguments for it."""
    half: str = "fp32"
    """Format of the computation on a GPU without bf16."""
    fused: bool = False
    """True if the optimizer is torch's fused one by default."""
    edit: str = ""
    """The kind that an edit makes of it, or ""."""

    def args_for(self, assumption: str, **values: object) -> tuple[str, ...]:
        """Return the script's arguments for one assumption."""
        return tuple(word.format(**values) for word in self.args.get(assumption, ()))


@dataclass(frozen=True, kw_only=True, slots=True)
class Strategy:
    """One way to distribute a model over the ranks."""

    key: str
    title: str
    preset: str
    scripts: tuple[str, ...]
    why: str
    ranks: Literal["one", "several", "nodes", "any"] = "several"
    sizes: tuple[str, ...] = ()
    """Dimensions of the mesh whose sizes are chosen."""
    args: tuple[str, ...] = ()
    """The script's arguments that divide the model."""
    needs: Needs = ""
    models: str = ""
    """ "experts" if it suits only mixtures of experts."""
    edit: str = ""
    """What the script has to do."""

    def suits(self, model: Shape, gpus: NodeGpus, nodes: int) -> bool:
        """Return True if the strategy makes sense for this model on these nodes."""
        if self.models == "experts" and not model.experts:
            return False
        ranks = gpus.count * nodes
        allowed = {
            "one": ranks == 1,
            "several": ranks > 1,
            "nodes": min(nodes, gpus.count) > 1,
            "any": True,
        }
        return allowed[self.ranks]


@functools.cache
def _tables() -> Mapping[str, Any]:
    return tomllib.loads(resources.files(__package__).joinpath("strategies.toml").read_text("utf-8"))


def _tuples(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in row.items()}


@functools.cache
def script_kinds() -> Mapping[str, ScriptKind]:
    """Return the kinds of scripts by their key."""
    rows = [{**_tuples(row), "args": _tuples(row.get("args", {}))} for row in _tables()["kind"]]
    return {row["key"]: ScriptKind(**row) for row in rows}


@functools.cache
def strategies(kind: str) -> Sequence[Strategy]:
    """Return the strategies that a kind of script can obey, the simplest first."""
    rows = [Strategy(**_tuples(row)) for row in _tables()["strategy"]]
    return [row for row in rows if kind in row.scripts]


def mesh_sizes(strategy: Strategy, model: Shape, gpus: NodeGpus, nodes: int) -> list[dict[str, int]]:
    """Return the possible sizes of the strategy's dimensions, the least division of the model first.

    Experts and matrices that several nodes share come last, for they communicate in every layer.
    """
    ranks = gpus.count * nodes
    found: list[dict[str, int]] = [{}]
    for name in strategy.sizes:
        candidates = _sizes(name, model, gpus, nodes)
        found = [{**sizes, name: size} for sizes in found for size in candidates]
    return sorted(
        (sizes for sizes in found if _fits_ranks(sizes, ranks)),
        key=lambda sizes: (
            sizes.get("tp", 1) * sizes.get("ep", 1) > gpus.count,
            _product(sizes),
            -sizes.get("tp", 0),
        ),
    )


def _sizes(name: str, model: Shape, gpus: NodeGpus, nodes: int) -> list[int]:
    """Return the possible sizes of one dimension above 1."""
    ranks = gpus.count * nodes
    if name == "dp_replicate":
        return [nodes]
    powers = [1 << power for power in range(1, MOST_SIZE.bit_length())]
    sizes = [size for size in powers if ranks % size == 0]
    if name == "tp":
        return [size for size in sizes if gpus.count % size == 0 and model.hidden % size == 0]
    if name == "pp":
        return [size for size in sizes if size <= model.layers]
    if name == "cp":
        return [size for size in sizes if model.seq // size >= LEAST_PIECE]
    return [size for size in sizes if model.expert_count % size == 0]


def _fits_ranks(sizes: Mapping[str, int], ranks: int) -> bool:
    """Return True if the dimensions divide the ranks. The ranks of experts are data-parallel ones."""
    others = _product({name: size for name, size in sizes.items() if name != "ep"})
    return ranks % _product(sizes) == 0 and ranks // others >= sizes.get("ep", 1)


def _product(sizes: Mapping[str, int]) -> int:
    product = 1
    for size in sizes.values():
        product *= size
    return product


def computes_in_bf16(gpus: NodeGpus) -> bool:
    """Return True if the GPU has bf16: NVIDIA's Ampere and newer, and AMD's."""
    return not gpus.name.startswith(tuple(_tables()["without_bf16"]))
