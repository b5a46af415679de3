"""The table [sky] of a preset: keys of a SkyPilot task, under what a launch says of its nodes. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from .. import schema
from ..errors import PlanError
from .skypilot import Resources

OWN = {
    "name": "the run's name, --name",
    "num_nodes": "topology.nnodes",
    "run": "the script behind --",
    "secrets": "--env, from your shell",
}
"""Keys that distui sets itself → where they are said instead."""

FIELDS = {"infra": "infra", "cpus": "cpus", "memory": "memory", "region": "region", "image_id": "image",
          "network_tier": "network_tier"}  # fmt: skip
"""Key of a task's resources → the field of Resources that a plan reads."""


def filled(wish: Resources, table: Mapping[str, Any]) -> Resources:
    """`wish` with what the table says of nodes and the launch does not. Raises PlanError."""
    for key, instead in OWN.items():
        if key in table:
            raise PlanError(f"sky.{key} is distui's own: say it by {instead}, and take it out of [sky].")
    wanted = table.get("resources", {})
    if not isinstance(wanted, Mapping):
        raise PlanError(f"sky.resources is {schema.show(wanted)}: write a table, [sky.resources].")
    said: dict[str, Any] = {
        field: str(wanted[key]) for key, field in FIELDS.items() if wanted.get(key) is not None
    }
    if wanted.get("accelerators") is not None:
        said["gpus"] = _accelerators(wanted["accelerators"])
    said |= {key: str(table[key]) for key in ("workdir", "setup") if table.get(key) is not None}
    return replace(wish, **{name: value for name, value in said.items() if getattr(wish, name) is None})


def _accelerators(value: object) -> str:
    """ "H100:8" of any of SkyPilot's spellings for one kind. Raises PlanError."""
    if isinstance(value, Mapping) and len(value) == 1:
        ((name, count),) = value.items()
        return f"{name}:{count}"
    if isinstance(value, str):
        return value
    raise PlanError("sky.resources.accelerators names several kinds: give one, as in H100:8, or --any-of.")


def completed(task: Mapping[str, Any], table: Mapping[str, Any]) -> dict[str, Any]:
    """The table under the task that a launch makes: tables in it are merged, and the launch wins."""
    merged = schema.merged(dict(table), dict(task))
    assert isinstance(merged, Mapping)
    made = dict(merged)
    resources = dict(made.get("resources") or {})
    if (task.get("resources") or {}).get("accelerators") is not None:
        resources["accelerators"] = task["resources"]["accelerators"]  # one kind, not both spellings merged
    return {**made, "resources": resources}
