"""A SkyPilot task as a preset: its nodes and variables as fields, its resources and files in [sky]."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .. import nccl
from .values import Imported, table_of, whole

OURS = ("run", "name", "secrets", "envs", "num_nodes", "service", "pool")
"""Keys that are no part of a preset, or become fields."""


def imported(document: Mapping[str, Any], source: str) -> Imported:
    """The preset of a task. Raises nothing: what cannot be kept is noted."""
    found = Imported()
    found.put("strategy.kind", "ddp")
    found.put("topology.nnodes", whole(document.get("num_nodes")) or 1)
    envs = table_of(document, "envs")
    known = {name: value for name, value in envs.items() if _is_nccl(str(name), value)}
    found.variables("nccl", known)
    found.variables("env", {name: value for name, value in envs.items() if name not in known})
    secrets = document.get("secrets")
    for name in secrets if isinstance(secrets, Mapping | list) else ():
        found.notes.append(f"{name} is left out: a preset is no place for a secret; pass it with --env.")
    if document.get("run"):
        found.notes.append(
            "Its run: is left out, and its strategy is not known from here: say [strategy] kind, and launch with "
            "`distui launch NAME --on sky -- SCRIPT`; `--task FILE` runs the task as it is."
        )
    found.keep("sky", {key: value for key, value in document.items() if key not in OURS})
    return found


def _is_nccl(name: str, value: object) -> bool:
    return nccl.known(name) and nccl.check(name, str(value)) is None
