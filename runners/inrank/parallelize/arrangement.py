"""The ranks as a mesh: which coordinates this one has, and the groups in which they talk."""

from __future__ import annotations

import math
from typing import Any, Dict, NamedTuple, Optional

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from .settings import ParallelizeError, Settings, rank


def sizes(found: Settings, world: int) -> Dict[str, int]:
    """Every dimension with its size, outermost first. Raises ParallelizeError where the world is no multiple."""
    sharded = found.strategy in ("fsdp1", "fsdp2")
    data = "dp_shard" if sharded else "dp"
    names = ("pp", "dp_replicate", data, "ep", "cp", "tp")
    fixed = {name: found.size(name) for name in names if name != data}
    product = math.prod(fixed.values())
    if world % product:
        said = " × ".join(f"{name} {size}" for name, size in fixed.items() if size > 1)
        raise ParallelizeError(f"{said} = {product} does not divide the world size {world}")
    return {name: fixed.get(name, world // product) for name in names}


def coordinates(found: Settings, world: int, of: Optional[int] = None) -> Dict[str, int]:
    """Where a rank (this one if none is named) is in each dimension; the last one runs fastest."""
    left, at = rank() if of is None else of, {}
    for name, size in reversed(list(sizes(found, world).items())):
        left, at[name] = divmod(left, size)
    return dict(reversed(list(at.items())))


def data_ranks(found: Settings, world: int) -> int:
    """How many ranks see different samples."""
    return world // (found.size("pp") * found.size("cp") * found.size("tp"))


def data_rank(found: Settings, world: int) -> int:
    """Which of them this one is; ranks of one pipeline, sequence or matrix product share it."""
    all_sizes, at, number = sizes(found, world), coordinates(found, world), 0
    for name in ("dp_replicate", "dp", "dp_shard", "ep"):
        if name in all_sizes:
            number = number * all_sizes[name] + at[name]
    return number


class Groups(NamedTuple):
    """Process groups of this rank's arrangement; None where the dimension has one rank, or there are no ranks."""

    mesh: Any
    """DeviceMesh (pp, dp_replicate, data, tp) without dimensions of 1; "data", which is always there, are the
    ranks with other samples or another piece of them."""
    cp: Optional[dist.ProcessGroup]
    experts: Optional[DeviceMesh]
    """(dp, ep)."""


def arrange(found: Settings, where: torch.device, world: int) -> Groups:
    """Make the groups; every rank must. Raises ParallelizeError."""
    size = sizes(found, world)
    pp, replicate, cp, tp, ep = (size[name] for name in ("pp", "dp_replicate", "cp", "tp", "ep"))
    if ep > 1 and (pp > 1 or cp > 1):
        raise ParallelizeError("ep goes with data parallelism alone: leave pp and cp at 1")
    inside = world // (pp * replicate * tp)
    shape = {"pp": pp, "dp_replicate": replicate, "data": inside, "tp": tp}
    shape = {name: size for name, size in shape.items() if size > 1 or name == "data"}
    mesh = init_device_mesh(where.type, tuple(shape.values()), mesh_dim_names=tuple(shape))
    pieces = experts = None
    if cp > 1:
        around = (world // (cp * tp), cp, tp)
        pieces = init_device_mesh(where.type, around, mesh_dim_names=("rest", "cp", "tp"))["cp"].get_group()
    if ep > 1:
        experts = init_device_mesh(where.type, (world // ep, ep), mesh_dim_names=("dp", "ep"))
    return Groups(mesh, pieces, experts)
