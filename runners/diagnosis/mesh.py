"""Coordinates of ranks in the mesh of the plan."""

from __future__ import annotations

import math
from collections.abc import Mapping

from ...presets import rank_mesh
from ..run.state import RunState

DATA = ("dp_shard", "dp")
"""Dimensions that adapt to the number of ranks in an elastic run."""


def sizes(state: RunState) -> dict[str, int]:
    """Mesh dimensions of the current attempt; empty if the plan has none, or the number of ranks does not fit."""
    plan = state.plan
    if plan is None or not plan.mesh or not state.attempts:
        return {}
    dims, world = dict(plan.mesh), state.world_size
    data = next((name for name in DATA if name in dims), None)
    if data is not None:
        dims[data], left = divmod(world, math.prod(dims.values()) // dims[data])
        if left:
            return {}
    return dims if math.prod(dims.values()) == world else {}


def coordinates(dims: Mapping[str, int], rank: int) -> dict[str, int]:
    """Coordinates of one rank; empty if `dims` (from `sizes`) is empty."""
    return rank_mesh.coordinates(dims, rank) if dims else {}


def short(dims: Mapping[str, int], rank: int) -> str:
    """Coordinates in short: "pp1 sh0 tp1"; "" for a single dimension, which equals the rank."""
    names = {"dp_replicate": "rep", "dp_shard": "sh"}
    if len(dims) < 2:
        return ""
    return " ".join(f"{names.get(name, name)}{at}" for name, at in coordinates(dims, rank).items())
