"""A plan for several nodes, made into one for each of them."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from dataclasses import replace

from .errors import PlanError
from .launchers import placing
from .plan import Plan

PORTS = range(20000, 30000)
"""Where the rendezvous port of a run on several nodes is chosen: below what kernels give out (32768 on Linux)."""


def rendezvous_port(run8: str) -> int:
    """A port by the run's eight hex digits: nobody can look on the head, before there is one, which are free."""
    return PORTS[int(run8, 16) % len(PORTS)]


def part_id(run: str, node: int) -> str:
    """Id of the part of a run that is on node `node`."""
    return f"{run}.n{node}"


def part_run8(run8: str, node: int) -> str:
    """The stem of that part's socket names: known without asking the node."""
    return f"{run8}n{node}"


def for_host(plan: Plan, host: str) -> Plan:
    """`plan` with the variables of every pattern in `plan.hosts` that the host's name fits, the last one first.

    A name fits with and without its domain; patterns as a shell's, in lower case.
    """
    names = {host.lower(), host.lower().split(".", 1)[0]}
    added: dict[str, str] = {}
    for pattern, variables in plan.hosts.items():
        if any(fnmatch.fnmatchcase(name, pattern.lower()) for name in names):
            added |= variables
    return replace(plan, env={**plan.env, **added}) if added else plan


def for_node(plan: Plan, node: int, addresses: Sequence[str], run_dir: str, cwd: str, python: str) -> Plan:
    """The plan of node number `node`, whose address is `addresses[node]`; `addresses[0]` is the head's.

    The part is a run of its own (its id, its marker in the ranks' environment), the rendezvous is the whole
    run's. Raises PlanError when there is no such node.
    """
    if not 0 <= node < min(plan.nnodes, len(addresses)):
        raise PlanError(
            f"There is no node {node}: the plan is for {plan.nnodes}, and {len(addresses)} addresses are given."
        )
    argv, files = plan.argv, plan.files
    if plan.nnodes > 1:
        argv = placing.argv(plan.launcher, argv, plan.command, node, addresses)
        files = placing.files(files, node, addresses)
    names = tuple(plan.files)
    words = {str(at): word for at, word in enumerate(argv)}
    argv = tuple(placing.moved(words, names, plan.run_dir, run_dir).values())
    env = placing.moved(plan.env, names, plan.run_dir, run_dir)
    run = part_id(plan.run, node)
    seat = {"DISTUI_NODE": str(node), "DISTUI_NNODES": str(plan.nnodes), "DISTUI_HEAD": addresses[0]}
    return replace(
        plan,
        run=run,
        run_dir=run_dir,
        cwd=cwd,
        python=python,
        node=node,
        argv=argv,
        env={**env, "DISTUI_RUN_ID": run, **seat},
        files=placing.moved(files, names, plan.run_dir, run_dir),
    )
