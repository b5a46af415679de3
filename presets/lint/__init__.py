"""Check plans, files and commands before a launch costs money. Pure: texts and values in, findings out."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from functools import partial
from pathlib import PurePath
from typing import Any

from .. import model, skypilot, worker_group
from ..finding import Finding, PresetError, sentence, worst_first
from ..launchers import deepspeed, megatron
from ..load import PROJECT_FILE, Definition, Library, check_name, load
from ..model import Loaded, Preset, Strategy
from ..plan import Plan
from ..request import Request
from ..text_formats import (
    MOST_BYTES,
    MarkupNode,
    Unreadable,
    decoded,
    plain,
    read_json,
    read_toml,
    read_yaml,
)
from . import config_files, launches, lint_rules, script
from .lint_rules import RULES, LintRule, issue, once
from .shell import Surroundings, Word

__all__ = [
    "RULES",
    "SUFFIXES",
    "LintRule",
    "lint_command",
    "lint_file",
    "lint_plan",
    "lint_task",
    "lint_text",
    "refusal",
]

Exists = Callable[[str], bool]
SUFFIXES = (".yaml", ".yml", ".json", ".toml", ".sh", ".bash", ".sbatch", ".slurm", ".py")
"""Suffixes of files that lint can check."""
SHELLS = (".sh", ".bash", ".sbatch", ".slurm")
_SHEBANG = re.compile(r"#!.*?\b(python|(?:ba|da|z|k)?sh)[\d.]*\b")
_LAUNCHER = re.compile(r"\b(torchrun|accelerate launch|deepspeed|torch\.distributed\.(run|launch))\b")


def lint_file(
    name: str,
    data: bytes,
    *,
    exists: Exists | None = None,
    presets: Library | None = None,
    facts: script.ScriptFacts | None = None,
) -> list[Finding]:
    """Check a file, and return the worst findings first. Raises PresetError for YAML without PyYAML.

    `exists` returns True if a file exists, by its path relative to this one. `presets` is the library of existing
    presets. `facts`: the planned launch, for a script.
    """
    try:
        text = _text(data)
        return worst_first(_checked(name, text, exists, presets, facts))
    except Unreadable as error:
        remedy = None if "not valid" in str(error) else ""
        return [issue("L41", f"{name}:{max(1, error.line)}", f"{name} {error}.", remedy=remedy)]


def lint_text(text: str, exists: Exists | None = None) -> list[Finding]:
    """Check a command line or a shell script, and return the worst findings first. Never raises."""
    return worst_first(launches.check_text(text, Surroundings(exists=exists)))


def lint_command(
    text: str, exists: Exists, read: Callable[[str], bytes | None], gpus: bool | None = None
) -> list[Finding]:
    """Check a command line and the files that it names, and return the worst findings first. Raises PresetError.

    `exists` and `read` take paths relative to the command's directory. `gpus`: True if there are GPUs.
    """
    findings = launches.check_text(text, Surroundings(exists=exists))
    for file in launches.named_files(text):
        data = read(file.path)
        if data is not None:
            facts = script.ScriptFacts(nproc=file.nproc, nnodes=file.nnodes, gpus=gpus)
            findings += lint_file(file.path, data, exists=exists, facts=facts)
        elif exists(file.path):
            what = f"{file.path} cannot be read: nothing in it was checked."
            findings.append(issue("L41", file.path, what, severity="warning", remedy=""))
        elif not any(finding.value == file.path for finding in findings):
            remedy = "Give its path from where the command runs." if file.is_script else None
            what = f"There is no {file.path}, seen from here."
            findings.append(issue("L8", f"line {file.line}", what, value=file.path, remedy=remedy))
    return worst_first(once(findings))


def _text(data: bytes) -> str:
    """Decode a file. Raises Unreadable."""
    if len(data) > MOST_BYTES:
        raise Unreadable(1, f"is larger than {MOST_BYTES >> 20} MiB: no file that lint checks is so large")
    return decoded(data)


def _checked(
    name: str,
    text: str,
    exists: Exists | None,
    library: Library | None,
    facts: script.ScriptFacts | None,
) -> list[Finding]:
    """Check a file by its kind. Raises Unreadable."""
    match _kind(name, text):
        case "python":
            return script.check(text, name, facts)
        case "shell":
            return launches.check_text(text, Surroundings(file=name, exists=exists))
        case "toml":
            document = read_toml(text)
            if is_preset(document):
                return check_preset(document, text, name, library)
        case "json":
            return _document([read_json(text)], name, exists)
        case "yaml":
            return _document(read_yaml(text), name, exists)
    return [_unknown(name)]


def _kind(name: str, text: str) -> str:
    """Return the kind of a file, by its suffix, else by its content."""
    lower = name.lower()
    if lower.endswith(".py"):
        return "python"
    if lower.endswith(SHELLS):
        return "shell"
    for kind, suffixes in (("toml", (".toml",)), ("json", (".json",)), ("yaml", (".yaml", ".yml"))):
        if lower.endswith(suffixes):
            return kind
    shebang = _SHEBANG.match(text)
    if shebang:
        return "python" if shebang[1] == "python" else "shell"
    if text.lstrip().startswith("{"):
        return "json"
    return "shell" if _LAUNCHER.search(text) else ""


def _document(documents: list[MarkupNode], name: str, exists: Exists | None) -> list[Finding]:
    """Check a file of accelerate, DeepSpeed or SkyPilot, which its keys identify."""
    findings: list[Finding] = []
    recognised = False
    for document in documents:
        keys = document.mapping.keys()
        if keys & {"distributed_type", "compute_environment"}:
            findings += config_files.check_accelerate(document, name)
        elif config_files.is_config(document):
            findings += config_files.check_deepspeed(document, name)
        elif keys & config_files.SKYPILOT_MARKS:
            findings += config_files.check_skypilot(document, name, exists)
        else:
            continue
        recognised = True
    findings += _group(documents, name)
    return findings if recognised else [_unknown(name)]


def _group(documents: list[MarkupNode], name: str) -> Iterator[Finding]:
    tasks = [document for document in documents if config_files.SKYPILOT_MARKS & document.mapping.keys()]
    if tasks and len(documents) > 1:
        text = f"{name} holds several documents, a group of tasks: distui launches a file of one task."
        where = f"{name}:{tasks[1].line}" if tasks[1:] else name
        yield issue("L49", where, text, remedy=f"Launch it with `sky jobs launch {name}`.")


def lint_task(
    name: str, data: bytes, wish: Request, nnodes: int | None = None, exists: Exists | None = None
) -> list[Finding]:
    """Check a SkyPilot task together with the launch options, and return the worst findings first.

    Raises PresetError for YAML without PyYAML.
    """
    try:
        documents = read_yaml(_text(data))
    except Unreadable as error:
        return [issue("L41", f"{name}:{max(1, error.line)}", f"{name} {error}.")]
    given: dict[str, Any] = {} if nnodes is None else {"num_nodes": nnodes}
    given |= {"setup": wish.setup} if wish.setup else {}
    asked = skypilot.resources(wish)
    changed = []
    for document in documents:
        below = document.mapping.get("resources")
        merged = {**(below.mapping if below else {}), **plain(asked).mapping}
        mapping = {**document.mapping, **plain(given).mapping}
        if merged:
            mapping["resources"] = MarkupNode(below.line if below else 0, merged)
        changed.append(MarkupNode(document.line, mapping))
    return worst_first(_document(changed, name, exists))


def _unknown(name: str) -> Finding:
    text = f"{name} is neither a SkyPilot task nor accelerate's, DeepSpeed's or a preset: nothing in it was checked."
    return issue("L43", name, text)


_HEADER = re.compile(r"\s*+\[+([^\[\]]++)\]+")
_KEY = re.compile(r"\s*+([A-Za-z0-9_\-.\"' ]++)\s*+=")


def is_preset(document: Mapping[str, Any]) -> bool:
    """Return True if a TOML document looks like a preset, or like a project's presets."""
    keys = {"base", "preset", *model.tables(), *(path for path in model.fields() if "." not in path)}
    return bool(keys & document.keys()) and not {"project", "tool", "build-system"} & document.keys()


def check_preset(
    document: Mapping[str, Any], text: str, file: str, bases: Library | None = None
) -> list[Finding]:
    """Check one preset file. `bases`: the existing presets, or None to skip the check of base presets."""
    lines = _lines(text)
    stem = file.rsplit("/", 1)[-1]
    findings: list[Finding] = []
    if stem != PROJECT_FILE and "preset" not in document:
        return once(_preset(stem.removesuffix(".toml"), document, file, lines, "", bases))
    for key in document:
        if key != "preset":
            text_ = f"{key} has no meaning in {PROJECT_FILE}: write presets as tables [preset.NAME]."
            findings.append(issue("L31", _at(file, lines, key), text_, value=key))
    tables = document.get("preset")
    for name, table in (tables if isinstance(tables, dict) else {}).items():
        if len(findings) >= lint_rules.MOST:
            break
        prefix = f"preset.{name}."
        if isinstance(table, dict):
            findings += _preset(name, table, file, lines, prefix, bases)
        else:
            where = _at(file, lines, prefix[:-1])
            findings.append(issue("L30", where, f"preset.{name} is a table: write [preset.{name}]."))
    return once(findings)


def _preset(
    name: str,
    table: Mapping[str, Any],
    file: str,
    lines: Mapping[str, int],
    prefix: str,
    bases: Library | None,
) -> list[Finding]:
    """Check one preset. If its own values are valid, check it together with its base presets."""
    findings: list[Finding] = []
    for path, value in itertools.islice(_values(table), lint_rules.MOST):
        findings += _value(path, value, _at(file, lines, prefix + path))
    own = table.get("env")
    hidden = isinstance(own, dict) and own.get("CUDA_VISIBLE_DEVICES") == ""
    shape = table.get("topology")
    if hidden and isinstance(shape, dict) and shape.get("nproc_per_node") == "gpu":
        where = _at(file, lines, f"{prefix}topology.nproc_per_node")
        text = "CUDA_VISIBLE_DEVICES is empty in [env]: no GPU is left."
        findings.append(issue("L10", where, text, value='nproc_per_node = "gpu"'))
    if isinstance(table.get("deepspeed"), dict):
        findings += config_files.check_deepspeed(plain(table["deepspeed"]), f"{file} {prefix}deepspeed")
    if not findings and bases is not None:
        findings += _whole(name, table, file, bases)
    return findings


def _values(table: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    """Yield path and value of every entry of a preset."""
    for key, value in table.items():
        if key in model.tables() and isinstance(value, dict):
            yield from ((f"{key}.{inner}", part) for inner, part in value.items())
        elif key != "base":
            yield key, value


def _value(path: str, value: object, where: str) -> list[Finding]:
    table, _, name = path.partition(".")
    findings: list[Finding] = []
    if table in model.FREE and name and isinstance(value, str | int | float):
        text = model.variable_text(value)
        findings += lint_rules.check_variables(name, text, where)
        findings += lint_rules.in_plain_text(name, text, where)
        if any(finding.id in ("L1", "L15", "L16") for finding in findings):
            return findings
    try:
        model.accept(path, value, "")
    except PresetError as error:
        is_field = path in model.fields() or table in (*model.FREE, *model.NESTED)
        text = sentence(str(error).removeprefix(": "))
        id = "L30" if is_field else "L31"
        findings.append(issue(id, where, text, value=path, remedy="" if "did you mean" in text else None))
    return findings


def _whole(name: str, table: Mapping[str, Any], file: str, bases: Library) -> Iterator[Finding]:
    """Check the preset together with its base presets."""
    own = Definition(name=name, origin=f"user {file}", where=file, table=table)
    below = tuple(
        entry for entry in bases.definitions.get(name, ()) if file.rsplit("/", 1)[-1] not in entry.where
    )
    try:
        check_name(name)
        load(name, presets=Library(definitions={**bases.definitions, name: (*below, own)}))
    except PresetError as error:
        yield issue("L19", file, sentence(str(error)), value=name, remedy="")


def _lines(text: str) -> dict[str, int]:
    """Return the line of each dotted key at the beginning of a line."""
    made: dict[str, int] = {}
    header = ""
    for number, line in enumerate(text.splitlines(), 1):
        table, key = _HEADER.match(line), _KEY.match(line)
        if table:
            header = _plain_key(table[1])
            made.setdefault(header, number)
        elif key:
            made.setdefault(f"{header}.{_plain_key(key[1])}".lstrip("."), number)
    return made


def _plain_key(key: str) -> str:
    return ".".join(part.strip() for part in key.replace('"', "").replace("'", "").split("."))


def _at(file: str, lines: Mapping[str, int], path: str) -> str:
    """Return the line of a path, or of the table that contains it."""
    while path not in lines and "." in path:
        path = path.rpartition(".")[0]
    return f"{file}:{lines[path]}" if path in lines else file


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
    *,
    source: str | bytes | None = None,
    beside: Mapping[str, str | bytes | None] | None = None,
    resources: Request | None = None,
    managed: bool = False,
    hosts: int | None = None,
) -> list[Finding]:
    """Check a plan, and return the worst findings first. Never raises.

    `source`: the script's text. `beside`: its imported files from the same folder, None for files that are too large.
    `resources`: set if SkyPilot provides the nodes. `hosts`: number of named hosts.
    """
    seen = _seen(source)
    findings = [
        *_environment(plan, loaded, seen),
        *_sharding(plan, loaded.preset),
        *_launcher(loaded.preset),
        *_deepspeed(plan, loaded.preset, seen),
        *_optimizer(plan, loaded.preset, seen),
        *_nodes(plan, resources, managed, hosts),
        *_path(plan, resources, source),
        *_script(plan, source, seen, beside or {}),
        *_sizes(plan, loaded.preset, [source, *(beside or {}).values()] if source else ()),
        *_parallel_sizes(plan),
        *_command(plan, resources),
    ]
    if (
        resources is not None
        and resources.spot
        and seen is not None
        and not script.names_save(seen.mentioned)
    ):
        findings.append(
            issue("L37", "--spot", "Spot nodes can be taken back, and the script saves no checkpoint.")
        )
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


def _environment(plan: Plan, loaded: Loaded, seen: script.ScriptContents | None) -> Iterator[Finding]:
    preset, own = loaded.preset, seen.reads if seen else frozenset()
    env = {
        name: value
        for name, value in plan.env.items()
        if not name.startswith("DISTUI_") and name not in own and worker_group.WATCHED.get(name) != value
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
    if nproc * plan.nnodes == 1 and _divides(how):
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
    if preset.launcher.kind != "torchrun":
        return
    options = launches.read_options([Word(text, 0) for text in preset.launcher.args])
    for word in options.unknown:
        yield launches.unknown_option(word.text, "launcher.args")


def _deepspeed(plan: Plan, preset: Preset, seen: script.ScriptContents | None) -> Iterator[Finding]:
    """Check DeepSpeed's written configuration, or else the preset's table."""
    filled = None if seen is None else script.fills_in(seen)
    world = worker_group.data_ranks(plan.mesh) if plan.mesh else None
    check = partial(config_files.check_deepspeed, world=world, filled_in=filled)
    written = [name for name in plan.files if name.endswith(".json")]
    for name in written:
        try:
            document = read_json(plan.files[name])
        except Unreadable:
            continue
        if config_files.is_config(document):
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


def _nodes(plan: Plan, resources: Request | None, managed: bool, hosts: int | None) -> Iterator[Finding]:
    """Check the nodes of the plan."""
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
    if resources is not None:
        yield from _cloud(plan, resources)


def _cloud(plan: Plan, resources: Request) -> Iterator[Finding]:
    """Check the nodes that SkyPilot is to provide."""
    yield from config_files.old_torch(plain(resources.setup), "--setup")
    if resources.gpus:
        yield from config_files.other_makers(resources.gpus.partition(":")[0], "--gpus")
    if plan.nnodes > 1 and resources.network_tier != "best" and _has_tiers(resources):
        text = "Without network_tier best the nodes get the plain network, not the fastest that there is."
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


def _path(plan: Plan, resources: Request | None, source: str | bytes | None) -> Iterator[Finding]:
    """Report an absolute local script path for nodes that may not have the file."""
    path = _script_path(plan)
    if resources is not None and source is not None and path.startswith("/"):
        text = (
            f"{path} is a path of this machine, and nothing copies it: are the nodes known to have it, too?"
        )
        yield issue("L46", path, text)


def _script_path(plan: Plan) -> str:
    return next((word for word in plan.command if not word.startswith("-")), "")


def _has_tiers(resources: Request) -> bool:
    """Return True if a network tier changes anything for the requested accelerators."""
    infra = (resources.infra or "").partition("/")[0].lower()
    if infra in config_files.TIERLESS:
        return False
    gpus = {skypilot.gpus(text)[0] for text in skypilot.accelerators(resources) if text}
    return bool(gpus) and not config_files.are_plain(gpus)


def _script(
    plan: Plan,
    source: str | bytes | None,
    seen: script.ScriptContents | None,
    beside: Mapping[str, str | bytes | None],
) -> Iterator[Finding]:
    if source is None or not plan.strategy:
        return
    facts = script.ScriptFacts(
        nproc=plan.nproc_per_node,
        nnodes=plan.nnodes,
        strategy=None if plan.obeys else plan.strategy,
        preset=plan.preset,
        gpus=plan.backend == "nccl" if plan.backend else None,
    )
    findings = script.check(source, PurePath(_script_path(plan) or "script").name, facts)
    yield from findings
    known = {finding.id for finding in findings}
    if seen and "is_available" in seen.mentioned:
        known.add("L48")
    yield from _imported_files(beside, facts, known)


def _imported_files(
    beside: Mapping[str, str | bytes | None], facts: script.ScriptFacts, known: Set[str]
) -> Iterator[Finding]:
    """Check the imported files. `known`: rules that the script itself has raised or excludes."""
    for file, text in beside.items():
        if text is not None:
            yield from (hit for hit in script.check_imported(text, file, facts) if hit.id not in known)
    yield from script.too_large([file for file, text in beside.items() if text is None])


def _sizes(plan: Plan, preset: Preset, sources: Sequence[str | bytes | None]) -> Iterator[Finding]:
    if plan.strategy and sources:
        yield from script.check_sizes(sources, plan.command[1:], plan.mesh, preset)


def _parallel_sizes(plan: Plan) -> Iterator[Finding]:
    """Check Megatron-LM's and NeMo's sizes in the script's arguments against the ranks."""
    asked = None if plan.obeys or not plan.strategy else megatron.read(plan.command[1:])
    if asked is not None:
        yield from launches.parallel_sizes(asked, plan.nnodes * (plan.nproc_per_node or 1), "")


def _command(plan: Plan, resources: Request | None) -> Iterator[Finding]:
    """Check the command of `distui exec`, or the `run:` of a task."""
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
