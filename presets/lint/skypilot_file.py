"""Rules for SkyPilot tasks: keys, resources, variables, and the commands of `setup:` and `run:`."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import PurePath

from ..finding import Finding, Severity
from ..known_names import known_names
from ..text_formats import MarkupNode, place, walk, whole
from . import launches, lint_rules, shell
from .launcher_calls import read_script
from .lint_rules import case as issue_case
from .lint_rules import issue, once
from .named_files import config_paths
from .script import saves
from .surroundings import Surroundings

MARKS = frozenset({"run", "setup", "resources", "num_nodes", "file_mounts", "workdir"})
"""A task has at least one of these keys."""
TIERS = ("standard", "best")
TIERLESS = ("slurm", "ssh")
"""Infras that ignore a network tier (release 0.14)."""
NETWORKS = re.compile(
    r"(^|[/._-])(efa|rdma|infiniband|ib|roce|hostdev|mlnxnics|sriov\w*)\b|networking\.gke\.io", re.I
)
"""Matches devices and annotations of a fast network in the keys and values of a pod configuration."""
OTHER_MAKERS = re.compile(r"(MI\d|TPU|GAUDI|HPU|TRAINIUM|INFERENTIA|ASCEND)", re.I)
"""Prefixes of accelerators that are not NVIDIA's."""
MIN_TORCH = (2, 7)
"""Oldest torch that distui supports on the nodes."""


def is_task(document: MarkupNode) -> bool:
    resources = document.mapping.get("resources")
    is_other = "apiVersion" in document.mapping or (resources is not None and bool(resources.items))
    return bool(document.mapping.keys() & MARKS) and not is_other


def check_skypilot(task: MarkupNode, beside: Surroundings) -> list[Finding]:
    """Check one task. `beside`: the name of its file, and the access to the files in its folder."""
    file = beside.file
    nnodes = task.number("num_nodes") or (1 if "num_nodes" not in task.mapping else None)
    env = {name: _text_of(node) for name, node in _envs(task)}
    counts = {"SKYPILOT_NUM_NODES": nnodes, "SKYPILOT_NUM_GPUS_PER_NODE": gpus(task) or None}
    known = {name: str(count) for name, count in counts.items() if count}
    around = replace(beside, nnodes=nnodes, gpus=gpus(task), env={**known, **env}, is_task=True)
    findings = once(
        [
            *_task_names(task, file),
            *_resources(task, file, nnodes),
            *_variables(task, file, nnodes),
            *(finding for key in ("setup", "run") for finding in _shell(task.get(key), around)),
            *_not_brought(task, around),
            *_setup_names(task.get("setup"), file),
            *_separate(task, around),
            *_of_setup(task, around),
            *old_torch(task.get("setup"), file, "note"),
        ]
    )
    missing = {finding.value for finding in findings if finding.id == "L70"}
    return [finding for finding in findings if not (finding.id == "L8" and finding.value in missing)]


def _envs(task: MarkupNode) -> Iterator[tuple[str, MarkupNode]]:
    envs = task.get("envs")
    yield from (envs.mapping if envs else {}).items()


def _text_of(node: MarkupNode) -> str:
    if isinstance(node.value, bool):
        return str(node.value).lower()
    return "$" if node.value is None or isinstance(node.value, dict | list) else str(node.value)


def _shell(node: MarkupNode | None, around: Surroundings) -> list[Finding]:
    if node is None or not isinstance(node.value, str):
        return []
    return launches.check_text(node.value, around, node.text_line)


FETCHES = re.compile(
    r"\b(git|wget|curl|aws|gsutil|gcloud|s5cmd|rclone|rsync|cp|scp|tar|unzip|huggingface-cli|hf|docker|podman|tee)\b"
)
"""Commands of setup and run that may bring files to a node."""


def _not_brought(task: MarkupNode, around: Surroundings) -> Iterator[Finding]:
    """Report scripts and configurations of `run:` that nothing brings to the nodes, or that are not there."""
    run, setup, workdir = task.get("run"), task.text("setup"), task.get("workdir")
    if run is None or not isinstance(run.value, str) or FETCHES.search(f"{setup}\n{run.value}"):
        return
    images = [wish.text("image_id") for wish in _wishes(task)]
    if task.get("file_mounts") or any(image.startswith("docker:") for image in images):
        return
    for word in _relative_files(run.value, run.text_line or run.line):
        where = around.at(word.line)
        if workdir is None and not task.get("setup"):
            yield issue_case("L70", "nothing", where, {"path": word.text}, value=word.text)
        elif workdir is not None and around.exists and isinstance(workdir.value, str):
            path = str(PurePath(workdir.value) / word.text)
            if not workdir.value.startswith("~") and not around.exists(path):
                text = f"{word.text} does not exist in workdir ({workdir.value})."
                yield issue("L8", where, text, value=word.text, severity="warning")


TOGETHER = re.compile(
    r"SKYPILOT_|MASTER_|RANK|torchrun|accelerate|deepspeed|ray |mpirun|horovod|torch\.distributed|nnodes|num_nodes"
)
"""Signs in `run:` that the nodes work together."""


ACTIVATES = re.compile(
    r"\b(conda|mamba|micromamba) activate (?!base\b)(\S+)|\bsource (\S+/bin/activate)|^\s*\. (\S+/bin/activate)",
    re.M,
)


def _of_setup(task: MarkupNode, around: Surroundings) -> Iterator[Finding]:
    """Report what run: needs, and only the shell of setup: has: an environment, and variables."""
    setup, run = task.get("setup"), task.get("run")
    if setup is None or run is None or not (isinstance(setup.value, str) and isinstance(run.value, str)):
        return
    active = ACTIVATES.search(setup.value)
    starts = read_script(run.value, run.text_line or run.line)
    own = re.search(
        r"activate|conda run|uv run|poetry run|/bin/(python|torchrun)|bashrc|docker|PATH=", run.value
    )
    if active is not None and own is None and starts.started:
        name = active[2] or active[3] or active[4]
        where = around.at(starts.started[0].line)
        yield issue_case("L69", "activate", where, {"name": name}, value=name, severity="warning")
    set_there = {one.name for one in read_script(setup.value).settings if one.exported}
    known = {one.name for one in starts.settings} | set(around.env)
    for call in starts.started:
        for word in call.words:
            for name in shell.names_in(word.text):
                if name in set_there - known:
                    where = around.at(word.line)
                    yield issue_case("L69", "apart", where, {"name": name}, value=f"${name}")
                    return


SETS_RANK = re.compile(r"\b(RANK|WORLD_SIZE|NODE_RANK)\b|--(node[_-])?rank|--world[_-]size")
OWN_RANKS = re.compile(
    r"torchrun|torch\.distributed|accelerate|deepspeed|spawn|lightning|mpirun|\bray\b|vllm|sglang|nproc|gpus=|devices"
)
"""Signs of more than one process or GPU per Python command."""


def _separate(task: MarkupNode, around: Surroundings) -> Iterator[Finding]:
    """Report a plain Python command on several GPU nodes, each of which trains separately."""
    run = task.get("run")
    if run is None or not isinstance(run.value, str) or (around.nnodes or 1) < 2 or not around.gpus:
        return
    calls = read_script(run.value, run.text_line or run.line).started
    call = calls[-1] if calls and all(one.program == "python" for one in calls) else None
    if call is None or OWN_RANKS.search(run.value):
        return
    if around.gpus > 1 and SETS_RANK.search(run.value):
        where, value = around.at(call.line), f"{around.gpus} GPUs"
        yield issue_case("L74", "node", where, {"gpus": around.gpus}, value=value, severity="warning")
    elif not TOGETHER.search(run.value) and not task.get("envs"):
        text = f"Each of the {around.nnodes} nodes runs this separately: nothing in run connects them."
        remedy = "Start it with torchrun: --nnodes, --node-rank=$SKYPILOT_NODE_RANK, --master-addr of the first node."
        yield issue("L35", around.at(call.line), text, severity="warning", remedy=remedy)


RUN_ONLY = re.compile(r"\$\{?(SKYPILOT_(?:NODE_RANK|NODE_IPS|NUM_GPUS_PER_NODE|TASK_ID))\b")


def _setup_names(setup: MarkupNode | None, file: str) -> Iterator[Finding]:
    """Report variables in `setup:` that SkyPilot sets only in `run:`."""
    if setup is None or not isinstance(setup.value, str):
        return
    for match in RUN_ONLY.finditer(setup.value):
        line = (setup.text_line or setup.line) + setup.value.count("\n", 0, match.start())
        facts = {"name": match[1], "use": f"${match[1]}"}
        yield issue_case("L69", "setup", f"{file}:{line}", facts, value=f"${match[1]}")


def _relative_files(text: str, first_line: int) -> Iterator[shell.Word]:
    """Yield the scripts and configurations that a text names by a relative path, unless it changes the directory."""
    script = read_script(text, first_line)
    written = {command.output for command in script.commands}
    if any(command.words[0].text in ("cd", "pushd") for command in script.commands):
        return
    for call in script.started:
        module = any(word.text in ("-m", "--module", "-c") for word in call.words[:4])
        scripts = [word for word in call.words if word.literal and word.text.endswith((".py", ".sh"))]
        for word in [*(scripts[:1] if not module else ()), *config_paths(call)]:
            if not word.text.startswith(("/", "~", "-")) and word.text not in written:
                yield word


def _wishes(task: MarkupNode) -> list[MarkupNode]:
    resources = task.get("resources")
    if resources is None:
        return []
    alternatives = [
        wish for key in ("any_of", "ordered") for wish in (resources.get(key) or MarkupNode(0, None)).items
    ]
    return [resources, *alternatives]


def gpus(task: MarkupNode) -> int | None:
    """Return the accelerators per node, 0 if none is requested, or None if they differ or are unknown."""
    wishes = _wishes(task)
    counts = {count for wish in wishes for count in _counts(wish.get("accelerators"))}
    if counts:
        return counts.pop() if len(counts) == 1 else None
    requested = any(
        wish.get(key) for wish in wishes for key in ("accelerators", "instance_type", "any_of", "ordered")
    )
    return None if requested else 0


def _counts(node: MarkupNode | None) -> Iterator[int | None]:
    """Yield the numbers in `accelerators`: "H100:8", {H100: 8}, or a list of such values."""
    if node is None:
        return
    for item in node.items:
        yield from _counts(item)
    for name in node.mapping:
        yield node.number(name)
    if isinstance(node.value, str):
        name, _, count = node.value.partition(":")
        if name.lower().startswith("tpu"):
            yield None
        else:
            yield whole(count) if count else 1


def _task_names(task: MarkupNode, file: str) -> Iterator[Finding]:
    if "working_dir" not in task.mapping:  # an oumi job is similar to a task, but has more keys
        yield from lint_rules.keys(
            file, task, known_names("skypilot")["keys"], "A SkyPilot task", refuses=True
        )
    nodes = task.get("num_nodes")
    if nodes is not None and (task.number("num_nodes") or 0) < 1:
        text = f"num_nodes {nodes.shown} is not a number of nodes."
        value = f"num_nodes: {nodes.shown}"
        yield issue(
            "L30", place(file, nodes, "num_nodes"), text, value=value, remedy="Write a number from 1 on."
        )
    for wish in _wishes(task):
        yield from lint_rules.keys(
            file, wish, known_names("skypilot")["resources"], "SkyPilot's resources", refuses=True
        )


def _resources(task: MarkupNode, file: str, nnodes: int | None) -> Iterator[Finding]:
    wishes = _wishes(task)
    for wish in wishes:
        yield from _wish(wish, file, task.text("run"))
    if nnodes is not None and nnodes > 1:
        yield from _network(task, wishes, file, nnodes)


def _wish(wish: MarkupNode, file: str, run: str) -> Iterator[Finding]:
    """Check `resources:`, or one of its alternatives."""
    tier = wish.get("network_tier")
    if tier is not None and tier.shown.lower() not in TIERS:
        text = f"SkyPilot has no network_tier {tier.shown}, and refuses the task."
        value = f"network_tier: {tier.shown}"
        yield issue("L7", place(file, tier, "resources.network_tier"), text, value=value)
    ports = wish.get("ports")
    if ports is not None:
        text = "ports opens these to the whole internet, on every node."
        yield issue("L13", place(file, ports, "resources.ports"), text, value="ports")
    recovery = wish.get("job_recovery") or wish.get("spot_recovery")
    if recovery is not None:
        text = "job_recovery acts only in managed jobs, whose nodes have no ssh."
        yield issue("L12", place(file, recovery, "resources.job_recovery"), text, value="job_recovery")
    preemptible = wish.get("use_spot")
    if preemptible is not None and preemptible.value is True and not saves(run):
        text = "Spot nodes can be taken back, and nothing in run speaks of a checkpoint."
        yield issue("L37", place(file, preemptible, "resources.use_spot"), text, value="use_spot: true")
    for name in _names_of(wish.get("accelerators")):
        yield from other_makers(name, place(file, wish.get("accelerators"), "resources.accelerators"))


def _network(task: MarkupNode, wishes: list[MarkupNode], file: str, nnodes: int) -> Iterator[Finding]:
    """Report several GPU nodes on the plain network."""
    tiers = [tier for wish in wishes if (tier := wish.get("network_tier"))]
    if any(tier.value != "standard" for tier in tiers):
        return  # including an invalid tier, which L7 reports
    if _ignores_tiers(task, wishes) or _own_network(task):
        return
    tier = next(iter(tiers), None)
    where = place(file, tier or task.get("resources") or task.get("num_nodes"), "resources")
    text = f"{nnodes} nodes with the plain network between them, not the fastest that there is."
    value = "network_tier: standard" if tier else ""
    yield issue("L21", where, text, value=value, severity="warning" if tier else "note")


def _ignores_tiers(task: MarkupNode, wishes: list[MarkupNode]) -> bool:
    """Return True if a network tier changes nothing: without GPUs, on this infra, or for these accelerators."""
    infras = {(wish.text("infra") or wish.text("cloud")).partition("/")[0].lower() for wish in wishes} - {
        ""
    }
    names = {name for wish in wishes for name in _names_of(wish.get("accelerators"))}
    return gpus(task) == 0 or (bool(infras) and infras <= set(TIERLESS)) or are_plain(names)


def other_makers(name: str, where: str) -> Iterator[Finding]:
    """Report an accelerator of another vendor, whose driver distui does not read."""
    if OTHER_MAKERS.match(name):
        text = f"{name} is not NVIDIA's: distui reads GPU values only from NVIDIA's driver."
        yield issue("L55", where, text, value=name)


def are_plain(gpus: Collection[str]) -> bool:
    """Return True if none of the accelerators has a faster network that a tier could select."""
    return bool(gpus) and {name.upper() for name in gpus} <= set(known_names("skypilot")["plain_gpus"])


def _names_of(node: MarkupNode | None) -> Iterator[str]:
    """Yield the accelerators that a task names, in any spelling."""
    if node is None:
        return
    yield from node.mapping
    for item in node.items:
        yield from _names_of(item)
    if isinstance(node.value, str):
        yield node.value.partition(":")[0]


def _own_network(task: MarkupNode) -> bool:
    """Return True if the task's pod configuration requests a fast network."""
    for path in (("config", "kubernetes"), ("experimental", "config_overrides", "kubernetes")):
        pods = task.get(*path, "pod_config")
        for key, node in walk(pods) if pods else ():
            if NETWORKS.search(key) or (isinstance(node.value, str) and NETWORKS.search(node.value)):
                return True
    return False


_INSTALLERS = frozenset(
    {"pip", "pip3", "uv", "conda", "mamba", "micromamba", "poetry", "python", "python3"}
)
_BOUND = re.compile(
    r"(?:torch|pytorch)(?:\[[^\]]*\])?(?:\s*[>!]=?[^,]*,)*\s*(?P<relation>={1,3}|<=?)\s*(?P<version>\d{1,9}\.\d{1,9})"
)
"""An exact version of torch, or its upper bound."""


def old_torch(node: MarkupNode | None, file: str, severity: Severity = "error") -> Iterator[Finding]:
    """Report commands that install a torch older than MIN_TORCH."""
    if node is None or not isinstance(node.value, str):
        return
    for command in shell.read_commands(node.value, node.text_line or 1):
        if command.words[0].text.rpartition("/")[2] not in _INSTALLERS:
            continue
        for word in command.words:
            if _is_too_old(word.text.strip()):
                where = f"{file}:{word.line}" if node.line else file
                text = f"{word.text} is too old: distui needs torch {MIN_TORCH[0]}.{MIN_TORCH[1]} or newer on the nodes."
                yield issue("L47", where, text, value=word.text, severity=severity)


def _is_too_old(requirement: str) -> bool:
    bound = _BOUND.match(requirement)
    if bound is None:
        return False
    major, minor = map(int, bound["version"].split("."))
    return (major, minor) < MIN_TORCH or (bound["relation"] == "<" and (major, minor) == MIN_TORCH)


def _variables(task: MarkupNode, file: str, nnodes: int | None) -> Iterator[Finding]:
    nodes = dict(_envs(task))
    env = {name: _text_of(node) for name, node in nodes.items()}
    yield from lint_rules.check_all(env, lambda name: place(file, nodes[name], f"envs.{name}"), nnodes)
    secret = task.get("secrets")
    for section in (nodes, secret.mapping if secret else {}):
        for name, node in section.items():
            for finding in lint_rules.in_plain_text(name, _text_of(node), place(file, node, name)):
                remedy = f"Write `{name}: null` under secrets, and launch with --secret {name}."
                yield issue(finding.id, finding.where, finding.text, value=finding.value, remedy=remedy)
