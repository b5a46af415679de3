"""Rules for plans: environment, strategy, nodes and script of a launch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from functools import partial
from pathlib import PurePath

from .. import adopt, model, rank_env, rank_mesh, skypilot
from ..finding import Finding, worst_first
from ..launchers import deepspeed, megatron
from ..model import Loaded, Preset, Strategy
from ..plan import Plan
from ..request import Request
from ..sanitize import sentence
from ..text_formats import Unreadable, plain, read_json
from . import launches, lint_rules, script, skypilot_file
from .deepspeed_file import check_deepspeed, is_deepspeed
from .lint_rules import issue, once
from .model_sizes import check_sizes
from .shell import Word
from .torchrun_options import read_options, unknown_option

SHARDED = ("zero1", "fsdp1", "fsdp2", "deepspeed")
OFFLOADS: Mapping[str, Sequence[str]] = {
    "fsdp1": ("cpu_offload",),
    "fsdp2": ("cpu_offload",),
    "deepspeed": ("offload_optimizer", "offload_param"),
}
"""Kind of strategy → its options that move parameters or optimizer states out of GPU memory."""


def lint_plan(
    plan: Plan,
    loaded: Loaded,
    request: Request,
    *,
    source: str | bytes | None = None,
    beside: Mapping[str, str | bytes | None] | None = None,
    ran_on_one_node: bool | None = None,
) -> list[Finding]:
    """Check the plan of a request, and return the worst findings first. Never raises.

    `source`: the script's text. `beside`: its imported files from the same folder, None for files that are too large.
    `ran_on_one_node`: True if an earlier run of the script was on one node, None if that is unknown.
    """
    preset, seen = loaded.preset, _seen(source)
    findings = [
        *_environment(plan, loaded, seen),
        *_sharding(plan, preset),
        *_launcher(preset),
        *_deepspeed(plan, preset, seen),
        *_optimizer(plan, preset, seen),
        *_nodes(plan, request),
        *_script(plan, loaded, source, beside or {}, seen),
        *_model_sizes(plan, preset, source, beside or {}),
        *_parallel_sizes(plan),
        *_first_launch(plan, ran_on_one_node),
    ]
    if request.through_sky and request.task is None:
        findings += [*_cloud(plan, request), *_path(plan, source), *_spot(request, seen)]
    return worst_first(once(findings))


def refusal(message: str) -> Finding:
    """Convert the message of a PlanError to a finding."""
    if message.startswith("batch."):
        id = "L17"
    elif message.startswith("mesh"):
        id = "L18"
    else:
        id = "L19"
    return issue(id, "", sentence(message), remedy="")


def _first_launch(plan: Plan, ran_on_one_node: bool | None) -> Iterator[Finding]:
    """Report the first launch of a script if it is on several nodes."""
    if plan.nnodes > 1 and ran_on_one_node is False:
        facts = {"script": PurePath(_script_path(plan)).name, "nodes": plan.nnodes}
        command = f"`distui launch {plan.preset} -- {facts['script']}` for a few steps"
        yield lint_rules.case(
            "L71", "first", "topology.nnodes", {"command": command, **facts}, value=str(plan.nnodes)
        )


def _environment(plan: Plan, loaded: Loaded, seen: script.ScriptContents | None) -> Iterator[Finding]:
    preset, own = loaded.preset, seen.reads if seen else frozenset()
    env = {
        name: value
        for name, value in plan.env.items()
        if not name.startswith("DISTUI_") and name not in own and rank_env.WATCHED.get(name) != value
    }
    yield from lint_rules.check_all(env, partial(_of_preset, preset, plan.env), plan.nnodes)
    for pattern, variables in plan.hosts.items():
        yield from lint_rules.check_all(variables, partial(_of_hosts, pattern), plan.nnodes)
    for name, value in preset.env.items():
        if "builtin" not in loaded.origins.get(f"env.{name}", "--set"):
            yield from lint_rules.in_plain_text(name, value, f"env.{name}")


def _of_preset(preset: Preset, planned: Mapping[str, str], name: str) -> str:
    for table, env in (("nccl", preset.nccl.env), ("env", preset.env)):
        if env.get(name) == planned.get(name) and name in env:
            return f"{table}.{name}"
    return name


def _of_hosts(pattern: str, name: str) -> str:
    return f"hosts.{pattern}.{name}"


def _sharding(plan: Plan, preset: Preset) -> Iterator[Finding]:
    """Report costs of the strategy on this number of ranks."""
    if not plan.strategy:  # a plain command
        return
    how, nproc = preset.strategy, plan.nproc_per_node or 0
    if plan.nnodes == 1:
        yield from _replicas(plan, how)
    if how.kind == "fsdp1" and how.sharding == "NO_SHARD":
        text = "NO_SHARD keeps everything on every GPU, as DDP does, and is slower."
        yield issue("L42", "strategy.sharding", text, value="NO_SHARD")
    moves = any(getattr(how, name) not in (False, "none") for name in OFFLOADS.get(how.kind, ()))
    if nproc * plan.nnodes == 1 and _divides(how) and not moves:
        text = f"{how.kind} with one rank divides nothing."
        yield issue("L28", "topology.nproc_per_node", text, value="1 rank")
    yield from _offloads(how)
    if plan.mesh.get("tp", 1) > nproc > 0 and plan.nnodes > 1:
        tp = plan.mesh["tp"]
        text = (
            f"tp {tp} is more than the {nproc} ranks of a node: every matrix product waits for the network."
        )
        yield issue("L39", "mesh.tp", text, value=str(tp))


def _offloads(how: Strategy) -> Iterator[Finding]:
    for name in OFFLOADS.get(how.kind, ()):
        place = getattr(how, name)
        if place not in (False, "none"):
            text = "What rests in host memory or on disk is fetched in each step: several times slower."
            yield issue("L20", f"strategy.{name}", text, value=model.show(place))


def _divides(how: Strategy) -> bool:
    return how.kind in SHARDED and (how.kind != "deepspeed" or how.stage > 0)


def _replicas(plan: Plan, how: Strategy) -> Iterator[Finding]:
    """Report replicas on a single node."""
    text = (
        "Replicas inside one node need more memory, and there is no slower network that they would spare."
    )
    replicas = plan.mesh.get("dp_replicate", 1)
    if how.kind == "fsdp1" and how.sharding.startswith("HYBRID"):
        yield issue("L11", "strategy.sharding", text, value=how.sharding)
    elif replicas > 1 and how.kind in ("fsdp1", "fsdp2"):
        yield issue("L11", "mesh.dp_replicate", text, value=str(replicas))


def _launcher(preset: Preset) -> Iterator[Finding]:
    options = read_options([Word(text, 0) for text in preset.launcher.args])
    for word in options.unknown:
        yield unknown_option(word.text, "launcher.args")


def _deepspeed(plan: Plan, preset: Preset, seen: script.ScriptContents | None) -> Iterator[Finding]:
    """Check DeepSpeed's written configuration, or else the preset's table."""
    filled = None if seen is None else script.fills_in(seen)
    world = rank_mesh.data_ranks(plan.mesh) if plan.mesh else None
    check = partial(check_deepspeed, world=world, filled_in=filled)
    written = [name for name in plan.files if name.endswith(".json")]
    for name in written:
        try:
            document = read_json(plan.files[name])
        except Unreadable:
            continue
        if is_deepspeed(document):
            yield from filter(_is_about_no_field, check(document, name))
    if preset.deepspeed and not written:
        yield from check(plain(preset.deepspeed), "deepspeed")


def _is_about_no_field(finding: Finding) -> bool:
    """Return False for findings on a DeepSpeed configuration that are also reported for the preset's fields."""
    return finding.id not in ("L20", "L32")


def _optimizer(plan: Plan, preset: Preset, seen: script.ScriptContents | None) -> Iterator[Finding]:
    """Report a script whose optimizer is missing in the launched configuration."""
    if (
        seen is None
        or preset.strategy.kind != "deepspeed"
        or '"optimizer":' in plan.files.get(deepspeed.CONFIG_FILE, "")
        or not plan.obeys
    ):
        return
    call = seen.script.find("deepspeed.initialize")
    if call is None or len(call.node.args) > 2:
        return
    if not any(keyword.arg in (None, "optimizer") for keyword in call.node.keywords):
        text = (
            f"deepspeed.initialize() in line {call.line} gets no optimizer, and the configuration has none."
        )
        yield issue("L45", "deepspeed.optimizer", text)


def _seen(source: str | bytes | None) -> script.ScriptContents | None:
    """Analyse the script. Return None if it is missing or unreadable."""
    try:
        return None if source is None else script.inspect(source)
    except Unreadable:
        return None


def _nodes(plan: Plan, request: Request) -> Iterator[Finding]:
    """Check the nodes of the plan."""
    if request.managed:
        text = (
            "A managed job has no ssh to its nodes: ranks and GPUs are not seen, nor restarted from here."
        )
        yield issue("L12", "--managed", text)
    hosts = len(request.hosts)
    if hosts > plan.nnodes:
        text = f"{hosts} hosts are named, and the plan is for {plan.nnodes}: the others are idle."
        value, remedy = str(plan.nnodes), f"Add --nnodes {hosts}."
        yield issue("L35", "topology.nnodes", text, value=value, severity="warning", remedy=remedy)


def _cloud(plan: Plan, request: Request) -> Iterator[Finding]:
    """Check the nodes that SkyPilot is to provide."""
    yield from skypilot_file.old_torch(plain(request.setup), "--setup")
    if request.gpus:
        yield from skypilot_file.other_makers(request.gpus.partition(":")[0], "--gpus")
    if plan.nnodes > 1 and request.network_tier != "best" and _has_tiers(request):
        text = "Without network_tier best the nodes get the plain network, not the fastest that there is."
        remedy = "Add --network-tier best."
        yield issue("L21", "--network-tier", text, value=request.network_tier or "", remedy=remedy)
    if request.gpus and plan.nproc_per_node and plan.backend == "nccl":
        gpus = skypilot.gpus(request.gpus)[1]
        if plan.nproc_per_node < gpus:
            value = str(plan.nproc_per_node)
            text = f"{value} ranks on a node of {gpus} GPUs: the others are paid for, and idle."
            yield issue("L35", "topology.nproc_per_node", text, value=value, severity="warning")


def _spot(request: Request, seen: script.ScriptContents | None) -> Iterator[Finding]:
    if request.spot and seen is not None and not script.names_save(seen.mentioned):
        yield issue("L37", "--spot", "Spot nodes can be taken back, and the script saves no checkpoint.")


def _path(plan: Plan, source: str | bytes | None) -> Iterator[Finding]:
    """Report an absolute local script path for nodes that may not have the file."""
    path = _script_path(plan)
    if source is not None and path.startswith("/"):
        text = (
            f"{path} is a path of this machine, and nothing copies it: are the nodes known to have it, too?"
        )
        yield issue("L46", path, text)


def _script_path(plan: Plan) -> str:
    return next((word for word in plan.command if not word.startswith("-")), "")


def _has_tiers(request: Request) -> bool:
    """Return True if a network tier changes anything for the requested accelerators."""
    infra = (request.infra or "").partition("/")[0].lower()
    if infra in skypilot_file.TIERLESS:
        return False
    gpus = {skypilot.gpus(text)[0] for text in skypilot.accelerators(request) if text}
    return bool(gpus) and not skypilot_file.are_plain(gpus)


def _script(
    plan: Plan,
    loaded: Loaded,
    source: str | bytes | None,
    beside: Mapping[str, str | bytes | None],
    seen: script.ScriptContents | None,
) -> Iterator[Finding]:
    """Check the script and its imported files. A rule that the script has broken is not repeated for these."""
    if source is None or not plan.strategy:
        return
    name = PurePath(_script_path(plan) or "script").name
    facts = script.ScriptFacts(
        nproc=plan.nproc_per_node,
        nnodes=plan.nnodes,
        strategy=None if plan.obeys else plan.strategy,
        preset=plan.preset,
        remedy="" if plan.obeys else adopt.remedy(loaded.preset, name, {"": source, **beside}),
        gpus=plan.backend == "nccl" if plan.backend else None,
    )
    findings = script.check(source, name, facts)
    known = {finding.id for finding in findings}
    if seen and "is_available" in seen.mentioned:
        known.add("L48")  # the script decides what its imported files do
    findings += _imported_files(beside, facts, known)
    yield from findings
    is_decided = bool({"L25", "L41"} & {finding.id for finding in findings})
    by_itself = adopt.own_strategies(name, {"": source, **beside}) - {"ddp"}
    if not is_decided and plan.strategy not in by_itself:
        yield from _without_effect(plan, loaded, name, facts.remedy)


def _without_effect(plan: Plan, loaded: Loaded, name: str, remedy: str) -> Iterator[Finding]:
    """Report a preset that changes the strategy, for a script that ignores it."""
    why = next((note for note in reversed(plan.notes) if note.startswith(name)), "unknown")
    if plan.obeys or "unknown" in why:
        return
    chosen = [path for path, origin in loaded.origins.items() if _is_chosen(path, origin)]
    divides = any(getattr(loaded.preset.mesh, name) > 1 for name in adopt.DIVIDES)
    if plan.strategy not in ("single", "ddp") or divides:
        yield issue("L25", name, why, value=plan.strategy, remedy=remedy or None)
    elif chosen:
        yield issue(
            "L25",
            chosen[0],
            f"{chosen[0]} has no effect: {why}",
            value=plan.strategy,
            remedy=remedy or None,
        )


def _is_chosen(path: str, origin: str) -> bool:
    """Return True for a value of strategy or precision that no shipped preset sets."""
    return (
        path.startswith(("strategy.", "precision."))
        and path != "strategy.kind"
        and not origin.startswith("builtin ")
    )


def _imported_files(
    beside: Mapping[str, str | bytes | None], facts: script.ScriptFacts, known: Set[str]
) -> Iterator[Finding]:
    """Check the imported files. `known`: rules whose findings are left out."""
    for file, text in beside.items():
        if text is not None:
            yield from (hit for hit in script.check_imported(text, file, facts) if hit.id not in known)
    yield from script.too_large([file for file, text in beside.items() if text is None])


def _model_sizes(
    plan: Plan, preset: Preset, source: str | bytes | None, beside: Mapping[str, str | bytes | None]
) -> Iterator[Finding]:
    """Check the sizes of the script's model against the mesh."""
    if plan.strategy and source is not None:
        yield from check_sizes([source, *beside.values()], plan.command[1:], plan.mesh, preset)


def _parallel_sizes(plan: Plan) -> Iterator[Finding]:
    """Check Megatron-LM's and NeMo's sizes in the script's arguments against the ranks."""
    asked = None if plan.obeys or not plan.strategy else megatron.read(plan.command[1:])
    if asked is not None:
        yield from launches.parallel_sizes(asked, plan.nnodes * (plan.nproc_per_node or 1), "")
