"""Rules about a plan, before anything is started."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import PurePath

from .. import environ, mesh, schema
from ..finding import Finding, worst_first
from ..launchers import skypilot
from ..launchers.skypilot import Resources
from ..model import Loaded, Preset
from ..plan import Plan
from . import deepspeed, jsonnodes, launches, options, script, variables
from .commands import Surroundings
from .nodes import Unreadable, plain
from .rules import found, once
from .saving import names_save
from .shell import Word

SHARDED = ("zero1", "fsdp1", "fsdp2", "deepspeed")
TIERED = ("slurm", "ssh")
"""Infras that do nothing with a network tier."""


def lint_plan(
    plan: Plan,
    loaded: Loaded,
    *,
    source: str | bytes | None = None,
    resources: Resources | None = None,
    managed: bool = False,
    hosts: int | None = None,
) -> list[Finding]:
    """What is wrong with a plan, the worst first.

    `source`: the script's text; `resources` where SkyPilot brings the nodes; `hosts`: how many are named. Never raises.
    """
    seen = _seen(source)
    findings = [
        *_environment(plan, loaded, seen),
        *_sharding(plan, loaded.preset),
        *_launcher(plan, loaded.preset),
        *_deepspeed(plan, loaded.preset, seen),
        *_nodes(plan, resources, managed, hosts),
        *_script(plan, source),
        *_command(plan, resources),
    ]
    if resources is not None and resources.spot and seen is not None and not names_save(seen.mentioned):
        findings.append(
            found("L37", "--spot", "Spot nodes can be taken back, and the script saves no checkpoint.")
        )
    return worst_first(once(findings))


def refusal(sentence: str) -> Finding:
    """Why no plan can be made, as a finding: the sentence of a PlanError."""
    id = "L17" if sentence.startswith("batch.") else "L18" if sentence.startswith("mesh") else "L19"
    return found(id, "", sentence, remedy="")


def _environment(plan: Plan, loaded: Loaded, seen: script.Seen | None) -> Iterator[Finding]:
    preset, own = loaded.preset, seen.reads if seen else frozenset()

    def where(name: str) -> str:
        for table, env in (("nccl", preset.nccl.env), ("env", preset.env)):
            if env.get(name) == plan.env.get(name) and name in env:
                return f"{table}.{name}"
        return name

    env = {
        name: value
        for name, value in plan.env.items()
        if not name.startswith("DISTUI_") and name not in own and environ.WATCHED.get(name) != value
    }
    yield from variables.check_all(env, where, plan.nnodes)
    for name, value in preset.env.items():
        if "builtin" not in loaded.origins.get(f"env.{name}", "--set"):
            yield from variables.in_plain_text(name, value, f"env.{name}")


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
        yield found("L11", where, text, value=value)
    if how.kind == "fsdp1" and how.sharding == "NO_SHARD":
        text = "NO_SHARD keeps everything on every GPU, as DDP does, and is slower."
        yield found("L42", "strategy.sharding", text, value="NO_SHARD")
    if nproc * plan.nnodes == 1 and how.kind in SHARDED and (how.kind != "deepspeed" or how.stage):
        text = f"{how.kind} with one rank divides nothing."
        yield found("L28", "topology.nproc_per_node", text, value="1 rank")
    for name, offloaded in (
        ("cpu_offload", how.kind in ("fsdp1", "fsdp2") and how.cpu_offload),
        ("offload_optimizer", how.kind == "deepspeed" and how.offload_optimizer != "none"),
        ("offload_param", how.kind == "deepspeed" and how.offload_param != "none"),
    ):
        if offloaded:
            text = "What rests in host memory or on disk is fetched in each step: several times slower."
            yield found("L20", f"strategy.{name}", text, value=schema.show(getattr(how, name)))
    if plan.mesh.get("tp", 1) > nproc > 0 and plan.nnodes > 1:
        tp = plan.mesh["tp"]
        text = (
            f"tp {tp} is more than the {nproc} ranks of a node: every matrix product waits for the network."
        )
        yield found("L39", "mesh.tp", text, value=str(tp))


def _launcher(plan: Plan, preset: Preset) -> Iterator[Finding]:
    """What the preset hands to torchrun."""
    if preset.launcher.kind != "torchrun":
        return
    said = options.read([Word(text, 0) for text in preset.launcher.args])
    for word in said.unknown:
        near = options.nearest(word.text)
        text = f"torchrun has no option {word.text} and ends with an error."
        remedy = f"Did you mean {near}?" if near else None
        yield found("L3", "launcher.args", text, value=word.text, remedy=remedy)


def _deepspeed(plan: Plan, preset: Preset, seen: script.Seen | None) -> Iterator[Finding]:
    """DeepSpeed's configuration: what is written for it, else what the preset adds to it."""
    filled = False if seen and any(full == "deepspeed.initialize" for full, _, _ in seen.calls) else None
    world = mesh.data_ranks(plan.mesh) if plan.mesh else None
    written = [name for name in plan.files if name.endswith(".json")]
    for name in written:
        try:
            document = jsonnodes.read(plan.files[name])
        except Unreadable:
            continue
        if deepspeed.is_config(document):
            findings = deepspeed.check(document, name, world, filled_in=filled)
            yield from (
                one for one in findings if one.id not in ("L20", "L32")
            )  # said of the fields already
    if preset.deepspeed and not written:
        yield from deepspeed.check(plain(preset.deepspeed), "deepspeed", world, filled_in=filled)


def _seen(source: str | bytes | None) -> script.Seen | None:
    """What there is in the script; None where there is none, or it cannot be read."""
    try:
        return None if source is None else script.look(source)
    except Unreadable:
        return None


def _nodes(plan: Plan, resources: Resources | None, managed: bool, hosts: int | None) -> Iterator[Finding]:
    """What carries the plan."""
    if managed:
        text = (
            "A managed job has no ssh to its nodes: ranks and GPUs are not seen, nor restarted from here."
        )
        yield found("L12", "--managed", text)
    if hosts is not None and hosts > plan.nnodes:
        text = f"{hosts} hosts are named, and the plan is for {plan.nnodes}: the others are idle."
        remedy = f"Add --nnodes {hosts}."
        yield found(
            "L35", "topology.nnodes", text, value=str(plan.nnodes), severity="warning", remedy=remedy
        )
    if resources is None:
        return
    infra = (resources.infra or "").partition("/")[0].lower()
    wanted = resources.gpus or any("gpus" in one for one in resources.any_of)
    if plan.nnodes > 1 and wanted and resources.network_tier != "best" and infra not in TIERED:
        text = "Without network_tier best the nodes get the plain network: no EFA, TCPX or InfiniBand."
        remedy = "Add --network-tier best."
        yield found("L21", "--network-tier", text, value=resources.network_tier or "", remedy=remedy)
    if resources.gpus and plan.nproc_per_node and plan.backend == "nccl":
        gpus = skypilot.gpus(resources.gpus)[1]
        if plan.nproc_per_node < gpus:
            text = (
                f"{plan.nproc_per_node} ranks on a node of {gpus} GPUs: the others are paid for, and idle."
            )
            value = str(plan.nproc_per_node)
            yield found("L35", "topology.nproc_per_node", text, value=value, severity="warning")


def _script(plan: Plan, source: str | bytes | None) -> Iterator[Finding]:
    if source is None or not plan.strategy:
        return
    facts = script.Facts(
        nproc=plan.nproc_per_node,
        nnodes=plan.nnodes,
        strategy=None if plan.obeys else plan.strategy,
        preset=plan.preset,
    )
    name = PurePath(next((word for word in plan.command if not word.startswith("-")), "script")).name
    yield from script.check(source, name, facts)


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
        env={name: value for name, value in plan.env.items() if name not in environ.WATCHED},
    )
    yield from launches.check_text(shlex.join(plan.argv) if text is None else text, around)
