"""Rules for the manifests of jobs in Kubernetes: PyTorchJob, TrainJob, JobSet, RayJob, MPIJob, Job, Volcano's Job."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ..finding import Finding, Severity
from ..text_formats import MarkupNode, place, place_of, whole
from . import launches, lint_rules
from .launcher_calls import read_script
from .lint_rules import case, issue, once
from .manifest_fields import check_fields, check_pod
from .shell import names_in
from .slurm import launch_words
from .surroundings import Surroundings

APIS: Mapping[str, re.Pattern[str]] = {
    "PyTorchJob": re.compile(r"kubeflow\.org/v1|training\.kubeflow\.org/.*"),
    "TrainJob": re.compile(r"trainer\.kubeflow\.org/v1alpha1"),
    "JobSet": re.compile(r"jobset\.x-k8s\.io/v1alpha[12]"),
    "RayJob": re.compile(r"ray\.io/v1(alpha1|beta1)?"),
    "RayCluster": re.compile(r"ray\.io/v1(alpha1|beta1)?"),
    "MPIJob": re.compile(r"kubeflow\.org/v(1|2beta1|1alpha2)"),
    "Job": re.compile(r"batch/v1|batch\.volcano\.sh/v1alpha1"),
    "ClusterTrainingRuntime": re.compile(r"trainer\.kubeflow\.org/v1alpha1"),
    "TrainingRuntime": re.compile(r"trainer\.kubeflow\.org/v1alpha1"),
}
"""Kind → its API."""
OPERATORS: Mapping[str, tuple[str, ...]] = {
    "PyTorchJob": (
        "PET_NNODES",
        "PET_NODE_RANK",
        "PET_MASTER_ADDR",
        "MASTER_ADDR",
        "MASTER_PORT",
        "RANK",
        "WORLD_SIZE",
    ),
    "TrainJob": ("PET_NNODES", "PET_NPROC_PER_NODE", "PET_NODE_RANK", "PET_MASTER_ADDR", "PET_MASTER_PORT"),
}
"""Kind → variables that its operator sets in each pod."""
GPU = re.compile(r"(nvidia|amd)\.com/(gpu|mig-.*)")


def is_manifest(document: MarkupNode) -> bool:
    return document.text("kind") in APIS and document.text("apiVersion") != ""


@dataclass(frozen=True, slots=True)
class Pods:
    """Pods of one template."""

    name: str
    count: int | None
    spec: MarkupNode
    """The pod's spec."""


@dataclass(frozen=True, slots=True)
class Manifest:
    kind: str
    document: MarkupNode
    file: str
    pods: list[Pods] = field(default_factory=list)

    @property
    def nodes(self) -> int | None:
        """Return the number of pods that train."""
        counts = [pods.count for pods in self.pods if pods.name not in ("Launcher", "head")]
        return None if None in counts or not counts else sum(count or 0 for count in counts)

    def at(self, *path: str) -> str:
        return place_of(self.file, self.document, *path)


def check_kubernetes(document: MarkupNode, file: str) -> list[Finding]:
    """Check one manifest."""
    kind = document.text("kind")
    manifest = Manifest(kind, document, file, list(_pods(kind, document)))
    is_volcano = kind == "Job" and document.get("spec", "tasks") is not None
    fields = check_fields(document, file, "VolcanoJob" if is_volcano else kind)
    findings = [*_api(manifest), *fields, *KINDS[kind](manifest)]
    for pods in manifest.pods:
        findings += check_pod(pods.spec, file, kind)
        findings += _pod(manifest, pods)
    findings += _equal_gpus(manifest)
    return once(findings)


def check_together(documents: Sequence[MarkupNode], file: str) -> list[Finding]:
    """Check manifests of one file that refer to each other."""
    return list(_with_runtimes(documents, file))


def _api(manifest: Manifest) -> Iterator[Finding]:
    given = manifest.document.text("apiVersion")
    if not APIS[manifest.kind].fullmatch(given):
        where = manifest.at("apiVersion")
        yield case("L72", "api", where, {"api": given, "kind": manifest.kind}, value=f"apiVersion: {given}")


def _pods(kind: str, document: MarkupNode) -> Iterator[Pods]:
    """Yield the pods of a manifest."""
    spec = document.get("spec") or MarkupNode(0, None)
    if kind in ("PyTorchJob", "MPIJob"):
        groups = spec.get("pytorchReplicaSpecs" if kind == "PyTorchJob" else "mpiReplicaSpecs")
        for name, group in (groups.mapping if groups else {}).items():
            yield from _group(name, group, _count(group, "replicas"))
    elif kind in ("RayJob", "RayCluster"):
        cluster = spec.get("rayClusterSpec") or spec
        yield from _group("head", cluster.get("headGroupSpec"), 1)
        for group in _items(cluster, "workerGroupSpecs"):
            yield from _group(group.text("groupName"), group, _count(group, "replicas"))
    elif kind == "Job" and not spec.get("tasks"):
        yield from _group("job", spec, _count(spec, "parallelism"))
    else:
        yield from _pods_of_jobs(kind, spec)


def _pods_of_jobs(kind: str, spec: MarkupNode) -> Iterator[Pods]:
    """Yield the pods of a JobSet, of a training runtime, or of Volcano's Job."""
    for task in _items(spec, "tasks"):
        yield from _group(task.text("name"), task, _count(task, "replicas"))
    for job in _items(spec, "replicatedJobs"):
        inner = job.get("template", "spec") or MarkupNode(0, None)
        each, copies = _count(inner, "parallelism"), _count(job, "replicas")
        yield from _group(job.text("name"), inner, each * copies if each and copies else None)
    if kind.endswith("TrainingRuntime"):
        nodes = spec.number("mlPolicy", "numNodes")
        for job in _items(spec, "template", "spec", "replicatedJobs"):
            yield from _group(job.text("name"), job.get("template", "spec"), nodes)


def _items(node: MarkupNode, *path: str) -> list[MarkupNode]:
    """Return the members of the list at a path, or none."""
    at = node.get(*path)
    return at.items if at else []


def _count(node: MarkupNode, key: str) -> int | None:
    """Return a number, 1 if it is missing."""
    return 1 if node.get(key) is None else node.number(key)


def _group(name: str, group: MarkupNode | None, count: int | None) -> Iterator[Pods]:
    spec = group.get("template", "spec") if group else None
    if spec is not None:
        yield Pods(name, count, spec)


def _pod(manifest: Manifest, pods: Pods) -> Iterator[Finding]:
    yield from _names_servers(manifest, pods)
    containers = pods.spec.get("containers")
    for container in containers.items if containers else []:
        yield from _resources(manifest, container)
        yield from _more_than_limits(manifest, container)
        yield from _mounts(manifest, pods, container)
        env = {name: value for name, (value, _) in _environment(container).items()}
        yield from _env(manifest, container)
        count = manifest.nodes if pods.name not in ("Launcher", "head") else 1
        around = Surroundings(
            file=manifest.file,
            nnodes=count,
            gpus=_gpus(container),
            env={**env, **dict.fromkeys(_set_by_operator(manifest), "$")},
            is_task=(count or 2) > 1,
            in_image=True,
        )
        yield from _command(container, around)


def _set_by_operator(manifest: Manifest) -> list[str]:
    """Return the variables that the operator sets in each pod."""
    each = ["PET_NPROC_PER_NODE"] if manifest.document.get("spec", "nprocPerNode") else []
    return [*OPERATORS.get(manifest.kind, ()), *each]


def _names_servers(manifest: Manifest, pods: Pods) -> Iterator[Finding]:
    """Report hostNetwork without the DNS policy that it needs."""
    if pods.spec.on("hostNetwork") and pods.spec.get("dnsPolicy") is None:
        where = place(manifest.file, pods.spec.get("hostNetwork"), "hostNetwork")
        yield case("L72", "dns", where, value="hostNetwork: true", severity="note")


def _environment(container: MarkupNode) -> dict[str, tuple[str, MarkupNode]]:
    """Return the variables of a container; "$" is a value from elsewhere."""
    found = {}
    for item in _items(container, "env"):
        value = item.get("value")
        found[item.text("name")] = ("$" if value is None else value.shown, value or item)
    return found


def _env(manifest: Manifest, container: MarkupNode) -> Iterator[Finding]:
    found = _environment(container)
    values = {name: value for name, (value, _) in found.items()}
    yield from lint_rules.check_all(
        values, lambda name: place(manifest.file, found[name][1], f"env.{name}"), manifest.nodes
    )
    for name, (value, node) in found.items():
        where = place(manifest.file, node, f"env.{name}")
        yield from lint_rules.in_plain_text(name, value, where)
        if manifest.kind == "PyTorchJob" and name in OPERATORS["PyTorchJob"]:
            severity: Severity = "warning" if name == "RANK" else "note"
            yield case("L72", "operator", where, {"name": name}, value=name, severity=severity)
        if (
            name == "MASTER_ADDR"
            and (manifest.nodes or 1) > 1
            and lint_rules.LOCAL_ADDRESS.fullmatch(value)
        ):
            text = f"On each node {value} means that node itself."
            yield issue("L38", where, text, value=f"MASTER_ADDR: {value}")


def _gpus(container: MarkupNode) -> int | None:
    """Return the GPUs of a container, 0 without any."""
    for key in ("limits", "requests"):
        amounts = container.get("resources", key)
        for name, amount in (amounts.mapping if amounts else {}).items():
            if GPU.fullmatch(name):
                return whole(amount.value)
    return 0


def _resources(manifest: Manifest, container: MarkupNode) -> Iterator[Finding]:
    """Report GPUs that Kubernetes refuses."""
    limits, requests = (container.get("resources", key) for key in ("limits", "requests"))
    given = limits.mapping if limits else {}
    for name, amount in (requests.mapping if requests else {}).items():
        if (
            not GPU.fullmatch(name)
            and not name.startswith("rdma/")
            and not name.startswith("vpc.amazonaws.com/")
        ):
            continue
        where, limit = place(manifest.file, amount, name), given.get(name)
        if limit is None:
            yield case("L72", "only", where, {"name": name}, value=f"{name}: {amount.shown}")
        elif limit.shown != amount.shown:
            facts = {"name": name, "requests": amount.shown, "limits": limit.shown}
            yield case("L72", "gpus", where, facts, value=f"{name}: {amount.shown}")


UNITS = {
    "": 1,
    "m": 0.001,
    "k": 1e3,
    "M": 1e6,
    "G": 1e9,
    "T": 1e12,
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
}


def _quantity(text: str) -> float | None:
    """Return the value of `64Gi` or `500m`, or None."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(m|k|[MGT]|[KMGT]i)?", text)
    return float(match[1]) * UNITS[match[2] or ""] if match else None


def _more_than_limits(manifest: Manifest, container: MarkupNode) -> Iterator[Finding]:
    """Report requests of CPUs or memory above their limits."""
    for name in ("cpu", "memory"):
        asked, most = (container.get("resources", key, name) for key in ("requests", "limits"))
        if asked is None or most is None:
            continue
        values = _quantity(asked.shown), _quantity(most.shown)
        if values[0] and values[1] and values[0] > values[1]:
            facts = {"name": name, "requests": asked.shown, "limits": most.shown}
            yield case(
                "L72", "more", place(manifest.file, asked, name), facts, value=f"{name}: {asked.shown}"
            )


def _mounts(manifest: Manifest, pods: Pods, container: MarkupNode) -> Iterator[Finding]:
    """Report mounts without a volume, and a small /dev/shm."""
    volumes = {item.text("name") for item in _items(pods.spec, "volumes")}
    mounts = _items(container, "volumeMounts")
    for mount in mounts:
        if mount.text("name") and mount.text("name") not in volumes and _knows_volumes(manifest):
            where = place(manifest.file, mount.get("name"), "volumeMounts")
            yield case("L72", "volume", where, {"name": mount.text("name")}, value=mount.text("name"))
    has_shm = any("/dev/shm" in mount.text("mountPath") for mount in mounts) or pods.spec.on("hostIPC")
    if (_gpus(container) or 0) > 1 and not has_shm and manifest.kind != "MPIJob":
        yield case("L72", "shm", place(manifest.file, container, "containers"), severity="note")


def _knows_volumes(manifest: Manifest) -> bool:
    """Return True if nothing but the template gives the pod its volumes."""
    has_claims = manifest.document.get("spec", "volumeClaimPolicies") is not None
    is_volcano = manifest.document.get("spec", "tasks") is not None
    return manifest.kind != "TrainJob" and not has_claims and not is_volcano


def _command(container: MarkupNode, around: Surroundings) -> Iterator[Finding]:
    """Check the command of a container."""
    nodes = [item for key in ("command", "args") for item in _items(container, key)]
    words = [item.value if isinstance(item.value, str) else item.shown for item in nodes]
    if not words:
        return
    if words[0].rpartition("/")[2] not in launch_words()["starters"]["shells"]:
        yield from launches.check_text(" ".join(map(_quoted, words)), around, nodes[0].line or 1)
        yield from _without_shell(nodes, words, around)
        return
    text = next(
        (node for node, word in zip(nodes, words, strict=True) if "\n" in word or " " in word), None
    )
    if text is None:
        yield from launches.check_text(" ".join(map(_quoted, words)), around, nodes[0].line or 1)
    else:
        yield from launches.check_text(text.value, around, text.text_line or text.line)


def _without_shell(nodes: list[MarkupNode], words: list[str], around: Surroundings) -> Iterator[Finding]:
    """Report operators and variables of a shell in a command that no shell reads."""
    for node, word in zip(nodes, words, strict=True):
        if word in ("&&", "||", "|", ">", ";"):
            yield case("L72", "words", place(around.file, node, "command"), {"word": word}, value=word)
            break
    if words[0] not in ("/usr/bin/env", "env"):
        yield from _unexpanded(nodes, words, around)


def _quoted(word: str) -> str:
    return word if "$" in word and " " not in word else shlex.quote(word)


def _unexpanded(nodes: list[MarkupNode], words: list[str], around: Surroundings) -> Iterator[Finding]:
    """Report variables in a command without a shell. Kubernetes expands only `$(NAME)`."""
    for node, word in zip(nodes, words, strict=True):
        name = next((name for name in names_in(word) if name in around.env), "")
        if name and " " not in word:
            where = place(around.file, node, "command")
            yield case("L58", "pod", where, {"name": name}, value=word[:60])
            return


def _equal_gpus(manifest: Manifest) -> Iterator[Finding]:
    """Report pods of one job with different numbers of GPUs."""
    if manifest.kind not in ("PyTorchJob", "JobSet"):
        return
    counts: dict[str, int] = {}
    for pods in manifest.pods:
        first = next(iter(_items(pods.spec, "containers")), None)
        gpus = _gpus(first) if first else None
        if gpus:
            counts[pods.name] = gpus
    if len(set(counts.values())) > 1:
        (first_name, one), (second_name, two) = sorted(counts.items(), key=lambda pair: pair[1])[
            :: len(counts) - 1
        ][:2]
        facts = {"first": f"{first_name} has {one} GPUs", "second": f"{second_name} has {two}"}
        yield case("L72", "differ", manifest.at("spec"), facts, severity="warning")


def _pytorch(manifest: Manifest) -> Iterator[Finding]:
    masters = manifest.document.get("spec", "pytorchReplicaSpecs", "Master")
    if masters is not None and (masters.number("replicas") or 1) != 1:
        where = manifest.at("spec", "pytorchReplicaSpecs", "Master", "replicas")
        yield case(
            "L72",
            "masters",
            where,
            {"count": masters.number("replicas")},
            value=f"replicas: {masters.number('replicas')}",
        )
    yield from _named(manifest, "pytorch")
    yield from _one_rank(manifest)
    each = manifest.document.number("spec", "nprocPerNode")
    for pods in manifest.pods:
        for container in _items(pods.spec, "containers"):
            gpus = _gpus(container)
            if each and gpus and each != gpus:
                facts = {"first": "nprocPerNode", "one": each, "second": "nvidia.com/gpu", "two": gpus}
                where = manifest.at("spec", "nprocPerNode")
                yield case(
                    "L72",
                    "counts",
                    where,
                    facts,
                    value=f"nprocPerNode: {each}",
                    severity="error" if each > gpus else "warning",
                )


OWN_RANKS = re.compile(
    r"torchrun|torch\.distributed|accelerate|deepspeed|spawn|lightning|mpirun|ray|nproc|colossalai"
)


def _one_rank(manifest: Manifest) -> Iterator[Finding]:
    """Report plain Python in a container of several GPUs, of which it is one rank."""
    for pods in manifest.pods:
        for container in _items(pods.spec, "containers"):
            nodes = [item for key in ("command", "args") for item in _items(container, key)]
            text = " ".join(str(item.value) for item in nodes)
            gpus = _gpus(container) or 0
            if gpus > 1 and re.search(r"\bpython3? \S+\.py", text) and not OWN_RANKS.search(text):
                unread = (
                    "; it does not read nprocPerNode"
                    if manifest.document.get("spec", "nprocPerNode")
                    else ""
                )
                where = place(manifest.file, nodes[0], "command")
                yield case(
                    "L72",
                    "ranks",
                    where,
                    {"gpus": gpus, "unread": unread},
                    value=f"{gpus} GPUs",
                    severity="warning" if unread else "note",
                )
                return


def _named(manifest: Manifest, name: str) -> Iterator[Finding]:
    """Report pods without a container of the name that the operator needs."""
    for pods in manifest.pods:
        containers = _items(pods.spec, "containers")
        if containers and all(container.text("name") != name for container in containers):
            where = place(manifest.file, containers[0].get("name") or containers[0], "containers")
            yield case(
                "L72",
                "container",
                where,
                {"name": name, "kind": manifest.kind},
                value=containers[0].text("name"),
            )


def _train(manifest: Manifest) -> Iterator[Finding]:
    """Check what a TrainJob says of its runtime and its trainer."""
    spec = manifest.document.get("spec") or MarkupNode(0, None)
    trainer = spec.get("trainer")
    if spec.get("runtimeRef") is None:
        yield case("L72", "runtime", manifest.at("spec"))
    if trainer is None:
        return
    amounts = MarkupNode(
        trainer.line, {"resources": trainer.get("resourcesPerNode") or MarkupNode(0, None)}
    )
    nodes, gpus = trainer.number("numNodes"), _gpus(amounts) or None
    yield from _resources(manifest, amounts)
    yield from _train_counts(manifest, trainer.number("numProcPerNode"), gpus)
    yield from _env(manifest, trainer)
    if (nodes or 1) > 1 or (gpus or 0) > 1:
        yield from _train_without_launcher(manifest, trainer)
    env = dict.fromkeys(OPERATORS["TrainJob"], "$")
    around = Surroundings(
        file=manifest.file, nnodes=nodes, gpus=gpus, env=env, is_task=(nodes or 2) > 1, in_image=True
    )
    yield from _command(trainer, around)


def _train_counts(manifest: Manifest, each: int | None, gpus: int | None) -> Iterator[Finding]:
    """Report processes per node that are not as many as the GPUs of a node."""
    if each and gpus and each != gpus:
        where = manifest.at("spec", "trainer", "numProcPerNode")
        facts = {"first": "numProcPerNode", "one": each, "second": "nvidia.com/gpu", "two": gpus}
        severity: Severity = "error" if each > gpus else "warning"
        yield case("L72", "counts", where, facts, value=f"numProcPerNode: {each}", severity=severity)


def _train_without_launcher(manifest: Manifest, trainer: MarkupNode) -> Iterator[Finding]:
    """Report plain Python as the command of a trainer with several ranks."""
    text = " ".join(str(item.value) for key in ("command", "args") for item in _items(trainer, key))
    if re.search(r"\bpython3? \S+\.py", text) and not OWN_RANKS.search(text):
        where = place(manifest.file, trainer.get("command") or trainer.get("args"), "command")
        yield case("L72", "plain", where, value="python", severity="warning")


def _jobset(manifest: Manifest) -> Iterator[Finding]:
    jobs = _items(manifest.document, "spec", "replicatedJobs")
    for job in jobs:
        inner = job.get("template", "spec") or MarkupNode(0, None)
        yield from _job_counts(manifest, inner)
        if inner.text("completionMode") == "NonIndexed" and (inner.number("parallelism") or 1) > 1:
            where = place(manifest.file, inner.get("completionMode"), "completionMode")
            yield case(
                "L72", "index", where, {"name": "JOB_COMPLETION_INDEX"}, value="completionMode: NonIndexed"
            )
    yield from _pod_names(manifest, jobs)
    hostnames = manifest.document.get("spec", "network", "enableDNSHostnames")
    if hostnames is not None and hostnames.value is False and manifest.pods:
        name = f"{manifest.document.text('metadata', 'name')}-{manifest.pods[0].name}-0-0"
        where = place(manifest.file, hostnames, "enableDNSHostnames")
        yield case("L72", "names", where, {"name": name}, value="enableDNSHostnames: false")


def _pod_names(manifest: Manifest, jobs: list[MarkupNode]) -> Iterator[Finding]:
    """Report an address of the first pod that no pod of the JobSet has."""
    name = manifest.document.text("metadata", "name")
    known = "|".join(re.escape(job.text("name")) for job in jobs)
    domain = manifest.document.text("spec", "network", "subdomain") or name
    right = re.compile(rf"{re.escape(name)}-({known})-\d+-\d+(\.{re.escape(domain)}(\..*)?)?(:\d+)?")
    for pods in manifest.pods:
        for container in _items(pods.spec, "containers"):
            value, node = _environment(container).get("MASTER_ADDR", ("", container))
            if (
                value
                and re.fullmatch(r"[a-z][\w.-]*", value)
                and value.startswith(f"{name}-")
                and name
                and not right.fullmatch(value)
            ):
                where = place(manifest.file, node, "env.MASTER_ADDR")
                first = f"{name}-{jobs[0].text('name')}-0-0.{domain}"
                yield case("L72", "pod", where, {"name": value, "first": first}, value=value)


def _job_counts(manifest: Manifest, spec: MarkupNode) -> Iterator[Finding]:
    """Check the numbers of a Job."""
    parallel, all_ = spec.number("parallelism"), spec.number("completions")
    if spec.text("completionMode") == "Indexed" and spec.get("completions") is None:
        place_ = place(manifest.file, spec.get("completionMode"), "completionMode")
        yield case("L72", "completions", place_, {"count": parallel or 1}, value="completionMode: Indexed")
    where = place(manifest.file, spec.get("parallelism") or spec.get("completions") or spec, "spec")
    if all_ and (parallel or 1) < all_ and all_ > 1:
        yield case(
            "L72", "pods", where, {"one": parallel or 1, "two": all_}, value=f"parallelism: {parallel or 1}"
        )
    if all_ and parallel and all_ < parallel:
        yield case("L72", "fewer", where, {"one": parallel, "two": all_}, value=f"completions: {all_}")
    policy = spec.get("template", "spec", "restartPolicy")
    if policy is not None and policy.shown not in ("Never", "OnFailure"):
        shown = f"restartPolicy: {policy.shown}"
        yield case(
            "L72",
            "policy",
            place(manifest.file, policy, "restartPolicy"),
            {"given": policy.shown},
            value=shown,
        )


def _job(manifest: Manifest) -> Iterator[Finding]:
    spec = manifest.document.get("spec") or MarkupNode(0, None)
    if spec.get("tasks") is not None:
        least, pods = spec.number("minAvailable"), manifest.nodes
        yield from _plugins(manifest, spec)
        if least and pods and least > pods:
            facts = {"first": "minAvailable", "one": least, "second": "the sum of replicas", "two": pods}
            yield case(
                "L72", "counts", manifest.at("spec", "minAvailable"), facts, value=f"minAvailable: {least}"
            )
        return
    yield from _job_counts(manifest, spec)
    text = " ".join(
        item.value
        for pods in manifest.pods
        for container in _items(pods.spec, "containers")
        for key in ("command", "args")
        for item in _items(container, key)
        if isinstance(item.value, str)
    )
    if (spec.number("parallelism") or 1) < 2:
        return
    if "JOB_COMPLETION_INDEX" in text and spec.text("completionMode") != "Indexed":
        yield case(
            "L72", "index", manifest.at("spec"), {"name": "JOB_COMPLETION_INDEX"}, value="completionMode"
        )
    name = manifest.document.text("metadata", "name")
    if (
        name
        and re.search(rf"\b{re.escape(name)}-0\b", text)
        and not spec.get("template", "spec", "subdomain")
    ):
        yield case("L72", "subdomain", manifest.at("spec", "template"), value=f"{name}-0")


def _plugins(manifest: Manifest, spec: MarkupNode) -> Iterator[Finding]:
    """Report task names in Volcano's plugins that no task has."""
    names = {pods.name for pods in manifest.pods}
    plugins = spec.get("plugins")
    for plugin, node in (plugins.mapping if plugins else {}).items():
        for item in node.items:
            match = re.fullmatch(r"--(?:master|worker|launcher)=(\S+)", str(item.value))
            if match and match[1] not in names:
                where = place(manifest.file, item, "plugins")
                yield case(
                    "L72", "plugin", where, {"plugin": plugin, "name": match[1]}, value=str(item.value)
                )


def _mpi(manifest: Manifest) -> Iterator[Finding]:
    spec = manifest.document.get("spec") or MarkupNode(0, None)
    slots = _count(spec, "slotsPerWorker")
    workers = next((pods.count for pods in manifest.pods if pods.name == "Worker"), None)
    for pods in manifest.pods:
        for container in _items(pods.spec, "containers"):
            if pods.name == "Launcher":
                yield from _mpirun(manifest, container, workers, slots)
            gpus = _gpus(container)
            if pods.name == "Worker" and gpus and slots and gpus != slots:
                facts = {
                    "first": "slotsPerWorker",
                    "one": slots,
                    "second": "nvidia.com/gpu of a worker",
                    "two": gpus,
                }
                where = (
                    manifest.at("spec", "slotsPerWorker")
                    if spec.get("slotsPerWorker")
                    else manifest.at("spec")
                )
                yield case(
                    "L72",
                    "counts",
                    where,
                    facts,
                    value=f"slotsPerWorker: {slots}",
                    severity="warning" if slots > gpus else "note",
                )


def _mpirun(
    manifest: Manifest, container: MarkupNode, workers: int | None, slots: int | None
) -> Iterator[Finding]:
    items = [item for key in ("command", "args") for item in _items(container, key)]
    words = _before_program([word for item in items for word in str(item.value).split()])
    for option, value in itertools.pairwise(words):
        number = whole(value)
        if (
            option in ("-np", "-n", "-c", "--np")
            and number
            and workers
            and slots
            and number > workers * slots
        ):
            facts = {"np": number, "workers": workers, "slots": slots, "all": workers * slots}
            where = place(manifest.file, items[0], "command")
            yield case("L72", "slots", where, facts, value=f"{option} {number}")
            return


def _before_program(words: list[str]) -> list[str]:
    """Return mpirun and its options."""
    if "mpirun" not in words:
        return []
    begin = words.index("mpirun")
    for at in range(begin + 1, len(words)):
        values = 2 if "mca" in words[at - 2] or "mca" in words[at - 1] else 1
        if not any(word.startswith("-") for word in words[max(begin, at - values) : at + 1]):
            return words[begin:at]
    return words[begin:]


def _ray(manifest: Manifest) -> Iterator[Finding]:
    spec = manifest.document.get("spec") or MarkupNode(0, None)
    entry = spec.get("entrypoint")
    if entry is not None and isinstance(entry.value, str):
        launch = next(iter(read_script(entry.value).launches), None)
        if launch is not None and (manifest.nodes or 0) > 0:
            where = manifest.at("spec", "entrypoint")
            yield case(
                "L72", "entry", where, {"given": launch.program}, value=launch.program, severity="warning"
            )
        around = Surroundings(file=manifest.file, in_image=True)
        yield from launches.check_text(entry.value, around, entry.text_line or entry.line)
    cluster = spec.get("rayClusterSpec") or spec
    yield from _ray_workers(manifest, entry)
    yield from _ray_version(manifest, cluster)
    for group in _items(cluster, "workerGroupSpecs"):
        yield from _ray_group(manifest, group)


def _ray_workers(manifest: Manifest, entry: MarkupNode | None) -> Iterator[Finding]:
    """Report more workers in the entrypoint than the cluster has GPUs."""
    match = (
        re.search(r"--(?:num[-_]workers|num[-_]gpus)[ =](\d+)", entry.value)
        if entry and isinstance(entry.value, str)
        else None
    )
    counts = [
        (pods.count, [_gpus(one) or 0 for one in _items(pods.spec, "containers")][:1])
        for pods in manifest.pods
    ]
    total = sum((count or 0) * sum(gpus) for count, gpus in counts)
    if match and entry and total and None not in [count for count, _ in counts] and int(match[1]) > total:
        facts = {"one": match[1], "two": total}
        where = place(manifest.file, entry, "entrypoint")
        yield case("L72", "workers", where, facts, value=match[0], severity="note")


def _ray_version(manifest: Manifest, cluster: MarkupNode) -> Iterator[Finding]:
    version = cluster.get("rayVersion")
    if version is None:
        return
    for pods in manifest.pods:
        for container in _items(pods.spec, "containers"):
            tag = re.search(r"/ray(?:-ml|-llm)?:(\d+\.\d+\.\d+)", container.text("image"))
            if tag and tag[1] != version.shown:
                facts = {"first": "rayVersion", "one": version.shown, "second": "the image", "two": tag[1]}
                where = place(manifest.file, version, "rayVersion")
                yield case(
                    "L72", "counts", where, facts, value=f"rayVersion: {version.shown}", severity="warning"
                )


def _ray_group(manifest: Manifest, group: MarkupNode) -> Iterator[Finding]:
    """Check the numbers of one group of workers."""
    count, least, most = group.number("replicas"), group.number("minReplicas"), group.number("maxReplicas")
    where = place(manifest.file, group.get("replicas") or group, "replicas")
    if count is not None and most is not None and count > most:
        facts = {"first": "replicas", "one": count, "second": "maxReplicas", "two": most}
        yield case("L72", "counts", where, facts, value=f"replicas: {count}")
    if count is not None and least is not None and count < least:
        facts = {"first": "replicas", "one": count, "second": "minReplicas", "two": least}
        yield case("L72", "counts", where, facts, value=f"replicas: {count}")
    started = group.number("rayStartParams", "num-gpus")
    for container in _items(group, "template", "spec", "containers"):
        gpus = _gpus(container)
        if started is not None and gpus is not None and started != gpus:
            facts = {"first": "num-gpus", "one": started, "second": "nvidia.com/gpu", "two": gpus}
            yield case("L72", "counts", where, facts, value=f"num-gpus: {started}", severity="warning")


STEP = "trainer.kubeflow.org/trainjob-ancestor-step"


def _runtime(manifest: Manifest) -> Iterator[Finding]:
    """Compare the processes per node of a training runtime with the GPUs of its containers."""
    policy = manifest.document.get("spec", "mlPolicy") or MarkupNode(0, None)
    jobs = _items(manifest.document, "spec", "template", "spec", "replicatedJobs")
    labels = [job.get("template", "metadata", "labels") for job in jobs]
    if jobs and not any(label and STEP in label.mapping for label in labels):
        yield case("L72", "ancestor", manifest.at("spec", "template"), {"label": STEP}, value=STEP)
    for program in ("torch", "mpi"):
        node = policy.get(program, "numProcPerNode")
        each = policy.number(program, "numProcPerNode")
        for pods in manifest.pods:
            for container in _items(pods.spec, "containers"):
                gpus = _gpus(container)
                if each and gpus and each != gpus and node is not None:
                    facts = {
                        "first": "numProcPerNode",
                        "one": each,
                        "second": "nvidia.com/gpu",
                        "two": gpus,
                    }
                    severity: Severity = "error" if each > gpus else "warning"
                    where = place(manifest.file, node, "numProcPerNode")
                    yield case(
                        "L72", "counts", where, facts, value=f"numProcPerNode: {each}", severity=severity
                    )


def _with_runtimes(documents: Sequence[MarkupNode], file: str) -> Iterator[Finding]:
    """Compare the GPUs of TrainJobs with the processes per node of their runtimes in the same file."""
    runtimes = {
        one.text("metadata", "name"): one
        for one in documents
        if one.text("kind").endswith("TrainingRuntime")
    }
    for job in documents:
        runtime = runtimes.get(job.text("spec", "runtimeRef", "name"))
        trainer = job.get("spec", "trainer")
        if runtime is None or trainer is None or trainer.get("numProcPerNode"):
            continue
        amounts = trainer.get("resourcesPerNode")
        gpus = _gpus(MarkupNode(0, {"resources": amounts})) if amounts else None
        for program in ("torch", "mpi"):
            each = runtime.number("spec", "mlPolicy", program, "numProcPerNode")
            if each and gpus and each != gpus:
                facts = {
                    "first": "numProcPerNode of the runtime",
                    "one": each,
                    "second": "nvidia.com/gpu",
                    "two": gpus,
                }
                where = place(file, amounts, "resourcesPerNode")
                severity: Severity = "error" if each > gpus else "warning"
                yield case(
                    "L72", "counts", where, facts, value=f"numProcPerNode: {each}", severity=severity
                )


KINDS: Mapping[str, Callable[[Manifest], Iterator[Finding]]] = {
    "PyTorchJob": _pytorch,
    "TrainJob": _train,
    "JobSet": _jobset,
    "RayJob": _ray,
    "RayCluster": _ray,
    "MPIJob": _mpi,
    "Job": _job,
    "ClusterTrainingRuntime": _runtime,
    "TrainingRuntime": _runtime,
}
