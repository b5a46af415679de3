"""The device mesh: named dimensions, coordinates, batch arithmetic, and which ranks share a node. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from .finding import PlanError

if TYPE_CHECKING:
    from .model import Batch, Preset

# -----------------------------------------------------------------------------------------------------------
# The ranks as a mesh with named dimensions: sizes, coordinates, and the arithmetic of a batch. Pure.


WITH = {"schedule": "pp", "microbatches": "pp", "sequence_parallel": "tp"}
"""Option of Mesh → the dimension without which it does nothing."""


def dimensions(preset: Preset, world: int) -> dict[str, int]:
    """Name → size, outermost first; the rank runs fastest in the last. Sizes of 1 are left out, but for the data's.

    Data parallelism gets what is left: "dp_shard" where the model is in shards, else "dp". Raises PlanError.
    """
    check(preset)
    mesh, kind = preset.mesh, preset.strategy.kind
    fixed = {"pp": mesh.pp, "dp_replicate": mesh.dp_replicate, "ep": mesh.ep, "cp": mesh.cp, "tp": mesh.tp}
    product = math.prod(fixed.values())
    if world % product:
        raise PlanError(
            f"{_product(fixed)} does not divide the world size {world}: "
            f"take {_round_up(world, product)} ranks, or change [mesh]."
        )
    rest = "dp_shard" if kind in ("fsdp1", "fsdp2") else "dp"
    sizes = {"pp": mesh.pp, "dp_replicate": mesh.dp_replicate, rest: world // product}
    sizes |= {"ep": mesh.ep, "cp": mesh.cp, "tp": mesh.tp}
    return {name: size for name, size in sizes.items() if size > 1 or name == rest}


def check(preset: Preset) -> None:
    """Raises PlanError where the strategy has no use for a dimension, or an option lacks its dimension."""
    from .model import MESH_OPTIONS, Mesh  # `ls` and `status` name dimensions without a preset

    mesh, kind = preset.mesh, preset.strategy.kind
    for name in ("pp", "dp_replicate", "ep", "cp", "tp"):
        if getattr(mesh, name) > 1 and name not in MESH_OPTIONS[kind]:
            takers = [other for other, names in MESH_OPTIONS.items() if name in names]
            raise PlanError(
                f"mesh.{name} {getattr(mesh, name)} does not go with strategy {kind}: take {' or '.join(takers)}, "
                f"or mesh.{name} 1."
            )
    usual = Mesh()
    for option, needs in WITH.items():
        if getattr(mesh, option) != getattr(usual, option) and getattr(mesh, needs) == 1:
            raise PlanError(
                f"mesh.{option} does nothing without mesh.{needs} above 1: set it, or leave it out."
            )
    if mesh.pp > 1 and preset.batch.accumulation > 1:
        raise PlanError(
            "batch.accumulation does not go with mesh.pp: a pipeline accumulates over its mesh.microbatches."
        )
    if mesh.ep > 1 and max(mesh.pp, mesh.cp) > 1:
        raise PlanError("mesh.ep goes with data parallelism alone: leave mesh.pp and mesh.cp at 1.")


def coordinates(sizes: Mapping[str, int], rank: int) -> dict[str, int]:
    """Where `rank` is in each dimension."""
    position = {}
    for name, size in reversed(list(sizes.items())):
        rank, position[name] = divmod(rank, size)
    return dict(reversed(list(position.items())))


def text(sizes: Mapping[str, int]) -> str:
    """ "8 = pp 2 × dp_shard 2 × tp 2"."""
    return f"{math.prod(sizes.values())} = {' × '.join(f'{name} {size}' for name, size in sizes.items())}"


def data_ranks(sizes: Mapping[str, int]) -> int:
    """How many ranks see different samples."""
    return math.prod(sizes.get(name, 1) for name in ("dp", "dp_shard", "dp_replicate", "ep"))


def check_batch(batch: Batch, sizes: Mapping[str, int]) -> str | None:
    """The arithmetic of a step, "64 = micro 4 × accumulation 2 × 8 data-parallel ranks"; None where micro is not said.

    Raises PlanError where `batch.total` is another number.
    """
    if batch.micro is None:
        if batch.total is not None:
            raise PlanError(
                f"batch.total {batch.total} cannot be checked: say batch.micro too, the samples a rank takes at once."
            )
        return None
    ranks = data_ranks(sizes)
    product = batch.micro * batch.accumulation * ranks
    arithmetic = (
        f"micro {batch.micro} × accumulation {batch.accumulation} × {ranks} data-parallel ranks = {product}"
    )
    if batch.total is not None and batch.total != product:
        per_pass = batch.micro * ranks
        fits = not batch.total % per_pass
        remedy = (
            f"accumulation {batch.total // per_pass} gives it" if fits else f"take a multiple of {per_pass}"
        )
        raise PlanError(f"batch.total {batch.total} is not {arithmetic}: {remedy}.")
    return arithmetic


def _product(fixed: Mapping[str, int]) -> str:
    parts = [f"{name} {size}" for name, size in fixed.items() if size > 1]
    product = math.prod(fixed.values())
    return f"mesh {' × '.join(parts)} = {product}" if len(parts) > 1 else f"mesh {parts[0]}"


def _round_up(world: int, product: int) -> int:
    return product * max(1, -(-world // product))


# -----------------------------------------------------------------------------------------------------------
# How many ranks a plan starts, and on which backend.


CPU_RANKS_PER_CORE = 8
"""More ranks a core than this is taken for a typing error."""


@dataclass(frozen=True, slots=True)
class Ranks:
    """What a topology comes to on one node."""

    nproc: int
    """On one node."""
    backend: Literal["nccl", "gloo"]
    notes: tuple[str, ...] = ()


def parse_nproc(text: int | str) -> int | Literal["gpu", "cpu", "auto"]:
    """A number of ranks or "gpu", "cpu", "auto". Raises PlanError."""
    match text:
        case "gpu" | "cpu" | "auto":
            return text
    try:
        number = int(text)
    except ValueError:
        raise PlanError(f"nproc_per_node {text!r} is neither a number nor gpu, cpu or auto.") from None
    if number < 1:
        raise PlanError(f"nproc_per_node {number} starts no rank: give 1 or more.")
    return number


def parse_nnodes(text: int | str) -> tuple[int | None, int]:
    """Fewest and most nodes of "N" (fewest None) or "MIN:MAX", an elastic run. Raises PlanError."""
    low, colon, high = str(text).partition(":")
    try:
        fewest, most = int(low), int(high) if colon else int(low)
    except ValueError:
        raise PlanError(f"nnodes {text!r} is neither a number nor MIN:MAX: write 4, or 2:4.") from None
    if colon and not 1 <= fewest <= most:
        raise PlanError(f"nnodes {text} is no range of nodes: write MIN:MAX with 1 ≤ MIN ≤ MAX.")
    return (fewest if fewest < most else None), most


def check_nodes(preset: Preset, nodes: int | None) -> None:
    """Raises PlanError unless `nodes` machines (None: as many as asked for) can hold the preset."""
    nnodes, fewest = preset.topology.nnodes, preset.topology.nnodes_min
    if nnodes < 1:
        raise PlanError(f"nnodes {nnodes} starts nothing: give 1.")
    if fewest is not None and not 1 <= fewest <= nnodes:
        raise PlanError(f"nnodes_min {fewest} is not between 1 and nnodes {nnodes}: give one that is.")
    if nodes is None or nnodes <= nodes:
        return
    if nodes == 1:
        raise PlanError(
            f"nnodes {nnodes} needs more than this machine, where distui starts its runs: give 1."
        )
    raise PlanError(f"nnodes {nnodes} > {nodes} nodes that there are: give at most {nodes}.")


def ranks(preset: Preset, gpus: int, cores: int, nodes: int | None = 1) -> Ranks:
    """Ranks and backend of `preset` on each node, with that many visible GPUs and cores there.

    `nodes` there are, None: as many as asked for. Raises PlanError.
    """
    check_nodes(preset, nodes)
    where = "this machine" if nodes == 1 else "a node"
    asked = parse_nproc(preset.topology.nproc_per_node)
    nproc = _number(asked, gpus, cores, where)
    if preset.strategy.kind == "single" and nproc > 1:
        raise PlanError(f"strategy single is one rank, not nproc_per_node {nproc}: take the preset ddp.")
    on_gpu = gpus > 0 and asked != "cpu"
    if on_gpu and nproc > gpus:
        raise PlanError(
            f"nproc_per_node {nproc} > {gpus} {_gpus(gpus)}: give at most {gpus}, "
            "or --env CUDA_VISIBLE_DEVICES= to run on CPU."
        )
    if not on_gpu and nproc > cores * CPU_RANKS_PER_CORE:
        most = cores * CPU_RANKS_PER_CORE
        raise PlanError(
            f"nproc_per_node {nproc} > {cores} cores × {CPU_RANKS_PER_CORE} = {most}: give at most {most}."
        )
    if preset.strategy.kind == "single" and preset.topology.nnodes > 1:
        raise PlanError(
            f"strategy single is one rank, not nnodes {preset.topology.nnodes}: take the preset ddp."
        )
    return Ranks(nproc, "nccl" if on_gpu else "gloo", _notes(gpus, asked, nproc, where))


def _number(asked: int | str, gpus: int, cores: int, where: str) -> int:
    if asked == "gpu" and not gpus:
        raise PlanError(
            f"nproc_per_node gpu, but no GPU is visible on {where}: give a number, cpu or auto."
        )
    if asked == "gpu" or (asked == "auto" and gpus):
        return gpus
    return cores if isinstance(asked, str) else asked


def _notes(gpus: int, asked: int | str, nproc: int, where: str) -> tuple[str, ...]:
    if not gpus:
        ranks_of = f", {nproc} ranks (one a core)" if asked == "auto" and nproc > 1 else ""
        return (f"No GPU is visible on {where}: backend gloo{ranks_of}.",)
    if asked == "cpu":
        return (f"The ranks run on CPU as asked: backend gloo; the {_gpus(gpus)} of {where} stay idle.",)
    if nproc < gpus:
        return (f"Uses {nproc} of {gpus} GPUs.",)
    return ()


def _gpus(count: int) -> str:
    return "GPU" if count == 1 else "GPUs"
