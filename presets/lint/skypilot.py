"""Rules about a SkyPilot task."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ..finding import Finding
from . import launches, variables, words
from .commands import Surroundings
from .nodes import Node, place, whole
from .rules import found, once
from .saving import saves

KEYS = (
    *(
        "name",
        "workdir",
        "event_callback",
        "num_nodes",
        "resources",
        "file_mounts",
        "service",
        "pool",
        "setup",
    ),
    *("run", "envs", "secrets", "managed_secrets", "inputs", "outputs", "file_mounts_mapping", "config"),
    *("volumes", "volume_mounts", "api_server_access", "execution", "experimental", "_metadata"),
)
"""Of release 0.14."""
RESOURCES = (
    *("cloud", "region", "zone", "infra", "cpus", "memory", "instance_type", "use_spot", "job_recovery"),
    *(
        "volumes",
        "disk_size",
        "ephemeral_storage",
        "disk_tier",
        "network_tier",
        "local_disk",
        "max_hourly_cost",
    ),
    *("ports", "labels", "accelerator_args", "image_id", "autostop", "priority", "priority_class"),
    *("accelerators", "any_of", "ordered", "spot_recovery"),
)
MARKS = frozenset({"run", "setup", "resources", "num_nodes", "file_mounts", "workdir"})
"""By which a file is known for a task."""
TIERS = ("standard", "best")
TIERLESS = ("slurm", "ssh")
"""Infras that do nothing with a network tier (release 0.14)."""


def check(task: Node, file: str, exists: Callable[[str], bool] | None = None) -> list[Finding]:
    """Everything about one task. `exists`: whether there is a file, seen from the task."""
    nnodes = task.number("num_nodes") or (1 if "num_nodes" not in task.mapping else None)
    env = {name: _text(node) for name, node in _envs(task)}
    around = Surroundings(
        file=file, nnodes=nnodes, gpus=gpus(task), env=env, every_node=True, own_nodes=True, exists=exists
    )
    return once(
        [
            *_names(task, file),
            *_resources(task, file, nnodes),
            *_variables(task, file, nnodes),
            *(one for key in ("setup", "run") for one in _shell(task.get(key), around)),
        ]
    )


def _envs(task: Node) -> Iterator[tuple[str, Node]]:
    envs = task.get("envs")
    yield from (envs.mapping if envs else {}).items()


def _text(node: Node) -> str:
    if isinstance(node.value, bool):
        return str(node.value).lower()
    return "$" if node.value is None or isinstance(node.value, dict | list) else str(node.value)


def _shell(node: Node | None, around: Surroundings) -> list[Finding]:
    if node is None or not isinstance(node.value, str):
        return []
    return launches.check_text(node.value, around, node.text_line)


def _wishes(task: Node) -> list[Node]:
    """`resources`, and its alternatives."""
    resources = task.get("resources")
    if resources is None:
        return []
    alternatives = [
        one for key in ("any_of", "ordered") for one in (resources.get(key) or Node(0, None)).items
    ]
    return [resources, *alternatives]


def gpus(task: Node) -> int | None:
    """Accelerators of each node; 0 where none is asked for, None where they differ or cannot be known."""
    wishes = _wishes(task)
    counts = {count for one in wishes for count in _counts(one.get("accelerators"))}
    if counts:
        return counts.pop() if len(counts) == 1 else None
    known = any(
        one.get(key) for one in wishes for key in ("accelerators", "instance_type", "any_of", "ordered")
    )
    return None if known else 0


def _counts(node: Node | None) -> Iterator[int | None]:
    """The numbers that `accelerators` names: "H100:8", {H100: 8}, or a list of such."""
    if node is None:
        return
    for one in node.items:
        yield from _counts(one)
    for name in node.mapping:
        yield node.number(name)
    if isinstance(node.value, str):
        name, _, count = node.value.partition(":")
        tpu = name.lower().startswith("tpu")
        yield None if tpu else whole(count) if count else 1


def _names(task: Node, file: str) -> Iterator[Finding]:
    if "working_dir" not in task.mapping:  # an oumi job: nearly a task, with keys of its own
        yield from words.keys(file, task, KEYS, "A SkyPilot task", refuses=True)
    nodes = task.get("num_nodes")
    if nodes is not None and (task.number("num_nodes") or 0) < 1:
        text = f"num_nodes {nodes.value} is no number of nodes."
        value = f"num_nodes: {nodes.value}"
        yield found(
            "L30", place(file, nodes, "num_nodes"), text, value=value, remedy="Write a number from 1 on."
        )
    for one in _wishes(task):
        yield from words.keys(file, one, RESOURCES, "SkyPilot's resources", refuses=True)


def _resources(task: Node, file: str, nnodes: int | None) -> Iterator[Finding]:
    wishes = _wishes(task)
    for one in wishes:
        tier = one.get("network_tier")
        if tier is not None and str(tier.value).lower() not in TIERS:
            text = f"SkyPilot has no network_tier {tier.value}, and refuses the task."
            value = f"network_tier: {tier.value}"
            yield found("L7", place(file, tier, "resources.network_tier"), text, value=value)
        ports = one.get("ports")
        if ports is not None:
            text = "ports opens these to the whole internet, on every node."
            yield found("L13", place(file, ports, "resources.ports"), text, value="ports")
        recovery = one.get("job_recovery") or one.get("spot_recovery")
        if recovery is not None:
            text = "job_recovery acts in managed jobs alone, to whose nodes there is no ssh."
            yield found("L12", place(file, recovery, "resources.job_recovery"), text, value="job_recovery")
        spot = one.get("use_spot")
        if spot is not None and spot.value is True and not saves(task.text("run")):
            text = "Spot nodes can be taken back, and nothing in run speaks of a checkpoint."
            yield found("L37", place(file, spot, "resources.use_spot"), text, value="use_spot: true")
    yield from _network(task, wishes, file, nnodes)


def _network(task: Node, wishes: list[Node], file: str, nnodes: int | None) -> Iterator[Finding]:
    """Several nodes with GPUs, on a network that nobody asked to be fast."""
    infras = {(one.text("infra") or one.text("cloud")).partition("/")[0].lower() for one in wishes} - {""}
    if (nnodes or 1) < 2 or gpus(task) == 0 or (infras and infras <= set(TIERLESS)):
        return
    if any(one.get("network_tier") and one.text("network_tier") != "standard" for one in wishes):
        return  # also where it is a wrong one: L7 says so
    tier = next((one.get("network_tier") for one in wishes if one.get("network_tier")), None)
    where = place(file, tier or task.get("resources") or task.get("num_nodes"), "resources")
    text = f"{nnodes} nodes with the plain network between them: no EFA, TCPX or InfiniBand."
    yield found("L21", where, text, value="network_tier: standard" if tier else "")


def _variables(task: Node, file: str, nnodes: int | None) -> Iterator[Finding]:
    nodes = dict(_envs(task))
    env = {name: _text(node) for name, node in nodes.items()}
    yield from variables.check_all(env, lambda name: place(file, nodes[name], f"envs.{name}"), nnodes)
    secret = task.get("secrets")
    for section in (nodes, secret.mapping if secret else {}):
        for name, node in section.items():
            for one in variables.in_plain_text(name, _text(node), place(file, node, name)):
                remedy = f"Write `{name}: null` under secrets, and launch with --secret {name}."
                yield found(one.id, one.where, one.text, value=one.value, remedy=remedy)
