"""The plan of a run as a preset: what it was launched with, and what its restarts changed since."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from .. import environ, nccl
from ..errors import PresetError
from ..launchers import accelerate
from ..launchers import deepspeed as deepspeed_launcher
from ..plan import Plan
from ..secrets import MASK
from . import deepspeed
from .values import Imported

MADE = ("DISTUI_", "ACCELERATE_", "FSDP_", "PARALLELISM_CONFIG_")
"""Beginnings of variables that the fields make."""
MADE_NAMES = ("NCCL_RAS_ADDR", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "DS_ACCELERATOR", "DS_ENV_FILE")


def imported(
    plan: Plan, changes: Iterable[Mapping[str, str | None]], source: str, known: Iterable[str]
) -> Imported:
    """The preset of a plan. `changes`: of the environment, by attempt; `known`: presets that there are.

    Raises PresetError for the plan of a command, which has no preset's values.
    """
    if not plan.preset:
        raise PresetError(
            f"{source} runs a command: only a run that was launched under a preset can become one."
        )
    found = Imported()
    found.base = plan.preset if plan.preset in set(known) else ""
    for table, variable in (("strategy", "STRATEGY_OPTIONS"), ("mesh", "MESH"), ("batch", "BATCH"),
                            ("precision", "PRECISION")):  # fmt: skip
        for key, value in _json(plan.env.get(f"DISTUI_{variable}", "{}")).items():
            found.put(f"{table}.{key}", value)
    found.values = {"strategy.kind": plan.strategy, **found.values}
    _topology(plan, found)
    if deepspeed_launcher.CONFIG_FILE in plan.files:
        _deepspeed(plan.files[deepspeed_launcher.CONFIG_FILE], source, found)
    env = {name: value for name, value in plan.env.items() if not _made(name, value)}
    for change in changes:
        env |= {name: value for name, value in change.items() if value is not None}
        for name in [name for name, value in change.items() if value is None]:
            env.pop(name, None)
    hidden = sorted(name for name, value in env.items() if value == MASK)
    found.notes += [f"{name} is left out: its value is a secret; pass it with --env." for name in hidden]
    env = {name: value for name, value in env.items() if value != MASK}
    found.variables("nccl", {name: value for name, value in env.items() if nccl.known(name)})
    found.variables("env", {name: value for name, value in env.items() if not nccl.known(name)})
    return found


def _topology(plan: Plan, found: Imported) -> None:
    found.put("topology.nnodes", plan.nnodes)
    found.put("topology.nnodes_min", plan.nnodes_min)
    found.put("topology.nproc_per_node", plan.nproc_per_node)
    if plan.launcher == "command":
        found.put("launcher.kind", "accelerate" if accelerate.MODULE in plan.argv else "deepspeed")
    found.put("launcher.grace_s", plan.grace_s)
    for name in ("limit", "backoff_s", "backoff_max_s", "reset_after_s", "always"):
        found.put(f"restart.{name}", getattr(plan.restart, name))


def _deepspeed(text: str, source: str, found: Imported) -> None:
    """The keys that no field says; the fields are known better."""
    kept = deepspeed.imported(_json(text), source).values
    found.values |= {path: value for path, value in kept.items() if path.startswith("deepspeed.")}


def _made(name: str, value: str) -> bool:
    usual = environ.WATCHED.get(name) == value or (name == "OMP_NUM_THREADS" and value == "1")
    return usual or name in MADE_NAMES or name.startswith(MADE)


def _json(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
