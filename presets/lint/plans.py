"""Rules about a plan and about a SkyPilot task, before anything starts."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import PurePath

from .. import model, worker_group
from ..finding import Finding, worst_first
from ..launchers import skypilot
from ..launchers.skypilot import Resources
from ..model import Loaded, Preset
from ..plan import Plan
from ..script_support import parse
from . import consumers, launches, lint_rules, markup, script, torchrun_args
from .lint_rules import issue, once
from .markup import MarkupNode, Unreadable, place, plain, whole
from .script import names_save, saves
from .shell import Surroundings, Word

# -----------------------------------------------------------------------------------------------------------
# Rules about a plan, before anything is started.


SHARDED = ("zero1", "fsdp1", "fsdp2", "deepspeed")
TIERED = ("slurm", "ssh")
"""Infras that do nothing with a network tier."""


def lint_plan(
    plan: Plan,
    loaded: Loaded,
    *,
    source: str | bytes | None = None,
    beside: Mapping[str, str | bytes] | None = None,
    resources: Resources | None = None,
    managed: bool = False,
    hosts: int | None = None,
) -> list[Finding]:
    """What is wrong with a plan, the worst first.

    `source`: the script's text; `beside`: the files that it imports from its folder; `resources` where SkyPilot
    brings the nodes; `hosts`: how many are named. Never raises.
    """
    seen = _seen(source)
    findings = [
        *_environment(plan, loaded, seen),
        *_sharding(plan, loaded.preset),
        *_launcher(plan, loaded.preset),
        *_deepspeed(plan, loaded.preset, seen),
        *_optimizer(plan, loaded.preset, source),
        *_nodes(plan, resources, managed, hosts),
        *_script(plan, source),
        *_sizes(plan, loaded.preset, [source, *(beside or {}).values()] if source else ()),
        *_command(plan, resources),
    ]
    if resources is not None and resources.spot and seen is not None and not names_save(seen.mentioned):
        findings.append(
            issue("L37", "--spot", "Spot nodes can be taken back, and the script saves no checkpoint.")
        )
    return worst_first(once(findings))


def refusal(sentence: str) -> Finding:
    """Why no plan can be made, as a finding: the sentence of a PlanError."""
    id = "L17" if sentence.startswith("batch.") else "L18" if sentence.startswith("mesh") else "L19"
    return issue(id, "", sentence, remedy="")


def _environment(plan: Plan, loaded: Loaded, seen: script.ScriptContents | None) -> Iterator[Finding]:
    preset, own = loaded.preset, seen.reads if seen else frozenset()

    def where(name: str) -> str:
        for table, env in (("nccl", preset.nccl.env), ("env", preset.env)):
            if env.get(name) == plan.env.get(name) and name in env:
                return f"{table}.{name}"
        return name

    env = {
        name: value
        for name, value in plan.env.items()
        if not name.startswith("DISTUI_") and name not in own and worker_group.WATCHED.get(name) != value
    }
    yield from torchrun_args.check_all(env, where, plan.nnodes)
    for name, value in preset.env.items():
        if "builtin" not in loaded.origins.get(f"env.{name}", "--set"):
            yield from torchrun_args.in_plain_text(name, value, f"env.{name}")


def _sharding(plan: Plan, preset: Preset) -> Iterator[Finding]:
    """What the strategy costs or saves on so many ranks."""
    if not plan.strategy:  # any command
        return
    how, nproc = preset.strategy, plan.nproc_per_node or 0
    replicas = plan.mesh.get("dp_replicate", 1)
    hybrid = how.kind == "fsdp1" and how.sharding.startswith("HYBRID")
    if plan.nnodes == 1 and (hybrid or (replicas > 1 and how.kind in ("fsdp1", "fsdp2"))):
        where = "strategy.sharding" if hybrid else "mesh.dp_replicate"
        value = how.sharding if hybrid else str(replicas)
        text = "Replicas inside one node need more memory, and there is no slower network that they would spare."
        yield issue("L11", where, text, value=value)
    if how.kind == "fsdp1" and how.sharding == "NO_SHARD":
        text = "NO_SHARD keeps everything on every GPU, as DDP does, and is slower."
        yield issue("L42", "strategy.sharding", text, value="NO_SHARD")
    if nproc * plan.nnodes == 1 and how.kind in SHARDED and (how.kind != "deepspeed" or how.stage):
        text = f"{how.kind} with one rank divides nothing."
        yield issue("L28", "topology.nproc_per_node", text, value="1 rank")
    for name, offloaded in (
        ("cpu_offload", how.kind in ("fsdp1", "fsdp2") and how.cpu_offload),
        ("offload_optimizer", how.kind == "deepspeed" and how.offload_optimizer != "none"),
        ("offload_param", how.kind == "deepspeed" and how.offload_param != "none"),
    ):
        if offloaded:
            text = "What rests in host memory or on disk is fetched in each step: several times slower."
            yield issue("L20", f"strategy.{name}", text, value=model.show(getattr(how, name)))
    if plan.mesh.get("tp", 1) > nproc > 0 and plan.nnodes > 1:
        tp = plan.mesh["tp"]
        text = (
            f"tp {tp} is more than the {nproc} ranks of a node: every matrix product waits for the network."
        )
        yield issue("L39", "mesh.tp", text, value=str(tp))


def _launcher(plan: Plan, preset: Preset) -> Iterator[Finding]:
    """What the preset hands to torchrun."""
    if preset.launcher.kind != "torchrun":
        return
    options = torchrun_args.read([Word(text, 0) for text in preset.launcher.args])
    for word in options.unknown:
        near = torchrun_args.nearest_option(word.text)
        text = f"torchrun has no option {word.text} and ends with an error."
        remedy = f"Did you mean {near}?" if near else None
        yield issue("L3", "launcher.args", text, value=word.text, remedy=remedy)


def _deepspeed(plan: Plan, preset: Preset, seen: script.ScriptContents | None) -> Iterator[Finding]:
    """DeepSpeed's configuration: what is written for it, else what the preset adds to it."""
    filled = False if seen and any(full == "deepspeed.initialize" for full, _, _ in seen.calls) else None
    world = worker_group.data_ranks(plan.mesh) if plan.mesh else None
    written = [name for name in plan.files if name.endswith(".json")]
    for name in written:
        try:
            document = markup.read(plan.files[name])
        except Unreadable:
            continue
        if consumers.is_config(document):
            findings = consumers.check_deepspeed(document, name, world, filled_in=filled)
            yield from (
                finding for finding in findings if finding.id not in ("L20", "L32")
            )  # said of the fields already
    if preset.deepspeed and not written:
        yield from consumers.check_deepspeed(plain(preset.deepspeed), "deepspeed", world, filled_in=filled)


def _optimizer(plan: Plan, preset: Preset, source: str | bytes | None) -> Iterator[Finding]:
    """The configuration of a preset replaces the script's own, in which its optimizer may be."""
    if (
        preset.strategy.kind != "deepspeed"
        or "optimizer" in preset.deepspeed
        or not plan.obeys
        or not source
    ):
        return
    try:
        call = parse(source).find("deepspeed.initialize")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    if call is None or len(call.node.args) > 2:
        return
    if not any(keyword.arg in (None, "optimizer") for keyword in call.node.keywords):
        text = (
            f"deepspeed.initialize() in line {call.line} gets no optimizer, and the configuration has none."
        )
        yield issue("L45", "deepspeed.optimizer", text)


def _seen(source: str | bytes | None) -> script.ScriptContents | None:
    """What there is in the script; None where there is none, or it cannot be read."""
    try:
        return None if source is None else script.inspect(source)
    except Unreadable:
        return None


def _nodes(plan: Plan, resources: Resources | None, managed: bool, hosts: int | None) -> Iterator[Finding]:
    """What carries the plan."""
    if managed:
        text = (
            "A managed job has no ssh to its nodes: ranks and GPUs are not seen, nor restarted from here."
        )
        yield issue("L12", "--managed", text)
    if hosts is not None and hosts > plan.nnodes:
        text = f"{hosts} hosts are named, and the plan is for {plan.nnodes}: the others are idle."
        remedy = f"Add --nnodes {hosts}."
        yield issue(
            "L35", "topology.nnodes", text, value=str(plan.nnodes), severity="warning", remedy=remedy
        )
    if resources is None:
        return
    infra = (resources.infra or "").partition("/")[0].lower()
    wanted = resources.gpus or any("gpus" in alternative for alternative in resources.any_of)
    if plan.nnodes > 1 and wanted and resources.network_tier != "best" and infra not in TIERED:
        text = "Without network_tier best the nodes get the plain network: no EFA, TCPX or InfiniBand."
        remedy = "Add --network-tier best."
        yield issue("L21", "--network-tier", text, value=resources.network_tier or "", remedy=remedy)
    if resources.gpus and plan.nproc_per_node and plan.backend == "nccl":
        gpus = skypilot.gpus(resources.gpus)[1]
        if plan.nproc_per_node < gpus:
            text = (
                f"{plan.nproc_per_node} ranks on a node of {gpus} GPUs: the others are paid for, and idle."
            )
            value = str(plan.nproc_per_node)
            yield issue("L35", "topology.nproc_per_node", text, value=value, severity="warning")


def _script(plan: Plan, source: str | bytes | None) -> Iterator[Finding]:
    if source is None or not plan.strategy:
        return
    facts = script.ScriptFacts(
        nproc=plan.nproc_per_node,
        nnodes=plan.nnodes,
        strategy=None if plan.obeys else plan.strategy,
        preset=plan.preset,
    )
    name = PurePath(next((word for word in plan.command if not word.startswith("-")), "script")).name
    yield from script.check(source, name, facts)


def _sizes(plan: Plan, preset: Preset, sources: Sequence[str | bytes]) -> Iterator[Finding]:
    """What the mesh does not divide."""
    if plan.strategy and sources:
        yield from script.check_sizes(sources, plan.command[1:], plan.mesh, preset)


def _command(plan: Plan, resources: Resources | None) -> Iterator[Finding]:
    """The command of `distui exec`, or the `run:` of a task."""
    if plan.strategy:
        return
    text = plan.files.get(skypilot.TASK_SCRIPT)
    around = Surroundings(
        file="" if text is None else "run",
        nnodes=plan.nnodes,
        every_node=plan.nnodes > 1,
        own_nodes=resources is not None,
        env={name: value for name, value in plan.env.items() if name not in worker_group.WATCHED},
    )
    yield from launches.check_text(shlex.join(plan.argv) if text is None else text, around)


# -----------------------------------------------------------------------------------------------------------
# Rules about a SkyPilot task.


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


def check_skypilot(
    task: MarkupNode, file: str, exists: Callable[[str], bool] | None = None
) -> list[Finding]:
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
            *(finding for key in ("setup", "run") for finding in _shell(task.get(key), around)),
        ]
    )


def _envs(task: MarkupNode) -> Iterator[tuple[str, MarkupNode]]:
    envs = task.get("envs")
    yield from (envs.mapping if envs else {}).items()


def _text(node: MarkupNode) -> str:
    if isinstance(node.value, bool):
        return str(node.value).lower()
    return "$" if node.value is None or isinstance(node.value, dict | list) else str(node.value)


def _shell(node: MarkupNode | None, around: Surroundings) -> list[Finding]:
    if node is None or not isinstance(node.value, str):
        return []
    return launches.check_text(node.value, around, node.text_line)


def _wishes(task: MarkupNode) -> list[MarkupNode]:
    """`resources`, and its alternatives."""
    resources = task.get("resources")
    if resources is None:
        return []
    alternatives = [
        wish for key in ("any_of", "ordered") for wish in (resources.get(key) or MarkupNode(0, None)).items
    ]
    return [resources, *alternatives]


def gpus(task: MarkupNode) -> int | None:
    """Accelerators of each node; 0 where none is asked for, None where they differ or cannot be known."""
    wishes = _wishes(task)
    counts = {count for wish in wishes for count in _counts(wish.get("accelerators"))}
    if counts:
        return counts.pop() if len(counts) == 1 else None
    requested = any(
        wish.get(key) for wish in wishes for key in ("accelerators", "instance_type", "any_of", "ordered")
    )
    return None if requested else 0


def _counts(node: MarkupNode | None) -> Iterator[int | None]:
    """The numbers that `accelerators` names: "H100:8", {H100: 8}, or a list of such."""
    if node is None:
        return
    for item in node.items:
        yield from _counts(item)
    for name in node.mapping:
        yield node.number(name)
    if isinstance(node.value, str):
        name, _, count = node.value.partition(":")
        tpu = name.lower().startswith("tpu")
        yield None if tpu else whole(count) if count else 1


def _names(task: MarkupNode, file: str) -> Iterator[Finding]:
    if "working_dir" not in task.mapping:  # an oumi job: nearly a task, with keys of its own
        yield from lint_rules.keys(file, task, KEYS, "A SkyPilot task", refuses=True)
    nodes = task.get("num_nodes")
    if nodes is not None and (task.number("num_nodes") or 0) < 1:
        text = f"num_nodes {nodes.value} is no number of nodes."
        value = f"num_nodes: {nodes.value}"
        yield issue(
            "L30", place(file, nodes, "num_nodes"), text, value=value, remedy="Write a number from 1 on."
        )
    for wish in _wishes(task):
        yield from lint_rules.keys(file, wish, RESOURCES, "SkyPilot's resources", refuses=True)


def _resources(task: MarkupNode, file: str, nnodes: int | None) -> Iterator[Finding]:
    wishes = _wishes(task)
    for wish in wishes:
        tier = wish.get("network_tier")
        if tier is not None and str(tier.value).lower() not in TIERS:
            text = f"SkyPilot has no network_tier {tier.value}, and refuses the task."
            value = f"network_tier: {tier.value}"
            yield issue("L7", place(file, tier, "resources.network_tier"), text, value=value)
        ports = wish.get("ports")
        if ports is not None:
            text = "ports opens these to the whole internet, on every node."
            yield issue("L13", place(file, ports, "resources.ports"), text, value="ports")
        recovery = wish.get("job_recovery") or wish.get("spot_recovery")
        if recovery is not None:
            text = "job_recovery acts in managed jobs alone, to whose nodes there is no ssh."
            yield issue("L12", place(file, recovery, "resources.job_recovery"), text, value="job_recovery")
        preemptible = wish.get("use_spot")
        if preemptible is not None and preemptible.value is True and not saves(task.text("run")):
            text = "Spot nodes can be taken back, and nothing in run speaks of a checkpoint."
            yield issue("L37", place(file, preemptible, "resources.use_spot"), text, value="use_spot: true")
    yield from _network(task, wishes, file, nnodes)


def _network(
    task: MarkupNode, wishes: list[MarkupNode], file: str, nnodes: int | None
) -> Iterator[Finding]:
    """Several nodes with GPUs, on a network that nobody asked to be fast."""
    infras = {(res.text("infra") or res.text("cloud")).partition("/")[0].lower() for res in wishes} - {""}
    if (nnodes or 1) < 2 or gpus(task) == 0 or (infras and infras <= set(TIERLESS)):
        return
    if any(wish.get("network_tier") and wish.text("network_tier") != "standard" for wish in wishes):
        return  # also where it is a wrong one: L7 says so
    tier = next((wish.get("network_tier") for wish in wishes if wish.get("network_tier")), None)
    where = place(file, tier or task.get("resources") or task.get("num_nodes"), "resources")
    text = f"{nnodes} nodes with the plain network between them: no EFA, TCPX or InfiniBand."
    yield issue("L21", where, text, value="network_tier: standard" if tier else "")


def _variables(task: MarkupNode, file: str, nnodes: int | None) -> Iterator[Finding]:
    nodes = dict(_envs(task))
    env = {name: _text(node) for name, node in nodes.items()}
    yield from torchrun_args.check_all(env, lambda name: place(file, nodes[name], f"envs.{name}"), nnodes)
    secret = task.get("secrets")
    for section in (nodes, secret.mapping if secret else {}):
        for name, node in section.items():
            for finding in torchrun_args.in_plain_text(name, _text(node), place(file, node, name)):
                remedy = f"Write `{name}: null` under secrets, and launch with --secret {name}."
                yield issue(finding.id, finding.where, finding.text, value=finding.value, remedy=remedy)
