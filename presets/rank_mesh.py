"""The mesh of the ranks: its dimensions by strategy, the place of a rank in it, and batch arithmetic."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from .finding import PlanError

if TYPE_CHECKING:
    from .model import Batch, Mesh, Preset, StrategyKind

WITH = {"schedule": "pp", "microbatches": "pp", "sequence_parallel": "tp"}
"""Option of Mesh → the dimension that it needs."""


def dimensions(preset: Preset, world: int) -> dict[str, int]:
    """Return the mesh as name → size, outermost first. Consecutive ranks differ in the last dimension.

    The remaining ranks are data-parallel: "dp_shard" if the model is sharded, else "dp". Other sizes of 1 are left out.
    Raises PlanError.
    """
    check_mesh(preset)
    mesh, kind = preset.mesh, preset.strategy.kind
    fixed = {"pp": mesh.pp, "dp_replicate": mesh.dp_replicate, "ep": mesh.ep, "cp": mesh.cp, "tp": mesh.tp}
    product = math.prod(fixed.values())
    if world % product:
        raise PlanError(
            f"{_product(fixed)} does not divide the world size {world}: "
            f"take {_round_up(world, product)} ranks, or change [mesh]"
        )
    rest = "dp_shard" if kind in ("fsdp1", "fsdp2") else "dp"
    sizes = {"pp": mesh.pp, "dp_replicate": mesh.dp_replicate, rest: world // product}
    sizes |= {"ep": mesh.ep, "cp": mesh.cp, "tp": mesh.tp}
    return {name: size for name, size in sizes.items() if size > 1 or name == rest}


def check_mesh(preset: Preset) -> None:
    """Raise PlanError if a dimension does not fit the strategy or another option, or an option lacks its dimension."""
    mesh = preset.mesh
    _check_dimensions(mesh, preset.strategy.kind)
    if mesh.pp > 1 and preset.batch.accumulation > 1:
        raise PlanError("batch.accumulation does not work with mesh.pp: set mesh.microbatches instead")
    if preset.strategy.powersgd_rank is not None and max(mesh.pp, mesh.ep) > 1:
        raise PlanError(
            "strategy.powersgd_rank needs pure data parallelism: leave it out, or set mesh.pp and mesh.ep to 1"
        )
    if preset.strategy.powersgd_rank is not None and preset.precision.reduce != "fp32":
        raise PlanError(
            f"strategy.powersgd_rank and precision.reduce {preset.precision.reduce} each change how gradients are sent: "
            "take one of them"
        )
    if mesh.ep > 1 and max(mesh.pp, mesh.cp) > 1:
        raise PlanError("mesh.ep needs pure data parallelism: set mesh.pp and mesh.cp to 1")


def _check_dimensions(mesh: Mesh, kind: StrategyKind) -> None:
    for name in ("pp", "dp_replicate", "ep", "cp", "tp"):
        takers = mesh.takers(name)
        if getattr(mesh, name) > 1 and kind not in takers:
            raise PlanError(
                f"mesh.{name} {getattr(mesh, name)} does not work with strategy {kind}: take {' or '.join(takers)}, "
                f"or mesh.{name} 1"
            )
    usual = type(mesh)()
    for option, needs in WITH.items():
        if getattr(mesh, option) != getattr(usual, option) and getattr(mesh, needs) == 1:
            raise PlanError(
                f"mesh.{option} has no effect without mesh.{needs} above 1: set mesh.{needs}, or leave mesh.{option} out"
            )


def coordinates(sizes: Mapping[str, int], rank: int) -> dict[str, int]:
    """Return the position of `rank` in each dimension."""
    position = {}
    for name, size in reversed(list(sizes.items())):
        rank, position[name] = divmod(rank, size)
    return dict(reversed(list(position.items())))


def mesh_text(sizes: Mapping[str, int]) -> str:
    """Describe a mesh: "8 = pp 2 × dp_shard 2 × tp 2"."""
    return f"{math.prod(sizes.values())} = {' × '.join(f'{name} {size}' for name, size in sizes.items())}"


def data_ranks(sizes: Mapping[str, int]) -> int:
    """Return the number of ranks with different samples."""
    return math.prod(sizes.get(name, 1) for name in ("dp", "dp_shard", "dp_replicate", "ep"))


def check_batch(batch: Batch, sizes: Mapping[str, int]) -> str | None:
    """Return "micro 4 × accumulation 2 × 8 data-parallel ranks = 64", or None if micro is not set.

    Raises PlanError if `batch.total` is a different number.
    """
    if batch.micro is None:
        if batch.total is not None:
            raise PlanError(
                f"batch.total {batch.total} cannot be checked: also set batch.micro, the samples per rank and pass"
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
        raise PlanError(f"batch.total {batch.total} is not {arithmetic}: {remedy}")
    return arithmetic


def _product(fixed: Mapping[str, int]) -> str:
    parts = [f"{name} {size}" for name, size in fixed.items() if size > 1]
    product = math.prod(fixed.values())
    return f"mesh {' × '.join(parts)} = {product}" if len(parts) > 1 else f"mesh {parts[0]}"


def _round_up(world: int, product: int) -> int:
    return product * max(1, -(-world // product))
