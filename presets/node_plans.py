"""The parts of a plan: the plans of its nodes, and the variables of single hosts."""

from __future__ import annotations

import dataclasses
import fnmatch
from collections.abc import Mapping, Sequence

from . import rank_env
from .finding import PlanError
from .launchers import torchrun
from .plan import Plan

PORTS = range(20000, 30000)
"""Range of the rendezvous port of a run on several nodes: below the kernel's ephemeral ports (32768 on Linux)."""


def rendezvous_port(run8: str) -> int:
    """Return a port from the run's eight hex digits, because free ports of the future head are not known yet."""
    return PORTS[int(run8, 16) % len(PORTS)]


def part_id(run: str, node: int) -> str:
    return f"{run}.n{node}"


def part_run8(run8: str, node: int) -> str:
    """Return the stem of that part's socket names, which is known without a question to the node."""
    return f"{run8}n{node}"


def for_host(plan: Plan, host: str) -> Plan:
    """Return `plan` with the variables of each pattern in `plan.hosts` that matches the host. Later patterns win.

    A pattern is a shell pattern in lower case, which may match the name with or without its domain.
    """
    names = {host.lower(), host.lower().split(".", 1)[0]}
    added: dict[str, str] = {}
    origins: dict[str, str] = {}
    for pattern, variables in plan.hosts.items():
        if any(fnmatch.fnmatchcase(name, pattern.lower()) for name in names):
            added |= variables
            origins |= {name: plan.origins.get(f"{pattern}:{name}", "") for name in variables}
    if not added:
        return plan
    return dataclasses.replace(plan, env={**plan.env, **added}, origins={**plan.origins, **origins})


def for_node(plan: Plan, node: int, addresses: Sequence[str], run_dir: str, cwd: str, python: str) -> Plan:
    """Return the plan of node number `node` at `addresses[node]`. `addresses[0]` is the head's address.

    The part is a separate run with its own ID and marker in the ranks' environment. The rendezvous is that of the whole
    run. Raises PlanError if there is no such node.
    """
    if not 0 <= node < min(plan.nnodes, len(addresses)):
        raise PlanError(
            f"There is no node {node}: the plan is for {plan.nnodes}, and {len(addresses)} addresses are given"
        )
    argv = plan.argv
    if plan.nnodes > 1 and plan.launcher == "torchrun":
        argv = torchrun.placed(argv, addresses[0], addresses[node], node)
    names = tuple(plan.files)
    words = {str(at): word for at, word in enumerate(argv)}
    argv = tuple(moved_paths(words, names, plan.run_dir, run_dir).values())
    env = moved_paths(plan.env, names, plan.run_dir, run_dir)
    run = part_id(plan.run, node)
    seat = {"DISTUI_NODE": str(node), "DISTUI_NNODES": str(plan.nnodes), "DISTUI_HEAD": addresses[0]}
    return dataclasses.replace(
        plan,
        run=run,
        run_dir=run_dir,
        cwd=cwd,
        python=python,
        node=node,
        argv=argv,
        env={**env, "DISTUI_RUN_ID": run, **seat},
        origins={**plan.origins, **dict.fromkeys(seat, rank_env.DISTUI)},
        files=moved_paths(plan.files, names, plan.run_dir, run_dir),
    )


def moved_paths(texts: Mapping[str, str], names: Sequence[str], before: str, after: str) -> dict[str, str]:
    """Return `texts` with the paths of the files `names` moved to another run directory."""
    made = dict(texts)
    for name in names:
        made = {key: text.replace(f"{before}/{name}", f"{after}/{name}") for key, text in made.items()}
    return made
