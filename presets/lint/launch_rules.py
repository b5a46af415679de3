"""Rules for one launch and its place: on which nodes it runs, how often, and what its ranks get (L56 to L66)."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence

from ..finding import Finding, Severity
from ..text_formats import whole
from .launch_sites import PER_TASK, Expansion, Launch, visible_devices
from .launcher_calls import Setting, ShellText
from .lint_rules import LOCAL_ADDRESS, case, issue
from .shell import Command, Word, names_in

SPREADERS = frozenset(
    {"srun", "ssh", "pdsh", "clush", "parallel", "mpirun", "mpiexec", "pbsdsh", "blaunch", "prun", "jsrun"}
)
"""Programs that start something on other nodes."""
LOOKS = re.compile(
    r"\b(hostname|nvidia-smi|scontrol|ip|echo|true|date|env|uptime|free|df|rm|mkdir|cp|rsync|sleep)\b"
)
"""Commands that start no training."""
RANKS = frozenset({"RANK", "LOCAL_RANK", "CUDA_VISIBLE_DEVICES", "GROUP_RANK", "OMPI_COMM_WORLD_RANK"})
"""Variables that must differ between tasks."""
RANK_OPTIONS = ("node_rank", "machine_rank", "rank", "local_rank", "global_rank", "node_id")
OWN_ADDRESS = re.compile(
    r"\((hostname|uname|ifconfig|ip)$|^HOSTNAME$|^HOST$|^SLURMD_NODENAME$|^POD_IP$|^MY_POD_IP$|^NODE_IP$"
)
"""Variables and programs that name the node on which a shell runs."""
DRAWN = re.compile(r"^RANDOM$|^SRANDOM$|^\((shuf|uuidgen|date)$")
"""Variables and programs with another value in each shell."""
FALLBACK = re.compile(r"scontrol.*\|\|\s*echo\s+[\"']?(localhost|127\.0\.0\.1|\$\(hostname\)|\$HOSTNAME)")
NODE_LIST = re.compile(r"\$\{?SLURM_(JOB_|STEP_)?NODELIST\}?")
LAST_NODE = re.compile(r"(NODELIST|NODE_IPS).*\|\s*tail\s+(-n\s*)?-?1\b")
WHOLE_LIST = re.compile(r"\$\(\s*scontrol\s+show\s+hostnames?\s*[^|)]*\)")


def check_launch(launch: Launch) -> Iterator[Finding]:
    """Check one launch."""
    for rule in RULES:
        yield from rule(launch)


def _first_node_only(launch: Launch) -> Iterator[Finding]:
    """Report a launch for several nodes in a batch script, outside of a step."""
    batch, program = launch.around.batch, launch.call.program
    if batch is None or not _stays_on_first_node(launch):
        return
    told, nodes = launch.told_nodes(), batch.nodes
    if told and told > 1 and nodes != 1:  # L35 compares the two numbers
        by_step = re.search(r"SLURM_(STEP_|PROCID|NODEID|LOCALID)", launch.script.text) is not None
        name = "inside" if by_step else "waits"
        severity: Severity = "warning" if by_step else "error"
        facts = {"program": program, "nodes": told, "file": launch.around.file or "FILE"}
        yield case("L56", name, launch.where, facts, severity=severity)
    elif told == 1 and nodes and nodes > 1 and _is_last(launch):
        severity = "note" if program == "python" else "warning"
        facts = {"program": program, "nodes": nodes, "others": nodes - 1}
        yield case("L56", "idle", launch.where, facts, severity=severity)


def _stays_on_first_node(launch: Launch) -> bool:
    """Return True if nothing visible brings a launch of the batch script to the other nodes."""
    if launch.site.on_each or launch.site.remote:
        return False
    if launch.call.program not in ("torchrun", "accelerate", "python"):
        return False
    return not (_spreads(launch.script) or launch.call.command.is_conditional)


def _is_last(launch: Launch) -> bool:
    """Return True if nothing else starts after a launch, so that it is the training."""
    return all(call.line <= launch.call.line for call in launch.script.started)


def _spreads(script: ShellText) -> bool:
    """Return True if a command starts something on other nodes, or if it may."""
    return any(_is_spreading(command) for command in script.commands)


def _is_spreading(command: Command) -> bool:
    names = {word.text.rpartition("/")[2] for word in command.words}
    text = " ".join(word.text for word in command.words[1:])
    return bool(names & SPREADERS) and not (LOOKS.search(text) and "$" not in command.words[-1].text)


def _several_per_node(launch: Launch) -> Iterator[Finding]:
    """Report a launcher that srun or mpirun starts once per rank."""
    if not launch.call.is_launcher or launch.is_deepspeed or (launch.site.copies or 1) < 2:
        return
    if launch.site.remote:
        yield from _several_by_mpi(launch)
    elif launch.site.step is not None:
        yield from _several_by_srun(launch)


def _several_by_mpi(launch: Launch) -> Iterator[Finding]:
    told, ranks, copies = launch.told_nodes(), launch.told_ranks(), launch.site.copies or 0
    if told and copies > told and ranks != 1:
        facts = {"copies": copies, "program": launch.call.program, "ranks": _ranks(ranks)}
        yield case("L57", "mpi", launch.where, facts)


def _several_by_srun(launch: Launch) -> Iterator[Finding]:
    site, program = launch.site, launch.call.program
    told, ranks, copies = launch.told_nodes(), launch.told_ranks(), site.copies or 0
    if (site.per_node or 0) > 1 and ranks != 1:
        nodes = "a node" if site.nodes == 1 else "each node"
        facts = {"copies": site.per_node, "program": program, "nodes": nodes, "ranks": _ranks(ranks)}
        yield case("L57", "tasks", launch.where, facts, value=f"{site.per_node} tasks per node")
    elif told and copies > told and (told > 1 or _says_nodes(launch)):
        what = "one node each" if told == 1 else f"{told} nodes"
        yield case("L57", "nodes", launch.where, {"copies": copies, "program": program, "told": what})


def _says_nodes(launch: Launch) -> bool:
    """Return True if a launcher gets its number of nodes, and does not take the default."""
    return launch.call.program == "accelerate" or "nnodes" in launch.options.values


def _ranks(ranks: int | None) -> str:
    if ranks is None:
        return "ranks"
    return f"{ranks} ranks" if ranks else "rank per GPU"


def _expanded_once(launch: Launch) -> Iterator[Finding]:
    """Report a number of a node or task that is the same for all, because a shell expands it too early."""
    expansion = Expansion(launch)
    for option, word in _rank_words(launch):
        once = next((name for name in expansion.once(word) if PER_TASK.fullmatch(name)), "")
        never = next((name for name in expansion.never(word) if PER_TASK.fullmatch(name)), "")
        is_written = launch.around.late is not None and once not in launch.around.late
        where = launch.around.at(word.line)
        if never and launch.site.on_each and not launch.site.remote:
            yield case("L58", "never", where, {"name": never}, value=f"{option} ${never}")
        elif once:
            name = "written" if is_written else "once"
            yield case("L58", name, where, {"name": once, "option": option}, value=f"{option} ${once}")
        elif (
            "SLURM_LOCALID" in names_in(word.text) and _numbers_nodes(option) and launch.site.per_node == 1
        ):
            yield case("L58", "zero", where, {"name": "SLURM_LOCALID"}, value=f"{option} $SLURM_LOCALID")
    yield from _variables_once(launch, expansion)


def _numbers_nodes(option: str) -> bool:
    return "node" in option or "machine" in option


def _rank_words(launch: Launch) -> Iterator[tuple[str, Word]]:
    """Yield the options that give a node, a machine or a rank its number."""
    if launch.call.program == "torchrun":
        rank = launch.options.values.get("node-rank")
        if rank and launch.options.literal("rdzv-backend") in ("", "static"):
            yield "--node-rank", rank
        return
    for name in RANK_OPTIONS:
        word = launch.flags.get(name)
        if word is not None:
            yield f"--{name}", word


def _variables_once(launch: Launch, expansion: Expansion) -> Iterator[Finding]:
    """Report a variable of a rank that the batch script sets for all tasks."""
    if launch.site.step is None or launch.call.program not in ("python", "script"):
        return
    again = {setting.name for setting in launch.call.inner}
    for setting in launch.script.settings:
        if not setting.exported or setting.name not in RANKS - again or setting.line > launch.call.line:
            continue
        word = Word(setting.value, setting.line, setting.later)
        name = next((name for name in expansion.once(word) if PER_TASK.fullmatch(name)), "")
        if name and (launch.site.copies or 2) > 1:
            where, value = launch.around.at(setting.line), f"{setting.name}=${name}"
            yield case("L58", "once", where, {"name": name, "option": setting.name}, value=value)


def _exports(launch: Launch) -> Iterator[Finding]:
    """Report variables that do not reach the tasks."""
    lost = _exported_before(launch)
    if launch.site.own is not None:
        yield from _through_srun(launch, lost)
    elif launch.site.remote == "ssh" and launch.call.is_launcher:
        yield from _through_ssh(launch)
    elif launch.site.remote == "mpirun" and launch.around.batch is None:
        yield from _through_mpi(launch, lost)


def _through_srun(launch: Launch, lost: Sequence[str]) -> Iterator[Finding]:
    own, batch = launch.site.own, launch.around.batch
    if own is not None and own.has("export"):
        value = own.text("export")
        if _is_closed(value):
            missing = [name for name in lost if name not in re.split("[,=]", value)]
            where, names = launch.around.at(own.options["export"].line), _some(missing)
            severity: Severity = "error" if any(name.startswith(NEEDED) for name in missing) else "warning"
            given = "…" if value == "NONE" else value
            facts = {"names": given, "lost": names or "other variable"}
            shown = f"--export={value}"
            yield case("L61", "srun", where, {"given": value, **facts}, value=shown, severity=severity)
        return
    value = batch.text("export") if batch else ""
    if batch and _is_closed(value) and lost and "SLURM_EXPORT_ENV" not in launch.script.text:
        where, shown = launch.around.at(batch.options["export"].line), f"--export={value}"
        yield case("L61", "batch", where, {"given": value, "lost": _some(lost)}, value=shown)


def _is_closed(value: str) -> bool:
    """Return True if a value of --export keeps the variables of the shell from the tasks."""
    return value != "" and "$" not in value and not re.search(r"\b(ALL|NIL)\b", value)


def _through_ssh(launch: Launch) -> Iterator[Finding]:
    """Report variables in front of ssh, which do not arrive."""
    names = [word.text.partition("=")[0] for word in launch.call.before if "=" in word.text.split(" ")[0]]
    at = next(at for at, word in enumerate(launch.call.before) if word.text.rpartition("/")[2] == "ssh")
    lost = [
        name
        for name in names
        if name.isupper() and any(word.text.startswith(f"{name}=") for word in launch.call.before[:at])
    ]
    if lost:
        yield case("L61", "ssh", launch.where, {"name": lost[0], "lost": _some(lost)})


def _through_mpi(launch: Launch, lost: Sequence[str]) -> Iterator[Finding]:
    """Report variables that Open MPI does not pass on to other hosts."""
    words = [word.text for word in launch.call.before]
    has_hosts = any(
        word in ("-H", "--host", "-hostfile", "--hostfile", "-machinefile", "--machinefile")
        for word in words
    )
    passes = any(word in ("-genv", "-genvall", "-envall", "-genvlist", "-env") for word in words)
    given = {after.partition("=")[0] for word, after in itertools.pairwise(words) if word == "-x"}
    missing = [name for name in lost if name not in given and name.startswith(NEEDED)]
    if has_hosts and not passes and missing:
        yield case(
            "L61", "mpi", launch.where, {"name": missing[0], "lost": _some(missing)}, severity="warning"
        )


NEEDS_CPUS = re.compile(r"num[_-]?workers|OMP_NUM_THREADS=\W*\$|SLURM_CPUS_PER_TASK", re.I)
"""Signs that the ranks use several CPUs."""
NEEDED = (
    "MASTER_",
    "NCCL_",
    "HF_",
    "WANDB_",
    "PYTHONPATH",
    "LD_LIBRARY_PATH",
    "OMP_",
    "CUDA_",
    "TORCH_",
    "GLOO_",
)
"""Prefixes of variables that ranks need on every host."""


def _exported_before(launch: Launch) -> list[str]:
    """Return the variables that the script exports before a launch."""
    names = [one.name for one in launch.script.settings if one.exported and one.line <= launch.call.line]
    return list(dict.fromkeys(name for name in names if name.isupper() and not name.startswith("SLURM")))


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (", …" if names[3:] else "")


def _cpus(launch: Launch) -> Iterator[Finding]:
    """Report CPUs of the batch job that its steps do not get."""
    own, batch = launch.site.own, launch.around.batch
    if own is None or batch is None or launch.call.program == "script":
        return
    cpus = batch.number("cpus-per-task") or 1
    is_given = own.has("cpus-per-task") or own.text("cpu-bind") in ("none", "no", "v,none")
    matters = NEEDS_CPUS.search(launch.script.text) is not None
    if cpus > 1 and matters and not is_given and "SRUN_CPUS_PER_TASK" not in launch.script.text:
        yield case("L62", "lost", launch.where, {"cpus": cpus}, value=f"--cpus-per-task={cpus}")


def _devices(launch: Launch) -> Iterator[Finding]:
    """Report CUDA_VISIBLE_DEVICES for a launcher that ignores it, or with another number of GPUs."""
    devices = visible_devices(launch.call, launch.around.env)
    if not devices or not launch.call.is_launcher:
        return
    value = f"CUDA_VISIBLE_DEVICES={devices}"
    flags = launch.flags
    if launch.is_deepspeed:
        option = next(
            (name for name in ("include", "exclude", "num_gpus", "num_nodes", "hostfile") if name in flags),
            "",
        )
        is_first = devices == ",".join(str(number) for number in range(devices.count(",") + 1))
        if option and not is_first:
            facts = {"devices": devices, "option": f"--{option}"}
            yield case("L63", "deepspeed", launch.where, facts, value=value)
        return
    ids = flags.get("gpu_ids") if launch.call.program == "accelerate" else None
    if ids is not None and ids.text not in ("all", devices):
        yield case(
            "L63",
            "accelerate",
            launch.where,
            {"ids": ids.text, "devices": devices},
            value=value,
            severity="warning",
        )
        return
    count, ranks = devices.count(",") + 1, launch.told_ranks() or 0
    if re.fullmatch(r"\d+(,\d+)*", devices) and ranks > count:
        shown = f"{count} GPU" + ("s" if count > 1 else "")
        facts = {"devices": devices, "count": shown, "program": launch.call.program, "ranks": str(ranks)}
        yield case("L63", "ranks", launch.where, facts, value=value)


def _scontrol(launch: Launch) -> Iterator[Finding]:
    """Report scontrol inside of an image, or with this node as its substitute."""
    around = launch.around
    settings = launch.call.inner if launch.call.inner else ()
    inside: Sequence[Setting] = launch.script.settings if around.in_image else settings
    if launch.site.in_image:
        for setting in inside:
            later = launch.call.late if setting in launch.call.inner else None
            if "(scontrol" in names_in(setting.value) and (later is None or "(scontrol" in later):
                yield case("L65", "image", around.at(setting.line), value="scontrol", severity="note")
                return
        for word in launch.call.words:
            if "(scontrol" in names_in(word.text) and "(scontrol" in launch.call.late:
                yield case("L65", "image", launch.where, value="scontrol", severity="note")
                return
    if launch.told_nodes() == 1 or not launch.call.is_launcher:
        return
    for setting in launch.script.settings:
        match = FALLBACK.search(setting.value)
        if match:
            yield case("L65", "fallback", around.at(setting.line), value=match[1], severity="note")
            return


def _deepspeed(launch: Launch) -> Iterator[Finding]:
    """Report the deepspeed launcher on every node, or for nodes that it does not know."""
    if not launch.is_deepspeed or launch.call.command.is_conditional:
        return
    flags = launch.flags
    if flags.keys() & {"no_ssh", "node_rank", "force_multi"}:
        return
    several = next((f"--{name}" for name in ("hostfile", "H", "num_nodes") if name in flags), "")
    if several == "--num_nodes" and flags["num_nodes"].text == "1":
        several = ""
    if launch.site.on_each:
        yield from _deepspeed_on_each(launch, several)
    elif not several and launch.around.batch and not _spreads(launch.script):
        nodes = launch.around.batch.nodes or 1
        if nodes > 1:
            yield case("L66", "one", launch.where, {"nodes": nodes}, severity="warning")


def _deepspeed_on_each(launch: Launch, several: str) -> Iterator[Finding]:
    site = launch.site
    if site.nodes != 1 and several:
        option = several.replace("--H", "--hostfile")
        yield case("L66", "all", launch.where, {"option": option}, value=option)
    elif (site.nodes or 1) > 1:
        yield case("L66", "nodes", launch.where, severity="warning")
    elif (site.copies or 1) > 1:
        facts = {"copies": site.copies, "program": "deepspeed", "nodes": "a node", "ranks": "ranks"}
        yield case("L57", "tasks", launch.where, facts)


def _addresses(launch: Launch) -> Iterator[Finding]:
    """Report an address, port or id that each node finds for itself, or that names no node."""
    nodes = launch.told_nodes() if launch.call.is_launcher else launch.site.copies
    if nodes == 1 or launch.call.command.is_conditional or launch.is_deepspeed:
        return
    expansion = Expansion(launch)
    for option, word in _meeting_words(launch):
        where = launch.around.at(word.line)
        names = list(expansion.on_each(word)) if launch.site.on_each or launch.around.is_task else []
        own = next((name for name in names if OWN_ADDRESS.search(name)), "")
        drawn = next((name for name in names if DRAWN.search(name)), "")
        text = _bad_address(word.text, launch)
        if own:
            text = f"Every node expands {_shown(own)} for itself: {option} is a different one on each."
        elif drawn:
            text = f"Every node draws {_shown(drawn)} for itself: {option} is a different one on each."
        if text:
            remedy = "Compute it once in the batch script, and export it."
            yield issue("L38", where, text, value=option, remedy=None if own else remedy)
            return


def _shown(name: str) -> str:
    return f"$({name[1:]})" if name.startswith("(") else f"${name}"


def _meeting_words(launch: Launch) -> Iterator[tuple[str, Word]]:
    """Yield the options and variables by which the nodes meet."""
    if launch.call.program == "torchrun":
        values = launch.options.values
        if launch.options.literal("rdzv-backend") in ("", "static") and "rdzv-endpoint" not in values:
            names = ["master-addr", "master-port"]
        else:
            names = ["rdzv-endpoint", "rdzv-id"]
        yield from ((f"--{name}", values[name]) for name in names if name in values)
        return
    if launch.call.program == "accelerate":
        for name in ("main_process_ip", "main_process_port"):
            if name in launch.flags:
                yield f"--{name}", launch.flags[name]
        return
    if launch.call.program == "python" and launch.site.step is not None:
        for name in ("MASTER_ADDR", "MASTER_PORT"):
            setting = _setting(launch, name)
            if setting is not None and setting.exported and not setting.is_conditional:
                yield name, Word(f"${name}", setting.line)


def _setting(launch: Launch, name: str) -> Setting | None:
    inner = next((one for one in launch.call.inner if one.name == name), None)
    return inner or launch.script.setting(name)


def _bad_address(text: str, launch: Launch) -> str:
    """Return why a text is the address of no node that all others reach, or ""."""
    name = next(iter(names_in(text)), "")
    setting = _setting(launch, name) if name else None
    value = setting.value.strip("\"'") if setting and not setting.is_conditional else text
    if value.startswith(("$SLURM_SUBMIT_HOST", "${SLURM_SUBMIT_HOST")):
        return "SLURM_SUBMIT_HOST is the machine where sbatch was called, not a node of the job."
    if launch.call.program == "torchrun" and _is_last_node(value, launch):
        return "This is the address of the last node, and node 0 is the first one."
    is_plain = launch.call.program == "python" and launch.site.nodes not in (None, 1)
    if is_plain and LOCAL_ADDRESS.fullmatch(value):
        return f"On each node {value} means that node itself."
    return _list_of_nodes(value, launch)


def _list_of_nodes(value: str, launch: Launch) -> str:
    """Return why a text is a list of several nodes, not the address of one, or ""."""
    if (launch.around.batch.nodes if launch.around.batch else launch.site.nodes) != 1:
        if NODE_LIST.fullmatch(value):
            return f"{value} is the compressed list of all nodes (node[01-04]), not the name of one."
        if WHOLE_LIST.fullmatch(value):
            return "scontrol show hostnames prints all nodes, one a line: this is not the name of one."
    if value in ("$SKYPILOT_NODE_IPS", "${SKYPILOT_NODE_IPS}") and launch.around.nnodes != 1:
        return "SKYPILOT_NODE_IPS holds the addresses of all nodes, one a line: this is not the address of one."
    return ""


def _is_last_node(value: str, launch: Launch) -> bool:
    """Return True if a static rendezvous of torchrun gets the last of the job's nodes."""
    is_static = launch.options.literal("rdzv-backend") in ("", "static")
    return (
        is_static and "rdzv-endpoint" not in launch.options.values and LAST_NODE.search(value) is not None
    )


def _world_size(launch: Launch) -> Iterator[Finding]:
    """Report WORLD_SIZE if it is another number than that of the tasks."""
    copies, size = launch.site.copies, whole(launch.script.values.get("WORLD_SIZE", ""))
    setting = launch.script.setting("WORLD_SIZE")
    is_late = setting is not None and (setting.line > launch.call.line or not setting.exported)
    if launch.call.program != "python" or launch.site.step is None or is_late:
        return
    if size and copies and size != copies:
        where = launch.around.at(setting.line) if setting else launch.where
        text = f"WORLD_SIZE is {size}, and srun starts {copies} tasks."
        yield issue("L35", where, text, value=f"WORLD_SIZE={size}")


def _no_gpus(launch: Launch) -> Iterator[Finding]:
    """Report several ranks in a batch job that asks for no GPU."""
    batch, ranks = launch.around.batch, launch.told_ranks() or 0
    asks = (
        "gpus",
        "gpus-per-node",
        "gpus-per-task",
        "gres",
        "gpus-per-socket",
        "tres-per-task",
        "exclusive",
    )
    if batch is None or any(map(batch.has, asks)) or launch.call.program != "torchrun" or launch.is_on_cpu:
        return
    own = launch.site.own
    if ranks > 1 and not (own and any(map(own.has, asks))):
        facts = {"ranks": ranks, "gpus": ranks}
        yield case("L74", "none", launch.where, facts, value="--gpus-per-node", severity="note")


def _after_image(launch: Launch) -> Iterator[Finding]:
    """Report options of singularity after the image."""
    words = [word.text for word in launch.call.before]
    names = [word.rpartition("/")[2] for word in words]
    program = next((name for name in ("singularity", "apptainer") if name in names), "")
    at = next((at for at, word in enumerate(words) if word.endswith((".sif", ".simg", ".img"))), len(words))
    option = next((word for word in words[at + 1 :] if word in ("--nv", "--rocm", "-B", "--bind")), "")
    if program and option and names.index(program) < at:
        yield case("L75", "image", launch.where, {"option": option, "program": program}, value=option)


def _image(launch: Launch) -> Iterator[Finding]:
    """Report an image that is started without the GPUs."""
    words = [word.text for word in launch.call.before]
    names = [word.rpartition("/")[2] for word in words]
    for program, (verbs, switches) in IMAGE_SWITCHES.items():
        if program not in names:
            continue
        begin = names.index(program)
        options = words[begin + 1 :]
        is_prepared = program in ("singularity", "apptainer") and PREPARED.search(launch.script.text)
        if (
            is_prepared
            or not verbs & set(options)
            or any("$" in word for word in options)
            or launch.is_on_cpu
        ):
            continue
        if not any(option.startswith(switches) for option in options):
            shown = " or ".join(switches[:2])
            yield case("L73", "gpus", launch.where, {"program": program, "option": shown}, value=program)


PREPARED = re.compile(
    r"(SINGULARITY|APPTAINER)(ENV)?_|\bmodule (load|use|swap)|rocm|\bhip|lumi|MI[23]\d\d", re.I
)
"""Signs of a site that brings the GPUs into its images in another way."""
IMAGE_SWITCHES: Mapping[str, tuple[frozenset[str], tuple[str, ...]]] = {
    "singularity": (frozenset({"exec", "run"}), ("--nv", "--rocm", "--nvccli")),
    "apptainer": (frozenset({"exec", "run"}), ("--nv", "--rocm", "--nvccli")),
    "docker": (frozenset({"run"}), ("--gpus", "--runtime", "--device")),
    "podman": (frozenset({"run"}), ("--device", "--gpus", "--hooks-dir")),
}
"""Program → the verbs that start a command, and the options that bring GPUs into the image."""


RULES = (
    _world_size,
    _image,
    _after_image,
    _no_gpus,
    _first_node_only,
    _several_per_node,
    _expanded_once,
    _exports,
    _cpus,
    _devices,
    _scontrol,
    _deepspeed,
    _addresses,
)
