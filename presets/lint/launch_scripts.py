"""Rules for a launch together with its Python script: the variables, GPUs and ranks that the script expects."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from ..finding import Finding, Severity
from ..text_formats import Unreadable, whole
from . import script
from .batch_sizes import arguments
from .launch_sites import Launch
from .launcher_calls import Setting
from .lint_rules import case, issue
from .script_arguments import check_arguments
from .shell import Word
from .slurm import Slurm

RANK_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""Variables that launchers set for each rank."""
INIT_READS = {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}
"""Variables that init_process_group() reads with its default, env://."""
SPAWNING = frozenset(
    {
        "spawn",
        "Process",
        "start_processes",
        "DataParallel",
        "init",
        "remote",
        "LLM",
        "device_map",
        "launch",
        "Popen",
    }
)
"""Names in scripts that use several GPUs in one process, or start further processes."""
OWN_SETUP = re.compile(rb"SLURM_|OMPI_|PMI_|submitit|idr_torch|setdefault|init_distributed|mpi4py")
"""Signs that a script finds its rank elsewhere."""
READS_MORE = re.compile(r"\b(source|eval|exec)\s|(^|[\s;\"'])\. \S", re.MULTILINE)
"""Signs that a file sets further variables."""
INIT = "torch.distributed.init_process_group"
SET_DEVICE = "torch.cuda.set_device"


@dataclass(frozen=True, slots=True)
class Started:
    """A readable script of a launch."""

    launch: Launch
    path: Word
    source: bytes
    seen: script.ScriptContents


def check_script(launch: Launch) -> Iterator[Finding]:
    """Check the script of a launch, if it can be read."""
    started = _read(launch)
    if started is not None:
        for rule in (
            _unset_variables,
            _one_gpu_each,
            _idle_gpus,
            _data_parallel,
            _lightning,
            _more_tasks,
            _apart,
            _local_rank,
            _addresses,
        ):
            yield from rule(started)
        yield from check_arguments(launch, started.path, started.seen)
        yield from _own_findings(started)
    elif launch.call.program == "python":
        yield from _fewer_tasks(launch)


def _read(launch: Launch) -> Started | None:
    word = next((word for word in launch.call.words if word.text.endswith(".py")), None)
    if word is None or not word.literal or launch.around.read is None or launch.call.program == "script":
        return None
    data = launch.around.read(word.text)
    if not data:
        return None
    try:
        return Started(launch, word, data, script.inspect(data))
    except Unreadable:
        return None


def _strict_reads(seen: script.ScriptContents) -> set[str]:
    """Return the variables that a script reads as os.environ["NAME"] outside of any `if`: they must be set."""
    found: set[str] = set()
    for node in seen.script.tree.of(ast.Subscript):
        name = script.reads(node, seen.names)
        if name and not script.is_decided(seen.script.tree, node):
            found.add(name)
    return found


def _unset_variables(started: Started) -> Iterator[Finding]:
    """Report variables of a rank that the script needs, and that nothing sets without a launcher."""
    launch = started.launch
    if launch.call.program != "python" or READS_MORE.search(launch.script.text):
        return
    missing = [name for name in RANK_VARIABLES if name in _needed(started) - _given(started)]
    unexported = [setting for setting in _settings(launch) if setting.name in missing]
    if unexported:
        setting = min(unexported, key=lambda setting: missing.index(setting.name))
        where = launch.around.at(setting.line)
        yield case("L61", "unexported", where, {"name": setting.name}, value=setting.name)
    elif missing and not _exports_names(launch):
        by_srun = launch.site.step is not None
        facts = {"names": ", ".join(missing), "program": "srun python" if by_srun else "python"}
        yield case("L69", "step" if by_srun else "plain", launch.where, facts, value=missing[0])


def _needed(started: Started) -> set[str]:
    """Return the variables of a rank that the script reads, or init_process_group() for it."""
    needed = _strict_reads(started.seen) & set(RANK_VARIABLES)
    init = next((call for full, call in started.seen.calls if full == INIT), None)
    if init is None or OWN_SETUP.search(started.source):
        return needed
    is_told = {word.arg for word in init.keywords} & {"init_method", "rank", "store", None}
    return needed if is_told else needed | INIT_READS


def _given(started: Started) -> set[str]:
    """Return the variables that the launch exports, the surroundings set, or the script writes."""
    launch = started.launch
    exports_all = "set -a" in launch.script.text
    exported = {setting.name for setting in _settings(launch) if setting.exported or exports_all}
    before = {word.text.partition("=")[0] for word in launch.call.before}
    return exported | before | set(launch.around.env) | {write.name for write in started.seen.writes}


def _settings(launch: Launch) -> tuple[Setting, ...]:
    return (*launch.script.settings, *launch.call.inner)


def _exports_names(launch: Launch) -> bool:
    """Return True if srun's --export, or mpirun, gives the tasks variables."""
    own = launch.site.own
    return launch.site.remote == "mpirun" or (own is not None and "=" in own.text("export"))


def _one_gpu_each(started: Started) -> Iterator[Finding]:
    """Report a script that selects a GPU by its local rank, in tasks that see only one GPU."""
    launch, step = started.launch, started.launch.site.step
    if step is None or (launch.site.per_node or 1) < 2 or launch.call.program != "python":
        return
    if not _sees_one_gpu(step) or b"device_count" in started.source:
        return
    call = next(
        (call for full, call in started.seen.calls if full == SET_DEVICE and _is_by_rank(call)), None
    )
    text = re.search(rb"cuda:\{?\W*(local_rank|args\.local_rank|rank)", started.source)
    if call is None and text is None:
        return
    line = call.lineno if call else started.source.count(b"\n", 0, text.start() if text else 0) + 1
    option = "--gpus-per-task=1" if step.gpus_per_task == 1 else f"--gpu-bind={step.text('gpu-bind')}"
    facts = {"option": option, "place": f"{started.path.text}:{line}"}
    yield case("L63", "task", launch.where, facts, value=option)


def _sees_one_gpu(step: Slurm) -> bool:
    """Return True if each task of a step sees one GPU."""
    binding = step.text("gpu-bind")
    if binding.endswith("none") or binding.startswith("closest"):
        return False
    return step.gpus_per_task == 1 or binding.startswith(("single", "per_task:1"))


def _is_by_rank(call: ast.Call) -> bool:
    """Return True if the argument of set_device() is no constant."""
    return len(call.args) == 1 and not isinstance(call.args[0], ast.Constant)


def _idle_gpus(started: Started) -> Iterator[Finding]:
    """Report fewer ranks than GPUs, for a script whose process group has one rank per process."""
    launch, seen = started.launch, started.seen
    if launch.call.program != "python" or not any(full == INIT for full, _ in seen.calls):
        return
    if not seen.mentioned & SPAWNING:
        yield from _fewer_ranks(launch, 1)


def _data_parallel(started: Started) -> Iterator[Finding]:
    """Report transformers' Trainer in one process with several GPUs, which then uses DataParallel."""
    launch = started.launch
    trainers = [
        call
        for full, call in started.seen.calls
        if full.endswith("Trainer") and full.split(".")[0] in ("transformers", "trl")
    ]
    is_one = launch.site.per_node in (1, None) and not launch.site.remote
    is_split = b"device_map" in started.source
    if (
        launch.call.program == "python"
        and trainers
        and is_one
        and not is_split
        and (launch.site.gpus or 0) > 1
    ):
        facts = {"gpus": launch.site.gpus, "place": f"{started.path.text}:{trainers[0].lineno}"}
        yield case(
            "L74", "parallel", launch.where, facts, value=f"{launch.site.gpus} GPUs", severity="warning"
        )


def _fewer_tasks(launch: Launch) -> Iterator[Finding]:
    """Report several tasks per node, and more GPUs, for a script that cannot be read."""
    if launch.site.step is not None:
        yield from _fewer_ranks(launch, 2)


def _fewer_ranks(launch: Launch, least: int) -> Iterator[Finding]:
    gpus, ranks = launch.site.gpus, launch.site.per_node
    if gpus and ranks and least <= ranks < gpus and not launch.site.is_part and not launch.is_on_cpu:
        facts = {"ranks": f"{ranks} process" + ("es" if ranks > 1 else ""), "gpus": gpus}
        severity: Severity = "warning" if least == 1 else "note"
        yield case("L74", "idle", launch.where, facts, value=f"{gpus} GPUs", severity=severity)


def _lightning(started: Started) -> Iterator[Finding]:
    """Compare Trainer(devices=…, num_nodes=…) with the tasks of srun, which Lightning takes for its ranks."""
    launch = started.launch
    calls = [call for full, call in started.seen.calls if full.endswith("Trainer") and "lightning" in full]
    if launch.site.step is None or not calls:
        return
    for name, count, what in (
        ("devices", launch.site.per_node, "task(s) on each node"),
        ("gpus", launch.site.per_node, "task(s) on each node"),
        ("num_nodes", launch.site.nodes, "node(s)"),
    ):
        keyword = next((word for word in calls[0].keywords if word.arg == name), None)
        number = _number(launch, keyword.value) if keyword else None
        if number and count and number != count:
            place = f"{started.path.text}:{calls[0].lineno}"
            text = f"{place} has Trainer({name}={number}), and srun starts {count} {what}."
            yield issue("L35", launch.where, text, value=f"{name}={number}")


def _number(launch: Launch, value: ast.expr) -> int | None:
    """Return a constant, or the number that the launch gives to the option of `args.NAME`."""
    if isinstance(value, ast.Constant):
        return whole(value.value)
    word = arguments(launch.call.words).get(value.attr) if isinstance(value, ast.Attribute) else None
    return whole(word.text) if word else None


def _apart(started: Started) -> Iterator[Finding]:
    """Report device_map="auto" under a launcher, and Ray's address "auto" in a SkyPilot task."""
    launch = started.launch
    auto = re.search(rb"device_map\s*=\s*[\"']auto[\"']", started.source)
    if auto is not None and launch.call.is_launcher and launch.told_ranks() != 1:
        where = f"{started.path.text}:{_line(started, auto)}"
        yield case("L77", "device_map", where, {"program": launch.call.program}, value='device_map="auto"')
    ray = re.search(rb"ray\.init\([^)]*address\s*=\s*[\"']auto[\"']", started.source)
    if (
        ray is not None
        and launch.around.is_task
        and not launch.around.in_image
        and launch.around.batch is None
    ):
        where = f"{started.path.text}:{_line(started, ray)}"
        yield case("L77", "ray", where, value='address="auto"', severity="warning")


def _line(started: Started, match: re.Match[bytes]) -> int:
    return started.source.count(b"\n", 0, match.start()) + 1


def _more_tasks(started: Started) -> Iterator[Finding]:
    """Report more ranks than GPUs on a node."""
    launch = started.launch
    gpus, ranks = launch.site.gpus, launch.site.per_node
    step = launch.site.step
    if launch.call.program != "python" or step is None or step.gpus_per_task is not None:
        return
    uses_gpu = b"cuda" in started.source or b"gpu" in started.source
    if uses_gpu and gpus and ranks and ranks > gpus:
        text = f"{ranks} tasks on a node of {gpus} GPU{'s' if gpus > 1 else ''}: those above have none."
        yield issue("L35", launch.where, text, value=f"{ranks} tasks")


def _local_rank(started: Started) -> Iterator[Finding]:
    """Report a script that takes its local rank from an option that torchrun does not give."""
    launch, source = started.launch, started.source
    if launch.call.program != "torchrun" or launch.call.legacy or b"LOCAL_RANK" in source:
        return
    option = next((one for one in started.seen.script.options if one.dest == "local_rank"), None)
    used = re.search(
        rb"(set_device|cuda:?|device_ids)[^\n]*args\.local_rank|args\.local_rank[^\n]*cuda", source
    )
    is_given = any(
        word.text.lstrip("-").replace("-", "_").startswith("local_rank") for word in launch.call.words
    )
    if option is not None and used and not is_given:
        line = source.count(b"\n", 0, used.start()) + 1
        facts = {"place": f"{started.path.text}:{line}", "option": option.name}
        yield case("L69", "local_rank", launch.where, facts, value=option.name)


LOCAL_METHOD = re.compile(rb"tcp://(localhost|127\.0\.0\.1)")


def _addresses(started: Started) -> Iterator[Finding]:
    """Report a script on several nodes whose ranks meet on their own node."""
    launch = started.launch
    nodes = launch.told_nodes() if launch.call.is_launcher else launch.site.nodes
    text = LOCAL_METHOD.search(started.source)
    if text is not None and (nodes or 1) > 1:
        where = f"{started.path.text}:{started.source.count(bytes([10]), 0, text.start()) + 1}"
        address = text[0].decode()
        sentence = f"On each node {address} means that node itself."
        yield issue("L38", where, sentence, value=address)


def _own_findings(started: Started) -> Iterator[Finding]:
    """Yield the findings about the script that depend on the launch: errors, and those of several nodes."""
    launch = started.launch
    nodes = launch.told_nodes() if launch.call.is_launcher else launch.site.nodes
    ranks = launch.told_ranks() if launch.call.is_launcher else launch.site.per_node
    if not launch.call.is_launcher and launch.site.step is None:
        return
    facts = script.ScriptFacts(nproc=ranks or None, nnodes=nodes)
    for finding in script.check(started.source, started.path.text, facts):
        is_sure = finding.severity == "error" or (finding.id == "L50" and finding.severity == "warning")
        if finding.id in ("L23", "L24", "L50") and is_sure:
            yield finding
