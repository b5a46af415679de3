"""A plan as text for a person, and as JSON and back."""

from __future__ import annotations

import dataclasses
import math
import shlex
from collections.abc import Mapping
from typing import Any

from . import mesh
from .errors import PlanError
from .launchers import torchrun
from .model import RestartPolicy
from .plan import Plan
from .secrets import mask, mask_env

LISTED = 64
"""Ranks whose coordinates are printed."""


def command_line(plan: Plan) -> str:
    """The plan's argv as a line for a POSIX shell."""
    if plan.launcher == "torchrun":
        return shlex.join((plan.python or "python", "-m", torchrun.MODULE, *plan.argv))
    return shlex.join(plan.argv)


def render(plan: Plan) -> str:
    """What `--dry-run` prints: all of the plan, secrets masked. Ends with a newline."""
    lines = [*_head(plan), "", f"  {command_line(plan)}", "", f"environment ({len(plan.env)} variables)"]
    lines += [f"  {name}={shlex.quote(mask(name, value))}" for name, value in sorted(plan.env.items())]
    for pattern, variables in plan.hosts.items():
        lines += ["", f"on hosts {pattern}"]
        lines += [f"  {name}={shlex.quote(mask(name, value))}" for name, value in sorted(variables.items())]
    for path, text in sorted(plan.files.items()):
        lines += ["", f"file {path}", *(f"  {line}" for line in text.splitlines())]
    lines += ["", f"on failure   {_policy(plan.restart)}"]
    lines.append(f"stop         SIGTERM, after {plan.grace_s:g} s SIGKILL")
    lines.append(f"hook         {'in every rank' if plan.hook else 'left out'}")
    if plan.notes:
        lines += ["", "notes", *(f"  - {note}" for note in plan.notes)]
    return "\n".join(lines) + "\n"


def _head(plan: Plan) -> list[str]:
    lines = [f"run          {plan.name} ({plan.run})"]
    if plan.preset:
        backend = f", backend {plan.backend}" if plan.backend else ""
        lines.append(
            f"preset       {plan.preset}: strategy {plan.strategy}, launcher {plan.launcher}{backend}"
        )
        lines.append(f"obeys        {plan.obeys or 'nothing: the preset sets only flags and environment'}")
    if plan.nproc_per_node is not None:
        lines.append(f"ranks        {_ranks(plan.nnodes, plan.nnodes_min, plan.nproc_per_node)}")
    if len(plan.mesh) > 1:
        lines += [f"mesh         {mesh.text(plan.mesh)}", *_coordinates(plan.mesh)]
    if plan.batch:
        lines.append(f"batch        {plan.batch}")
    if plan.nnodes > 1:
        lines.append(
            f"on each node {torchrun.HEAD} is the first node's address, {torchrun.LOCAL} its own, "
            f"{torchrun.IS_HEAD} 1 on the first and 0 on the others"
            if plan.launcher == "torchrun"
            else f"nodes        {plan.nnodes}, each runs the command; DISTUI_NODE and DISTUI_HEAD say where"
        )
    return [*lines, f"directory    {plan.cwd}", f"records in   {plan.run_dir}"]


def _coordinates(sizes: Mapping[str, int]) -> list[str]:
    """A line a rank; of many the first ones."""
    world = math.prod(sizes.values())
    lines = []
    for rank in range(min(world, LISTED)):
        at = mesh.coordinates(sizes, rank)
        lines.append(f"  rank {rank:<6} {'  '.join(f'{name} {number}' for name, number in at.items())}")
    return lines + [f"  … {world - LISTED} more, all of them in --json"] * (world > LISTED)


def _ranks(nnodes: int, fewest: int | None, nproc: int) -> str:
    """ "16 = nnodes 2 × nproc_per_node 8"; of an elastic run the least, too."""
    if fewest is None:
        return f"{nnodes * nproc} = nnodes {nnodes} × nproc_per_node {nproc}"
    return f"{fewest * nproc} to {nnodes * nproc} = nnodes {fewest} to {nnodes} × nproc_per_node {nproc}"


def _policy(policy: RestartPolicy) -> str:
    if not policy.limit:
        return "no restart"
    return (
        f"restart, at most {policy.limit} times, waiting {policy.backoff_s:g} s, doubled each time "
        f"up to {policy.backoff_max_s:g} s; {policy.reset_after_s:g} s without failure clear the count"
        + ("; also when a restart cannot help" if policy.always else "")
    )


def plan_to_json(plan: Plan, *, masked: bool = False) -> dict[str, Any]:
    """The plan as JSON values. `masked` hides secret values: for whatever is shown or exported."""
    document: dict[str, Any] = {}
    for item in dataclasses.fields(plan):
        value = getattr(plan, item.name)
        document[item.name] = list(value) if isinstance(value, tuple) else value
    document["mesh"] = dict(plan.mesh)
    document["coordinates"] = [
        mesh.coordinates(plan.mesh, rank) for rank in range(math.prod(plan.mesh.values()))
    ]
    document["hosts"] = {
        pattern: mask_env(variables) if masked else dict(variables)
        for pattern, variables in plan.hosts.items()
    }
    document["env"] = mask_env(plan.env) if masked else dict(plan.env)
    document["files"] = dict(plan.files)
    document["restart"] = dataclasses.asdict(plan.restart)
    return document


def plan_from_json(document: Mapping[str, Any]) -> Plan:
    """The plan that `plan_to_json` wrote; fields it does not know are left out. Raises PlanError."""
    known = {item.name for item in dataclasses.fields(Plan)}
    values = {name: value for name, value in document.items() if name in known}
    policy = {item.name for item in dataclasses.fields(RestartPolicy)}
    try:
        for name in ("argv", "command", "notes"):
            values[name] = tuple(values.get(name, ()))
        restart = {name: value for name, value in dict(values.get("restart", {})).items() if name in policy}
        values["restart"] = RestartPolicy(**restart)
        return Plan(**values)
    except (TypeError, ValueError) as error:
        raise PlanError(f"This is not a plan that distui wrote: {error}.") from None
