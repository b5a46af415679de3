"""Convert a plan to text, to JSON and back, and to the plans of its nodes."""

from __future__ import annotations

import dataclasses
import fnmatch
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from . import rank_mesh, worker_group
from .finding import PlanError
from .launchers import accelerate, deepspeed, torchrun
from .model import RestartPolicy
from .plan import Plan
from .sanitize import clean_whole, quoted
from .secrets import MASK, SECRET_WORDS, holds_secret, mask, mask_text, mask_words

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


def named(plan: Plan) -> str:
    """Return the preset's name, with its files unless it is an unchanged builtin preset."""
    return f"{plan.preset} ({', '.join(plan.sources)})" if plan.sources else plan.preset


def _head(plan: Plan) -> list[str]:
    lines = [f"run          {plan.name} ({plan.run})"]
    if plan.preset:
        backend = f", backend {plan.backend}" if plan.backend else ""
        lines.append(
            f"preset       {named(plan)}: strategy {plan.strategy}, launcher {plan.launcher}{backend}"
        )
        lines.append(f"obeys        {plan.obeys or 'nothing: the preset sets only flags and environment'}")
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
    """Describe the mesh of a command, whose ranks are unknown before it runs."""
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


def plan_to_json(plan: Plan, *, masked: bool = False) -> dict[str, Any]:
    """Return the plan as JSON values. `masked` hides secrets, for output and export."""
    document: dict[str, Any] = {
        item.name: _plain(getattr(plan, item.name)) for item in dataclasses.fields(plan)
    }
    document["coordinates"] = [
        rank_mesh.coordinates(plan.mesh, rank)
        for rank in range(math.prod(plan.mesh.values()) if plan.strategy or not plan.mesh else 0)
    ]
    document["hosts"] = {pattern: dict(variables) for pattern, variables in plan.hosts.items()}
    if masked:
        document["hosts"] = {pattern: _without_values(env) for pattern, env in plan.hosts.items()}
        document["env"] = _without_values(plan.env)
        document["files"] = {name: mask_text(text) for name, text in plan.files.items()}
        for part in ("argv", "command"):
            document[part] = mask_words(document[part])
    document["restart"] = dataclasses.asdict(plan.restart)
    return document


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    return list(value) if isinstance(value, tuple) else value


def _without_values(env: Mapping[str, str]) -> dict[str, str]:
    """Replace each value that contains a secret by MASK, never only a part of it."""
    return {name: MASK if holds_secret(name, value) else value for name, value in env.items()}


def hidden(plan: Plan) -> dict[str, str]:
    """Return the values that the plan's masked JSON hides, as environment of the executing process.

    Never write them down.
    """
    shown = plan_to_json(plan, masked=True)
    env = {name: value for name, value in plan.env.items() if shown["env"][name] == MASK}
    parts = {
        part: {str(at): word for at, word in enumerate(getattr(plan, part))} for part in ("argv", "command")
    }
    parts["files"] = dict(plan.files)
    words = {
        part: {key: text for key, text in texts.items() if MASK in _at(shown[part], key)}
        for part, texts in parts.items()
    }
    return {**env, SECRET_WORDS: json.dumps(words)} if any(words.values()) else env


def _at(part: Any, key: str) -> str:
    return str(part[int(key)] if isinstance(part, list) else part[key])


def revealed(plan: Plan, env: Mapping[str, str]) -> Plan:
    """Return a plan from masked JSON with the texts from `hidden`. Missing texts stay masked."""
    try:
        words = json.loads(env.get(SECRET_WORDS) or "{}")
        argv, command = (
            tuple(words.get(part, {}).get(str(at), word) for at, word in enumerate(getattr(plan, part)))
            for part in ("argv", "command")
        )
        return dataclasses.replace(
            plan, argv=argv, command=command, files={**plan.files, **words.get("files", {})}
        )
    except (ValueError, AttributeError, TypeError):
        return plan


def unknown_words(plan: Plan) -> list[str]:
    """Return the arguments of a plan with a secret whose value is missing."""
    return [word for word in plan.argv if MASK in word]


def plan_from_json(document: Mapping[str, Any]) -> Plan:
    """Return the plan that `plan_to_json` wrote. Unknown fields are ignored. Raises PlanError."""
    fields = {item.name for item in dataclasses.fields(Plan)}
    values = {name: value for name, value in document.items() if name in fields}
    policy = {item.name for item in dataclasses.fields(RestartPolicy)}
    try:
        for name in ("argv", "command", "notes", "passed", "sources", "signals", "notify"):
            values[name] = tuple(values.get(name, ()))
        restart = {name: value for name, value in dict(values.get("restart", {})).items() if name in policy}
        values["restart"] = RestartPolicy(**restart)
        return Plan(**values)
    except (TypeError, ValueError) as error:
        raise PlanError(f"This is not a plan that distui wrote: {error}") from None


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
    argv, files = plan.argv, plan.files
    if plan.nnodes > 1:
        argv = placed_argv(plan.launcher, argv, plan.command, node, addresses)
        files = placed_files(files, node, addresses)
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
        origins={**plan.origins, **dict.fromkeys(seat, worker_group.DISTUI)},
        files=moved_paths(files, names, plan.run_dir, run_dir),
    )


def placed_argv(
    launcher: str, words: Sequence[str], command: Sequence[str], node: int, addresses: Sequence[str]
) -> tuple[str, ...]:
    """Return the command line of node number `node`. The user's own words, `command`, stay unchanged."""
    if launcher == "torchrun":
        return torchrun.placed(words, addresses[0], addresses[node], node)
    own = len(words) - len(command)
    return (*(_filled(word, node, addresses) for word in words[:own]), *words[own:])


def placed_files(texts: Mapping[str, str], node: int, addresses: Sequence[str]) -> dict[str, str]:
    """Return the files of node number `node`."""
    return {
        name: _filled(text, node, addresses)
        if name == deepspeed.HOST_FILE or name.startswith("accelerate/")
        else text
        for name, text in texts.items()
    }


def moved_paths(texts: Mapping[str, str], names: Sequence[str], before: str, after: str) -> dict[str, str]:
    """Return `texts` with the paths of the files `names` moved to another run directory."""
    made = dict(texts)
    for name in names:
        made = {key: text.replace(f"{before}/{name}", f"{after}/{name}") for key, text in made.items()}
    return made


def _filled(text: str, node: int, addresses: Sequence[str]) -> str:
    for number, address in enumerate(addresses):
        text = text.replace(deepspeed.address(number), address)
    return text.replace(accelerate.HEAD, addresses[0]).replace(accelerate.NODE, str(node))
