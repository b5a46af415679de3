"""The preset that a request means: of the launch form, or of a run with the changes of its restarts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ...presets import nccl
from ...presets.load import library
from ...presets.preset_text import saved_text
from ...presets.request import Request
from ...presets.secrets import MASK
from ...presets.worker_group import parse_nnodes
from ..run.errors import RunError
from ..run.run_directories import Entry
from . import rerun

FIELDS = {
    "nproc_per_node": "topology.nproc_per_node",
    "grace_s": "launcher.grace_s",
    "save_on": "launcher.save_on",
    "restart_limit": "restart.limit",
}
"""Option of a request → field of a preset."""


def overrides_of(request: Request) -> tuple[str, ...]:
    """Return all values of a request that a preset can hold, in the form of `--set`. Raises PlanError."""
    overrides = list(request.overrides)
    values = {field: getattr(request, option) for option, field in FIELDS.items()}
    if request.nnodes is not None:
        values["topology.nnodes_min"], values["topology.nnodes"] = parse_nnodes(request.nnodes)
    if request.hook is not None:
        values["hook"] = str(request.hook).lower()
    variables = {**nccl.combined(request.nccl_presets), **request.nccl}
    values |= {f"nccl.{name}": value for name, value in variables.items()}
    values |= {f"{nccl.preset_table(name, value)}.{name}": value for name, value in request.env.items()}
    overrides += [f"{field}={value}" for field, value in values.items() if value is not None]
    return tuple(overrides)


def preset_of_run(name: str, entry: Entry, further: Sequence[str] = ()) -> tuple[str, list[str]]:
    """Return the file of a preset `name` with the settings of a run, and the variables that are left out as secrets.

    `further`: overrides of these settings. Raises RunError, PresetError and PlanError.
    """
    request = rerun.read(entry).request
    if not request.preset:
        raise RunError(
            f"run {entry.record.name} runs a command: only a run that was launched under a preset can become one"
        )
    request = rerun.with_changes(request, entry.state().changes)
    secret = [variable for variable, value in request.env.items() if MASK in value]
    env = {variable: value for variable, value in request.env.items() if MASK not in value}
    kept = tuple(override for override in request.overrides if MASK not in override)
    overrides = overrides_of(replace(request, env=env, overrides=kept))
    return saved_text(name, request.preset, (*overrides, *further), library()), secret
