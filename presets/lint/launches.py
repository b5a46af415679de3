"""Rules for shell texts: their variables, the order of their commands, and their launchers."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePath

from ..finding import Finding, Severity
from ..launchers import megatron
from ..text_formats import Unreadable, decoded, whole
from . import lint_rules
from .batch_lines import check_lines
from .batch_sizes import check_batches
from .launch_rules import check_launch
from .launch_scripts import check_script
from .launch_sites import Launch, launches, visible_devices
from .launcher_calls import LauncherCall, ShellText, plain_document, read_script, replaced
from .lint_rules import DEFAULT_PORT, LOCAL_ADDRESS, issue, once
from .named_files import config_paths
from .order_rules import check_order
from .shell import MOST_TEXT, Command, Word, read_commands
from .slurm import read_batch
from .surroundings import Surroundings
from .torchrun_options import read_options
from .torchrun_rules import check_torchrun, ranks_of_node

BROUGHT = ("MLFLOW", "NCCL", "PYTHON", "MV2", "UCX")
"""Prefixes of variables that DeepSpeed exports to other nodes."""
SHELLS_OWN = frozenset(
    {"PATH", "HOME", "PS1", "LD_LIBRARY_PATH", "DS_ENV_FILE", "PDSH_RCMD_TYPE", "PDSH_SSH_ARGS_APPEND"}
)
_OWN_FILE = re.compile(r"\.deepspeed_env|DS_ENV_FILE")
"""The file with the variables that DeepSpeed exports, and the variable with its path."""
PER_NODE = re.compile(
    r"\$\{?(SKYPILOT_NUM_GPUS_PER_NODE|SLURM_GPUS_ON_NODE|SLURM_GPUS_PER_NODE|GPUS_PER_NODE)\}?"
)
"""Variables with the number of GPUs of one node."""
MOST_OPENED = 4
"""Most scripts that start one another to follow."""
MOST_BESIDE = 100
"""Most background commands to check."""


def check_text(text: str, around: Surroundings, first_line: int = 1) -> list[Finding]:
    """Check a shell text with all rules. Never raises."""
    if len(text) > MOST_TEXT:
        what = f"is too large to be read (more than {MOST_TEXT >> 10} KiB): nothing in it was checked"
        return [issue("L41", around.at(first_line), f"The text {what}.", severity="warning", remedy="")]
    around = replace(around, env={**around.env, **_sourced(text, around)})
    script = read_script(text, first_line, around.env)
    exported = {var.name: var.value for var in script.settings if var.exported}
    around = replace(around, env={**around.env, **exported}, first_line=first_line)
    batch = read_batch(text, first_line)
    if batch is not None and around.is_own_job and batch.components == 1:
        around = replace(around, batch=batch.slurm, nnodes=batch.slurm.nodes, gpus=batch.slurm.gpus)
    every = launches(script, around)
    started = itertools.islice(_started(every, script), lint_rules.MOST)
    return once(
        [
            *_settings(script, around),
            *_order(script, around),
            *check_order(script, every, around),
            *(finding for launch in every for finding in check_launch(launch)),
            *started,
            *(finding for launch in every for finding in check_batches(launch)),
            *(finding for launch in every for finding in check_script(launch)),
            *check_lines(script, around),
            *(finding for launch in every for finding in _opened(launch)),
            *_submitted(script, around),
        ]
    )


def _submitted(script: ShellText, around: Surroundings) -> Iterator[Finding]:
    """Check the batch scripts in the here-documents of sbatch."""
    for command in script.commands:
        is_sbatch = any(word.text.rpartition("/")[2] == "sbatch" for word in command.words[:2])
        if command.here is not None and is_sbatch and not around.opened:
            text, first_line, late = plain_document(command.here)
            fresh = Surroundings(file=around.file, exists=around.exists, read=around.read, late=late)
            known = text if command.here.is_literal else replaced(text, script.values, late)
            yield from check_text(known, fresh, first_line)


def _sourced(text: str, around: Surroundings) -> dict[str, str]:
    """Return the variables of the files that a text reads with `source` or `.`."""
    found: dict[str, str] = {}
    if around.read is None or ("source " not in text and ". " not in text):
        return found
    for command in read_commands(text):
        if command.words[0].text in ("source", ".") and len(command.words) > 1:
            data = around.read(command.words[1].text) if command.words[1].literal else None
            try:
                inner = read_script(decoded(data)) if data is not None else None
            except Unreadable:
                continue
            found |= {setting.name: setting.value for setting in inner.settings} if inner else {}
    return found


def _opened(launch: Launch) -> list[Finding]:
    """Check a script that a text starts."""
    around, call = launch.around, launch.call
    path = next((word.text for word in call.words if not word.text.startswith("-")), "")
    if call.program != "script" or path in around.opened or len(around.opened) >= MOST_OPENED:
        return []
    written = launch.script.written.get(path)
    is_submitted = any(word.text.rpartition("/")[2] == "sbatch" for word in call.before)
    if is_submitted:
        around = replace(around, batch=None, nnodes=None, gpus=None, is_task=False, env={})
    inner = replace(
        around,
        file=path,
        is_task=launch.site.on_each or around.is_task,
        nnodes=launch.site.nodes if launch.site.on_each else around.nnodes,
        gpus=launch.site.gpus,
        in_image=launch.site.in_image,
        opened=(*around.opened, path),
        is_submitted=is_submitted,
    )
    if written is not None:
        text, first_line, late = plain_document(written)
        return check_text(text, replace(inner, file=around.file, late=late), first_line)
    data = around.read(path) if around.read else None
    try:
        return check_text(decoded(data), inner) if data is not None else []
    except Unreadable:
        return []


def _settings(script: ShellText, around: Surroundings) -> Iterator[Finding]:
    named = dict(itertools.islice(((var.name, var) for var in script.settings), lint_rules.MOST))
    env = {name: var.value for name, var in named.items()}
    yield from lint_rules.check_all(env, lambda name: around.at(named[name].line), around.nnodes)
    for var in script.settings:
        yield from lint_rules.in_plain_text(var.name, var.value, around.at(var.line))
        if var.name == "MASTER_PORT" and var.value == DEFAULT_PORT and not around.owns_nodes:
            text = f"Port {var.value} is the default of every job: a second job on the node does not start."
            yield issue("L22", around.at(var.line), text, value=f"{var.name}={var.value}")


def _order(script: ShellText, around: Surroundings) -> Iterator[Finding]:
    """Find commands that run too late: after `exec`, or after a launcher that they should accompany."""
    calls = [call for call in script.launches if not call.command.background]
    never = list(_after_exec(script, calls, around))
    yield from never or _beside(script, calls, around)


def _after_exec(
    script: ShellText, calls: Sequence[LauncherCall], around: Surroundings
) -> Iterator[Finding]:
    shell = next((call for call in calls if call.replaces and not call.command.branch), None)
    if shell is None:
        return
    for command in script.commands:
        if _behind(command, shell):
            name = command.words[0].text
            text = f"`exec` in line {shell.line} makes the shell the launcher: {name} never runs."
            yield issue("L5", around.at(command.line), text, value=name)
            return


def _beside(script: ShellText, calls: Sequence[LauncherCall], around: Surroundings) -> Iterator[Finding]:
    companions = (cmd for cmd in script.commands if cmd.background and cmd.words[0].text != "wait")
    for later in itertools.islice(companions, MOST_BESIDE):
        launch = next((call for call in calls if _behind(later, call)), None)
        if launch is not None:
            name = later.words[0].text
            text = f"{name} should run during the training, but starts after {launch.program} (line {launch.line})."
            yield issue("L5", around.at(later.line), text, value=name, severity="warning")


def _behind(later: Command, launch: LauncherCall) -> bool:
    """Return True if a command follows a launcher, in its branch or an enclosing one."""
    branch = launch.command.branch
    same = min(len(later.branch), len(branch))
    return later.line > launch.line and later.branch[:same] == branch[:same]


def _started(every: Sequence[Launch], script: ShellText) -> Iterator[Finding]:
    for launch in every:
        call, around = launch.call, _at_site(launch)
        if call.program == "torchrun":
            yield from check_torchrun(call, around)
        elif call.program == "accelerate":
            yield from _accelerate(launch, around)
        elif call.program == "deepspeed":
            yield from _deepspeed(call, launch.flags, script, around)
    for launch in every:
        if launch.call.is_launcher:
            yield from _configs(launch)
            yield from _megatron(launch.call, _at_site(launch))


def _at_site(launch: Launch) -> Surroundings:
    """Return the context at the place of a launch."""
    site, around = launch.site, launch.around
    gpus = None if visible_devices(launch.call, around.env) else site.gpus
    if around.is_task and not site.remote and site.step is None:
        return replace(around, gpus=gpus)
    nodes = around.nnodes
    if site.on_each:
        nodes = (
            site.copies
            if site.per_node == 1 and not launch.call.command.in_loop and not site.is_part
            else None
        )
    elif around.batch is not None and (launch.told_nodes() or 1) == 1:
        nodes = None
    is_each = site.on_each and not site.is_part and not launch.call.command.in_loop
    return replace(around, nnodes=nodes, gpus=gpus, is_task=is_each and site.nodes != 1)


def _number(flags: Mapping[str, Word], name: str) -> int | None:
    word = flags.get(name)
    return whole(word.text) if word else None


def _accelerate(launch: Launch, around: Surroundings) -> Iterator[Finding]:
    flags = launch.flags
    machines, total = _number(flags, "num_machines"), _number(flags, "num_processes")
    if machines is not None and around.nnodes is not None and machines != around.nnodes:
        text = f"accelerate gets {machines} machines, but there are {around.nnodes}."
        yield issue("L35", around.at(flags["num_machines"].line), text, value=f"--num_machines {machines}")
    nodes = machines if "num_machines" in flags else around.nnodes
    word = flags.get("num_processes")
    if word is not None and PER_NODE.fullmatch(word.text) and (launch.told_nodes() or 1) > 1:
        text = f"num_processes is the total of all machines, and {word.text} is the number of one."
        yield issue("L2", around.at(word.line), text, value=f"--num_processes {word.text}")
    if total is not None and nodes:
        where = around.at(flags["num_processes"].line)
        if nodes > 1:
            yield from total_of_machines(total, nodes, around.gpus, where)
        else:
            yield from ranks_of_node(total, around, where, "--num_processes")
    if (launch.told_nodes() or 1) > 1:
        yield from _same_machine(launch, around)
    if "multi_gpu" in flags and total == 1:
        where, text = (
            around.at(flags["num_processes"].line),
            "--multi_gpu needs two processes or more: accelerate refuses one.",
        )
        yield issue(
            "L35",
            where,
            text,
            value="--num_processes 1",
            remedy="Leave --multi_gpu out, or write more processes.",
        )


def _same_machine(launch: Launch, around: Surroundings) -> Iterator[Finding]:
    """Report options that make each of several machines the first one."""
    flags = launch.flags
    rank, address = flags.get("machine_rank"), flags.get("main_process_ip")
    if rank is not None and rank.text.isdecimal() and around.is_task:
        text = f"Every node runs this line, so each takes itself for machine {rank.text}."
        yield issue("L38", around.at(rank.line), text, value=f"--machine_rank {rank.text}")
    if address is not None and LOCAL_ADDRESS.fullmatch(address.text):
        text = f"On each node {address.text} means that node itself."
        yield issue("L38", around.at(address.line), text, value=f"--main_process_ip {address.text}")
    if rank is not None or not around.is_task or flags.keys() & {"rdzv_backend", "rdzv_conf"}:
        return
    config = launch.config()
    text = "Without --machine_rank each node takes itself for machine 0."
    remedy = "Add --rdzv_backend c10d, or --machine_rank, which each node expands for itself."
    if config is not None:
        if config.text("rdzv_backend") not in ("", "static") or config.get("machine_rank") is None:
            return
        number = launch.config_text("machine_rank")
        text = f"Every node reads machine_rank {number} from this file, and takes itself for that."
    elif "config_file" in flags:
        return
    yield issue("L38", around.at(launch.call.line), text, value="--machine_rank", remedy=remedy)


def total_of_machines(total: int, machines: int, gpus: int | None, where: str) -> Iterator[Finding]:
    """Check accelerate's num_processes, the number of ranks on all machines together."""
    value = f"num_processes = {total}"
    if total % machines or (gpus and total != machines * gpus):
        text = f"num_processes is the total of all machines: {total} ÷ {machines} machines"
        if not total % machines:
            text += f" = {total // machines} each"
        remedy = None
        if gpus:
            text += f", of {gpus} GPUs"
            remedy = f"Write {machines} × {gpus} = {machines * gpus}."
        yield issue("L2", where, f"{text}.", value=value, remedy=remedy)
    elif gpus is None and total <= 8:
        text = f"num_processes is the total of all machines: {total // machines} on each of {machines}."
        remedy = f"If each machine has {total} GPUs, write {machines * total}."
        severity: Severity = "warning" if total == machines else "note"
        yield issue("L2", where, text, value=value, remedy=remedy, severity=severity)


def _deepspeed(
    launch: LauncherCall, flags: Mapping[str, Word], script: ShellText, around: Surroundings
) -> Iterator[Finding]:
    count = _number(flags, "num_gpus")
    if count is not None:
        yield from ranks_of_node(count, around, around.at(flags["num_gpus"].line), "--num_gpus")
    if not _uses_pdsh(flags) or "DS_ENV_FILE" in around.env or _OWN_FILE.search(script.text):
        return
    lines = _lost_variables(launch, script, around)
    if lines:
        names = list(lines)
        shown = ", ".join(names[:6]) + (", …" if names[6:] else "")
        text = f"deepspeed starts its ranks by pdsh and passes only {', '.join(BROUGHT)}* on: {shown} do not arrive."
        yield issue("L6", around.at(lines[names[0]]), text, value=names[0])


def _uses_pdsh(flags: Mapping[str, Word]) -> bool:
    several = (_number(flags, "num_nodes") or 1) > 1 or "hostfile" in flags or "H" in flags
    other = flags.get("launcher")
    return several and "no_ssh" not in flags and (other is None or other.text == "pdsh")


def _lost_variables(launch: LauncherCall, script: ShellText, around: Surroundings) -> dict[str, int]:
    """Return the variables that do not reach other nodes, with the line that sets each, or the launcher's line."""
    lines: dict[str, int] = {}
    for variable in script.settings:
        if variable.exported and variable.line <= launch.line:
            lines[variable.name] = variable.line
    own = {variable.name for variable in script.settings}
    for name in around.env:
        if name not in own:
            lines[name] = launch.line
    return {name: line for name, line in lines.items() if _is_lost(name)}


def _is_lost(name: str) -> bool:
    return not name.startswith((*BROUGHT, "SKYPILOT_")) and name not in SHELLS_OWN and name.isupper()


def _configs(launch: Launch) -> Iterator[Finding]:
    """Report configuration files that are not there, if the working directory is known."""
    around, script = launch.around, launch.script
    moves = any(command.words[0].text in ("cd", "pushd") for command in script.commands)
    outputs = {command.output for command in script.commands}
    if around.exists is None or (around.file and moves):
        return
    for word in config_paths(launch.call):
        path = word.text
        is_here = path.startswith(("-", "/", "~")) or path in outputs or around.exists(path)
        if not is_here and PurePath(path).name not in script.text.replace(path, ""):
            severity: Severity = "warning" if around.is_task or not around.file else "note"
            yield issue(
                "L8", around.at(word.line), f"{path} does not exist.", value=path, severity=severity
            )


def _megatron(launch: LauncherCall, around: Surroundings) -> Iterator[Finding]:
    """Check Megatron's parallel sizes after a torchrun with a literal number of ranks."""
    if launch.program != "torchrun" or launch.legacy:
        return
    asked, options = megatron.read([word.text for word in launch.words]), read_options(launch.words)
    nodes, each = options.number("nnodes") or around.nnodes, options.number("nproc-per-node")
    if "nnodes" not in options.values and not launch.completed:
        nodes = 1  # torchrun's default
    if asked is not None and nodes and each:
        yield from parallel_sizes(asked, nodes * each, around.at(launch.line))


def parallel_sizes(asked: megatron.MegatronArguments, world: int, where: str) -> Iterator[Finding]:
    """Report Megatron sizes that do not fit. `where`: their place, or "" for the arguments."""
    hit = megatron.misfit(asked, world)
    if hit is not None:
        yield issue("L54", where or hit.where, hit.text, value=hit.value, remedy=hit.remedy)
