"""Rules about accelerate's and DeepSpeed's launchers, and about a shell text as a whole."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from ..finding import Finding
from . import shell, torchrun_args
from .lint_rules import issue, once
from .markup import whole
from .shell import Command, LauncherCall, Setting, ShellText, Surroundings, Word

BROUGHT = ("MLFLOW", "NCCL", "PYTHON", "MV2", "UCX")
"""With what a variable's name begins that DeepSpeed brings to other nodes."""
SHELLS_OWN = frozenset(
    {"PATH", "HOME", "PS1", "LD_LIBRARY_PATH", "DS_ENV_FILE", "PDSH_RCMD_TYPE", "PDSH_SSH_ARGS_APPEND"}
)
MOST_BESIDE = 100
"""Commands in the background that are looked at."""
CONFIGS = ("config_file", "deepspeed", "deepspeed_config", "deepspeed_config_file", "hostfile")
GONE = ("configs/recipes/phi3/dpo/fsdp_sky_job.yaml", "configs/recipes/phi3/dpo/accelerate.yaml")
"""Of oumi's repository: removed when its configurations stopped being accelerate's."""


def check_text(text: str, around: Surroundings, first_line: int = 1) -> list[Finding]:
    """Everything about a shell text. Never raises."""
    script = shell.read_script(text, first_line, around.env)
    exported = {var.name: var.value for var in script.settings if var.exported}
    around = replace(around, env={**around.env, **exported})
    return once([*_settings(script, around), *_order(script, around), *_started(script, around)])


def _settings(script: ShellText, around: Surroundings) -> Iterator[Finding]:
    """What is set for the programs."""
    named = dict(itertools.islice(((var.name, var) for var in script.settings), torchrun_args.MOST))
    env = {name: var.value for name, var in named.items()}
    yield from torchrun_args.check_all(env, lambda name: around.at(named[name].line), around.nnodes)
    for var in script.settings:
        yield from torchrun_args.in_plain_text(var.name, var.value, around.at(var.line))
        if var.name == "MASTER_PORT" and var.value == torchrun_args.DEFAULT_PORT and not around.own_nodes:
            text = f"Port {var.value} is everybody's default: a second job on the node does not start."
            yield issue("L22", around.at(var.line), text, value=f"{var.name}={var.value}")


def _order(script: ShellText, around: Surroundings) -> Iterator[Finding]:
    """What comes too late."""
    first = [call for call in script.launches if not call.command.background]
    shell = next((call for call in first if call.replaces and not call.command.branch), None)
    never = next((cmd for cmd in script.commands if shell and _behind(cmd, shell)), None)
    if shell and never:
        name = never.words[0].text
        text = f"`exec` in line {shell.line} makes the shell the launcher: {name} never runs."
        yield issue("L5", around.at(never.line), text, value=name)
        return
    beside = (cmd for cmd in script.commands if cmd.background and cmd.words[0].text != "wait")
    for later in itertools.islice(beside, MOST_BESIDE):
        launch = next((call for call in first if _behind(later, call)), None)
        if launch is not None:
            name = later.words[0].text
            text = f"{name} should run beside the training, and starts after {launch.program} (line {launch.line})."
            yield issue("L5", around.at(later.line), text, value=name, severity="warning")


def _behind(later: Command, launch: LauncherCall) -> bool:
    """Whether a command is reached by what comes behind a launcher, in its branch or around it."""
    branch = launch.command.branch
    same = min(len(later.branch), len(branch))
    return later.line > launch.line and later.branch[:same] == branch[:same]


def _started(script: ShellText, around: Surroundings) -> Iterator[Finding]:
    for launch in script.launches:
        if launch.program == "torchrun":
            yield from torchrun_args.check(launch, around)
        else:
            flags = _options(launch.words)
            check = _accelerate if launch.program == "accelerate" else _deepspeed
            yield from check(launch, flags, script, around)
    for launch in script.launches:
        yield from _configs(launch, around)


def _options(words: Sequence[Word]) -> dict[str, Word]:
    """Options by name with `_`, the word behind each; those of the script are among them."""
    flags: dict[str, Word] = {}
    for at, word in enumerate(words):
        if word.text.startswith("-"):
            name, equals, value = word.text.lstrip("-").partition("=")
            following = Word(value, word.line) if equals else next(iter(words[at + 1 : at + 2]), word)
            flags.setdefault(name.replace("-", "_"), following)
    return flags


def _number(flags: Mapping[str, Word], name: str) -> int | None:
    word = flags.get(name)
    return whole(word.text) if word else None


def _accelerate(
    launch: LauncherCall, flags: Mapping[str, Word], script: ShellText, around: Surroundings
) -> Iterator[Finding]:
    machines, total = _number(flags, "num_machines"), _number(flags, "num_processes")
    if machines is not None and around.nnodes is not None and machines != around.nnodes:
        text = f"accelerate is told {machines} machines and there are {around.nnodes}."
        yield issue("L35", around.at(flags["num_machines"].line), text, value=f"--num_machines {machines}")
    nodes = machines or (around.nnodes if "num_machines" not in flags else None)
    if total is not None and nodes is not None:
        where = around.at(flags["num_processes"].line)
        if nodes > 1:
            yield from total_of_machines(total, nodes, around.gpus, where)
        else:
            yield from torchrun_args.ranks_of_node(total, around, where, "--num_processes")
    if (machines or 1) < 2:
        return
    rank, address = flags.get("machine_rank"), flags.get("main_process_ip")
    if rank is not None and rank.text.isdecimal() and around.every_node:
        text = f"Every node runs this line, so each takes itself for machine {rank.text}."
        yield issue("L38", around.at(rank.line), text, value=f"--machine_rank {rank.text}")
    if address is not None and torchrun_args.HERE.fullmatch(address.text):
        text = f"{address.text} is another place on each node."
        yield issue("L38", around.at(address.line), text, value=f"--main_process_ip {address.text}")


def total_of_machines(total: int, machines: int, gpus: int | None, where: str) -> Iterator[Finding]:
    """accelerate's num_processes, which is the number of ranks on all machines together."""
    value = f"num_processes = {total}"
    if total % machines or (gpus and total != machines * gpus):
        each = f"{total} ÷ {machines} machines" + (
            "" if total % machines else f" = {total // machines} each"
        )
        text = (
            f"num_processes is the total of all machines: {each}"
            + (f", of {gpus} GPUs" if gpus else "")
            + "."
        )
        remedy = f"Write {machines} × {gpus} = {machines * gpus}." if gpus else None
        yield issue("L2", where, text, value=value, remedy=remedy)
    elif gpus is None and total <= 8:
        text = f"num_processes is the total of all machines: {total // machines} on each of {machines}."
        remedy = f"If each machine has {total} GPUs, write {machines * total}."
        yield issue("L2", where, text, value=value, remedy=remedy, severity="warning")


def _deepspeed(
    launch: LauncherCall, flags: Mapping[str, Word], script: ShellText, around: Surroundings
) -> Iterator[Finding]:
    count = _number(flags, "num_gpus")
    if count is not None:
        yield from torchrun_args.ranks_of_node(
            count, around, around.at(flags["num_gpus"].line), "--num_gpus"
        )
    several = (_number(flags, "num_nodes") or 1) > 1 or "hostfile" in flags or "H" in flags
    other = flags.get("launcher")
    brought = any(name in script.text or name in around.env for name in (".deepspeed_env", "DS_ENV_FILE"))
    if not several or brought or "no_ssh" in flags or (other is not None and other.text != "pdsh"):
        return
    lost = [
        var for var in script.settings if var.exported and _is_lost(var.name) and var.line <= launch.line
    ]
    lines = {var.name: var.line for var in lost}
    names = [
        *lines,
        *(name for name in around.env if _is_lost(name) and name not in lines and not _set(script, name)),
    ]
    if names:
        shown = ", ".join(names[:6]) + (", …" if names[6:] else "")
        text = f"deepspeed starts its ranks by pdsh and brings {', '.join(BROUGHT)}* alone: {shown} do not arrive."
        yield issue("L6", around.at(lines.get(names[0], launch.line)), text, value=names[0])


def _set(script: ShellText, name: str) -> Setting | None:
    return next((var for var in script.settings if var.name == name), None)


def _is_lost(name: str) -> bool:
    return not name.startswith((*BROUGHT, "SKYPILOT_")) and name not in SHELLS_OWN and name.isupper()


def _configs(launch: LauncherCall, around: Surroundings) -> Iterator[Finding]:
    """Files that a launcher is told to read."""
    for word in launch.words:
        if word.text.endswith(GONE):
            text = f"oumi's repository has no {word.text} any more: its configurations are no longer accelerate's."
            yield issue("L8", around.at(word.line), text, value=word.text)
    for name, word in _options(launch.words).items():
        path = word.text
        if (
            name not in CONFIGS
            or path.startswith(("-", "/", "~"))
            or not word.literal
            or around.exists is None
        ):
            continue
        if (
            path.endswith((".yaml", ".yml", ".json"))
            and not path.endswith(GONE)
            and not around.exists(path)
        ):
            text = f"There is no {path}, seen from here."
            yield issue("L8", around.at(word.line), text, value=path, severity="warning")
