"""Convert a plan to text for a terminal."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from . import rank_mesh
from .launchers import torchrun
from .model import RestartPolicy
from .plan import Plan
from .sanitize import clean_whole, quoted
from .secrets import mask, mask_text, mask_words

LOG_CAP = "--log-cap"
"""Key in a plan's origins for the settings file that sets its log cap."""
LISTED = 64
"""Most ranks to print with their coordinates."""


def _command(plan: Plan) -> tuple[str, ...]:
    words = mask_words(plan.argv)
    if plan.launcher == "torchrun":
        return plan.python or "python", "-m", torchrun.MODULE, *words
    return tuple(words)


def command_line(plan: Plan) -> str:
    """Return the plan's argv as a line for a POSIX shell, with secrets masked and terminal control characters quoted."""
    return " ".join(quoted(word) for word in _command(plan))


def render(plan: Plan, more: Sequence[str] = ()) -> str:
    """Return the output of `--dry-run`: the whole plan, with secrets masked.

    Ends with a newline. `more`: additional lines.
    """
    lines = [*_head(plan), "", f"  {command_line(plan)}", *_environment(plan), *more]
    for path, text in sorted(plan.files.items()):
        lines += ["", f"file {path}", *(f"  {line}" for line in mask_text(text).splitlines())]
    lines += ["", *_handling(plan)]
    if plan.notes:
        lines += ["", "notes", *(f"  - {note}" for note in plan.notes)]
    return clean_whole("\n".join(lines)) + "\n"


def _environment(plan: Plan) -> list[str]:
    lines = ["", f"environment ({len(plan.env)} variables besides the inherited ones)"]
    lines += [
        _variable(name, value, plan.origins.get(name, "")) for name, value in sorted(plan.env.items())
    ]
    for pattern, variables in plan.hosts.items():
        lines += ["", f"on hosts {pattern}"]
        lines += [
            _variable(name, value, plan.origins.get(f"{pattern}:{name}", ""))
            for name, value in sorted(variables.items())
        ]
    return lines


def _handling(plan: Plan) -> list[str]:
    """Return how the run is restarted, stopped and watched, a line each."""
    lines = [f"on failure   {_policy(plan.restart)}"]
    lines.append(f"stop         SIGTERM, after {plan.grace_s:g} s SIGKILL")
    lines += [f"save first   {plan.save_on}"] if plan.save_on else []
    lines.append(f"hook         {'in every rank' if plan.hook else 'left out'}")
    lines += [f"signals      {pattern}" for pattern in plan.signals]
    origin = f"  # {plan.origins[LOG_CAP]}" if LOG_CAP in plan.origins else ""
    lines += [f"log cap      {plan.log_cap:,} bytes of each log on disk{origin}"] if plan.log_cap else []
    lines += [f"notify       {word}" for word in plan.notify]
    return [*lines, f"ports        {ports(plan)}"]


def _variable(name: str, value: str, origin: str) -> str:
    """Return "  NAME=value  # origin"."""
    return f"  {name}={quoted(mask(name, value))}" + (f"  # {origin}" if origin else "")


def preset_with_files(plan: Plan) -> str:
    """Return the preset's name, with its files unless it is an unchanged builtin preset."""
    return f"{plan.preset} ({', '.join(plan.sources)})" if plan.sources else plan.preset


def _head(plan: Plan) -> list[str]:
    lines = [f"run          {plan.name} ({plan.run})"]
    if plan.preset:
        backend = f", backend {plan.backend}" if plan.backend else ""
        lines.append(
            f"preset       {preset_with_files(plan)}: strategy {plan.strategy}, launcher {plan.launcher}{backend}"
        )
        lines.append(
            f"script       {plan.obeys or 'ignores the preset, which sets only launcher flags and environment'}"
        )
    if plan.nproc_per_node is not None:
        lines.append(f"ranks        {_ranks(plan.nnodes, plan.nnodes_min, plan.nproc_per_node)}")
    lines += _mesh(plan)
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


def _mesh(plan: Plan) -> list[str]:
    if plan.mesh and not plan.strategy:
        return [f"mesh         {_own_mesh(plan.mesh)}"]
    if len(plan.mesh) > 1:
        return [f"mesh         {rank_mesh.mesh_text(plan.mesh)}", *_coordinates(plan.mesh)]
    return []


def _own_mesh(sizes: Mapping[str, int]) -> str:
    """Describe the mesh of a command, whose ranks may be unknown before it runs."""
    if sizes.get("dp", 1) > 1:
        return f"{rank_mesh.mesh_text(sizes)}, by the command's own arguments"
    parts = [f"{name} {'…' if name == 'dp' else size}" for name, size in sizes.items()]
    return f"{' × '.join(parts)}, by the command's own arguments: dp has the ranks that are left"


def _coordinates(sizes: Mapping[str, int]) -> list[str]:
    """Return one line per rank, for the first ranks."""
    world = math.prod(sizes.values())
    lines = []
    for rank in range(min(world, LISTED)):
        at = rank_mesh.coordinates(sizes, rank)
        lines.append(f"  rank {rank:<6} {'  '.join(f'{name} {number}' for name, number in at.items())}")
    if world > LISTED:
        lines.append(f"  … {world - LISTED} more, all of them in --json")
    return lines


def _ranks(nnodes: int, fewest: int | None, nproc: int) -> str:
    """Return "16 = nnodes 2 × nproc_per_node 8", or the range of an elastic run."""
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


def ports(plan: Plan) -> str:
    """Describe the ports that the running plan opens."""
    if plan.launcher != "torchrun":
        return "none of distui's; what the command opens is its own"
    if plan.nnodes == 1 and not plan.hook:
        return (
            "none of distui's; torch's own for the ranks: without the hook rank 0's store listens on every interface, "
            "unauthenticated (see docs/security.md)"
        )
    if plan.nnodes == 1:
        return (
            "none of distui's; torch's own for the ranks, on this machine's loopback (see docs/security.md)"
        )
    endpoint = plan.argv[plan.argv.index("--rdzv-endpoint") + 1]
    return (
        f"{endpoint} on the first node: the rendezvous, for holders of the run's key; torch's own for the ranks, "
        "unauthenticated, on every node (see docs/security.md)"
    )
