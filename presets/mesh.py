"""The ranks as a mesh with named dimensions: sizes, coordinates, and the arithmetic of a batch. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping

from .errors import PlanError
from .model import MESH_OPTIONS, Batch, Mesh, Preset

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
    found = {}
    for name, size in reversed(list(sizes.items())):
        rank, found[name] = divmod(rank, size)
    return dict(reversed(list(found.items())))


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
    said = (
        f"micro {batch.micro} × accumulation {batch.accumulation} × {ranks} data-parallel ranks = {product}"
    )
    if batch.total is not None and batch.total != product:
        per_pass = batch.micro * ranks
        fits = not batch.total % per_pass
        remedy = (
            f"accumulation {batch.total // per_pass} gives it" if fits else f"take a multiple of {per_pass}"
        )
        raise PlanError(f"batch.total {batch.total} is not {said}: {remedy}.")
    return said


def _product(fixed: Mapping[str, int]) -> str:
    parts = [f"{name} {size}" for name, size in fixed.items() if size > 1]
    product = math.prod(fixed.values())
    return f"mesh {' × '.join(parts)} = {product}" if len(parts) > 1 else f"mesh {parts[0]}"


def _round_up(world: int, product: int) -> int:
    return product * max(1, -(-world // product))
