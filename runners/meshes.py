"""Where each rank of a run is in the mesh of its plan."""

from __future__ import annotations

import math
from collections.abc import Mapping

from ..presets import mesh
from .state import RunState

DATA = ("dp_shard", "dp")
"""The dimension that takes the ranks there are: an elastic run changes it."""


def sizes(state: RunState) -> dict[str, int]:
    """Dimensions of the present attempt; empty where the plan names none, or the ranks do not fit into them."""
    plan = state.plan
    if plan is None or not plan.mesh or not state.attempts:
        return {}
    found, world = dict(plan.mesh), state.attempts[-1].world_size
    data = next((name for name in DATA if name in found), None)
    if data is not None:
        found[data], left = divmod(world, math.prod(found.values()) // found[data])
        if left:
            return {}
    return found if math.prod(found.values()) == world else {}


def coordinates(found: Mapping[str, int], rank: int) -> dict[str, int]:
    """Of one rank; empty where `found` (of `sizes`) is."""
    return mesh.coordinates(found, rank) if found else {}


def short(found: Mapping[str, int], rank: int) -> str:
    """ "pp1 sh0 tp1"; "" where there is but one dimension, which the rank's number says already."""
    names = {"dp_replicate": "rep", "dp_shard": "sh"}
    if len(found) < 2:
        return ""
    return " ".join(f"{names.get(name, name)}{at}" for name, at in coordinates(found, rank).items())
