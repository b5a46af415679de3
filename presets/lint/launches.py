"""Rules for the command lines of torchrun, accelerate and DeepSpeed, and for shell texts."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ..finding import Finding, nearest
from ..launchers import megatron
from ..launchers.torchrun import SHORT, SWITCHES, VALUES
from ..text_formats import whole
from . import lint_rules, shell
from .lint_rules import DEFAULT_PORT, HERE, issue, once
from .shell import Command, LauncherCall, ShellText, Surroundings, Word

BROUGHT = ("MLFLOW", "NCCL", "PYTHON", "MV2", "UCX")
"""Prefixes of variables that DeepSpeed exports to other nodes."""
SHELLS_OWN = frozenset(
    {"PATH", "HOME", "PS1", "LD_LIBRARY_PATH", "DS_ENV_FILE", "PDSH_RCMD_TYPE", "PDSH_SSH_ARGS_APPEND"}
)
MOST_BESIDE = 100
"""Most background commands to check."""
CONFIGS = ("config_file", "deepspeed", "deepspeed_config", "deepspeed_config_file", "hostfile")
CONFIG_SUFFIXES = (".yaml", ".yml", ".json")


def check_text(text: str, around: Surroundings, first_line: int = 1) -> list[Finding]:
    """Check a shell text with all rules. Never raises."""
    if len(text) > shell.MOST_TEXT:
        what = f"is too large to be read (more than {shell.MOST_TEXT >> 10} KiB): nothing in it was checked"
        return [issue("L41", around.at(first_line), f"The text {what}.", severity="warning", remedy="")]
    script = shell.read_script(text, first_line, around.env)
    exported = {var.name: var.value for var in script.settings if var.exported}
    around = replace(around, env={**around.env, **exported})
    started = itertools.islice(_started(script, around), lint_rules.MOST)
    return once([*_settings(script, around), *_order(script, around), *started])


def _settings(script: ShellText, around: Surroundings) -> Iterator[Finding]:
    named = dict(itertools.islice(((var.name, var) for var in script.settings), lint_rules.MOST))
    env = {name: var.value for name, var in named.items()}
    yield from lint_rules.check_all(env, lambda name: around.at(named[name].line), around.nnodes)
    for var in script.settings:
        yield from lint_rules.in_plain_text(var.name, var.value, around.at(var.line))
        if var.name == "MASTER_PORT" and var.value == DEFAULT_PORT and not around.own_nodes:
            text = f"Port {var.value} is everybody's default: a second job on the node does not start."
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


def _started(script: ShellText, around: Surroundings) -> Iterator[Finding]:
    for launch in script.launches:
        if launch.program == "torchrun":
            yield from check_torchrun(launch, around)
        else:
            flags, accelerate = _options(launch.words), launch.program == "accelerate"
            yield from (
                _accelerate(flags, around) if accelerate else _deepspeed(launch, flags, script, around)
            )
    for launch in script.launches:
        yield from _configs(launch, around)
        yield from _megatron(launch, around)


def _options(words: Sequence[Word]) -> dict[str, Word]:
    """Return the options by name with `_`, and their values. Options of the script are included."""
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


def _accelerate(flags: Mapping[str, Word], around: Surroundings) -> Iterator[Finding]:
    machines, total = _number(flags, "num_machines"), _number(flags, "num_processes")
    if machines is not None and around.nnodes is not None and machines != around.nnodes:
        text = f"accelerate gets {machines} machines, but there are {around.nnodes}."
        yield issue("L35", around.at(flags["num_machines"].line), text, value=f"--num_machines {machines}")
    nodes = machines if "num_machines" in flags else around.nnodes
    if total is not None and nodes:
        where = around.at(flags["num_processes"].line)
        if nodes > 1:
            yield from total_of_machines(total, nodes, around.gpus, where)
        else:
            yield from ranks_of_node(total, around, where, "--num_processes")
    if machines is not None and machines > 1:
        yield from _same_machine(flags, around)


def _same_machine(flags: Mapping[str, Word], around: Surroundings) -> Iterator[Finding]:
    """Report options that make each of several machines the first one."""
    rank, address = flags.get("machine_rank"), flags.get("main_process_ip")
    if rank is not None and rank.text.isdecimal() and around.every_node:
        text = f"Every node runs this line, so each takes itself for machine {rank.text}."
        yield issue("L38", around.at(rank.line), text, value=f"--machine_rank {rank.text}")
    if address is not None and HERE.fullmatch(address.text):
        text = f"{address.text} is another place on each node."
        yield issue("L38", around.at(address.line), text, value=f"--main_process_ip {address.text}")


def total_of_machines(total: int, machines: int, gpus: int | None, where: str) -> Iterator[Finding]:
    """Check accelerate's num_processes, the number of ranks on all machines together."""
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
        yield from ranks_of_node(count, around, around.at(flags["num_gpus"].line), "--num_gpus")
    brought = any(name in script.text or name in around.env for name in (".deepspeed_env", "DS_ENV_FILE"))
    lines = {} if brought or not _uses_pdsh(flags) else _lost_variables(launch, script, around)
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
    exported = (var for var in script.settings if var.exported and var.line <= launch.line)
    lines = {var.name: var.line for var in exported if _is_lost(var.name)}
    own = {var.name for var in script.settings}
    return lines | {name: launch.line for name in around.env if _is_lost(name) and name not in own}


def _is_lost(name: str) -> bool:
    return not name.startswith((*BROUGHT, "SKYPILOT_")) and name not in SHELLS_OWN and name.isupper()


def _configs(launch: LauncherCall, around: Surroundings) -> Iterator[Finding]:
    for word in _config_paths(launch):
        path = word.text
        if around.exists and not path.startswith(("-", "/", "~")) and not around.exists(path):
            text = f"There is no {path}, seen from here."
            yield issue("L8", around.at(word.line), text, value=path, severity="warning")


def _config_paths(launch: LauncherCall) -> Iterator[Word]:
    for name, word in _options(launch.words).items():
        if name in CONFIGS and word.literal and word.text.endswith(CONFIG_SUFFIXES):
            yield word


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
    for hit in megatron.misfits(asked, world):
        yield issue("L54", where or hit.where, hit.text, value=hit.value, remedy=hit.remedy)


SKY_VERBS = (("launch",), ("exec",), ("jobs", "launch"), ("serve", "up"))
"""Verbs of `sky` whose argument is the file of a task."""


NO_SCRIPT = frozenset({"-m", "--module", "--no-python"})
"""Options of launchers that announce no Python script file."""


@dataclass(frozen=True, slots=True)
class NamedFile:
    path: str
    line: int
    is_script: bool
    nnodes: int | None = None
    nproc: int | None = None
    """Nodes and ranks per node, if a torchrun before the script gives literal numbers."""


def named_files(text: str) -> list[NamedFile]:
    """Return the files that the commands of a text read: configurations, tasks and scripts. Never raises."""
    script = shell.read_script(text)
    named: list[NamedFile] = []
    for launch in script.launches:
        named += [NamedFile(word.text, word.line, False) for word in _config_paths(launch)]
        named += _named_script(launch)
    for command in script.commands:
        named += _named_task(command)
    return named


def _named_script(launch: LauncherCall) -> list[NamedFile]:
    if any(word.text.replace("_", "-") in NO_SCRIPT for word in launch.words):
        return []
    word = _first_path(launch.words, (".py",))
    options = read_options(launch.words if launch.program == "torchrun" else ())
    ranks = options.number("nnodes"), options.number("nproc-per-node")
    return [NamedFile(word.text, word.line, True, *ranks)] if word else []


def _named_task(command: Command) -> list[NamedFile]:
    words = [word for word in command.words if not shell.ASSIGNMENT.match(word.text)]
    program, *verbs = [word.text for word in words[:3]] or [""]
    if program != "sky" or not any(tuple(verbs[: len(verb)]) == verb for verb in SKY_VERBS):
        return []
    word = _first_path(words, (".yaml", ".yml"))
    return [NamedFile(word.text, word.line, False)] if word else []


def _first_path(words: Sequence[Word], suffixes: tuple[str, ...]) -> Word | None:
    return next((word for word in words if word.literal and word.text.endswith(suffixes)), None)


@dataclass(slots=True)
class Options:
    """The options of a command line before the script."""

    values: dict[str, Word] = field(default_factory=dict)
    switches: dict[str, Word] = field(default_factory=dict)
    unknown: list[Word] = field(default_factory=list)
    opaque: bool = False
    """True if a variable may hold further options."""
    script: Word | None = None

    def number(self, name: str) -> int | None:
        """Return the whole number of an option, or None."""
        word = self.values.get(name)
        return whole(word.text) if word else None

    def literal(self, name: str) -> str:
        """Return the value of an option, or "" if it is missing or contains variables."""
        word = self.values.get(name)
        return word.text if word and word.literal else ""


def read_options(words: Sequence[Word]) -> Options:
    """Parse the options of `words`, which follow the program's name."""
    made, left = Options(), deque(words)
    while left:
        word = left.popleft()
        text = word.text
        if text == "--":
            made.script = left[0] if left else None
            break
        if not text.startswith("-"):
            if word.literal or text.endswith(".py"):
                made.script = word
                break
            made.opaque = True  # "$OPTIONS", or a script's name: the next word decides
            if not left or not left[0].text.startswith("-"):
                break
            continue
        if len(text) > 1:
            _take(made, word, left)
    return made


SHORT_SWITCHES = {"-m": "module", "-h": "help"}


def _take(made: Options, word: Word, left: deque[Word]) -> None:
    """Read one option, and its value from the remaining words."""
    name, equals, value = word.text.partition("=")
    if name in SHORT_SWITCHES:
        made.switches[SHORT_SWITCHES[name]] = word
        return
    short = SHORT.get(name[:2]) if not name.startswith("--") else None
    full = short or _full_option(name)
    if full in SWITCHES:
        made.switches[full] = word
    elif full in VALUES:
        if equals:
            made.values[full] = Word(value, word.line)
        elif short and len(name) > 2:
            made.values[full] = Word(name[2:], word.line)
        elif left:
            made.values[full] = left.popleft()
    else:
        _take_unknown(made, word, left)


def _take_unknown(made: Options, word: Word, left: deque[Word]) -> None:
    name, equals, _ = word.text.partition("=")
    if "$" in name:
        made.opaque = True
    elif made.opaque:  # an option of a script whose name is in a variable
        left.clear()
    else:
        made.unknown.append(word)
        if left and not left[0].literal:  # its value, or the script: the rest is ambiguous
            made.opaque = True
            left.clear()
        if not equals and len(left) > 1 and not left[0].text.startswith("-") and not _is_script(left[0]):
            left.popleft()  # its value, as far as the parser can know


def _is_script(word: Word) -> bool:
    return word.text.endswith((".py", ".sh"))


_SPELLINGS = {key: option for option in VALUES | SWITCHES for key in (option, option.replace("-", "_"))}


def _full_option(name: str) -> str:
    """Return the option that argparse matches to `name`: itself, or the only one with this prefix, or ""."""
    if not name.startswith("--"):
        return ""
    plain = name[2:].replace("_", "-")
    if plain in VALUES | SWITCHES:
        return plain
    starting = [option for key, option in _SPELLINGS.items() if plain and key.startswith(name[2:])]
    return starting[0] if len(starting) == 1 else ""  # argparse treats two spellings as ambiguous


def unknown_option(name: str, where: str) -> Finding:
    """Report an option that torchrun does not have, with the most similar one."""
    plain = name.lstrip("-").partition("=")[0].replace("_", "-")
    near = nearest(plain, sorted(VALUES | SWITCHES), 0.7)
    text = f"torchrun has no option {name} and ends with an error."
    return issue("L3", where, text, value=name, near=near and f"--{near}")


STATIC_ONLY = ("node-rank", "master-addr", "master-port")
"""Options that the c10d and etcd rendezvous ignore."""


def check_torchrun(launch: LauncherCall, around: Surroundings) -> Iterator[Finding]:
    options = read_options(launch.words)
    options.opaque = options.opaque or launch.completed
    for word in options.unknown if not launch.legacy else ():
        yield unknown_option(word.text.partition("=")[0], around.at(word.line))
    yield from _mixed(options, around)
    yield from _ranks(options, launch, around)
    yield from _nodes(options, launch, around)
    yield from _port(options, around)
    yield from _rendezvous(options, launch, around)


def _mixed(options: Options, around: Surroundings) -> Iterator[Finding]:
    backend = options.literal("rdzv-backend")
    if backend in ("", "static"):
        return
    given = [name for name in STATIC_ONLY if name in options.values]
    if given:
        names = ", ".join(f"--{name}" for name in given)
        text = f"{names} have no effect on the {backend} rendezvous: nodes are numbered as they join."
        yield issue("L4", around.at(options.values[given[0]].line), text, value=f"--{given[0]}")


def _ranks(options: Options, launch: LauncherCall, around: Surroundings) -> Iterator[Finding]:
    """Compare the number of ranks per node with the available GPUs."""
    nproc, ranks = options.values.get("nproc-per-node"), options.number("nproc-per-node")
    if nproc is None:
        if not options.opaque and (around.gpus or 0) > 1 and not launch.legacy:
            text = (
                f"Without --nproc-per-node torchrun starts one rank, and each node has {around.gpus} GPUs."
            )
            remedy = "Add --nproc-per-node gpu."
            yield issue("L35", around.at(launch.line), text, severity="warning", remedy=remedy)
        return
    if nproc.text == "gpu" and (around.gpus == 0 or around.env.get("CUDA_VISIBLE_DEVICES") == ""):
        text = 'There is no GPU: torchrun ends with "Cuda is not available".'
        yield issue("L10", around.at(nproc.line), text, value="--nproc-per-node gpu")
    if ranks is not None:
        yield from ranks_of_node(ranks, around, around.at(nproc.line), "--nproc-per-node")


def _nodes(options: Options, launch: LauncherCall, around: Surroundings) -> Iterator[Finding]:
    """Compare the number of nodes with the available ones."""
    nodes = options.number("nnodes")
    if nodes is not None and around.nnodes is not None and nodes != around.nnodes:
        waits = (
            "waits for the others until it gives up" if nodes > around.nnodes else "leaves the others out"
        )
        text = f"torchrun gets {nodes} nodes, but there are {around.nnodes}: it {waits}."
        yield issue("L35", around.at(options.values["nnodes"].line), text, value=f"--nnodes {nodes}")
    elif "nnodes" not in options.values and not options.opaque and (around.nnodes or 1) > 1:
        text = f"Without --nnodes each of the {around.nnodes} nodes trains separately."
        yield issue("L35", around.at(launch.line), text, remedy=f"Add --nnodes {around.nnodes}.")


def ranks_of_node(ranks: int, around: Surroundings, where: str, option: str) -> Iterator[Finding]:
    """Compare a number of ranks per node with its GPUs."""
    if not around.gpus or ranks == around.gpus:
        return
    if ranks > around.gpus:
        text = f"{ranks} ranks on a node of {around.gpus} GPUs: those above have none (invalid device ordinal)."
        yield issue("L35", where, text, value=f"{option} {ranks}")
    else:
        text = f"{ranks} ranks on a node of {around.gpus} GPUs: the others are idle."
        yield issue("L35", where, text, value=f"{option} {ranks}", severity="warning")


def _port(options: Options, around: Surroundings) -> Iterator[Finding]:
    if around.own_nodes:
        return
    for name in ("master-port", "rdzv-endpoint"):
        text = options.literal(name)
        if text == DEFAULT_PORT or text.endswith(f":{DEFAULT_PORT}"):
            why = f"Port {DEFAULT_PORT} is everybody's default: a second job on the node does not start."
            yield issue("L22", around.at(options.values[name].line), why, value=f"--{name} {text}")
            return


def _rendezvous(options: Options, launch: LauncherCall, around: Surroundings) -> Iterator[Finding]:
    """Check that several nodes have a common rendezvous address."""
    nodes = options.values.get("nnodes")
    if nodes is None or options.opaque or any(name.startswith("PET_") for name in around.env):
        return
    most = whole(nodes.text.rpartition(":")[2]) if nodes.literal else around.nnodes
    if (most or 1) < 2:
        return
    for line, text in _lost(options, around):
        yield issue("L38", around.at(line or launch.line), text)


def _is_head(options: Options, static: bool, around: Surroundings) -> bool:
    """Return True if the line runs only on the first node, which may use localhost."""
    return static and options.literal("node-rank") == "0" and not around.every_node


def _is_static(options: Options) -> bool:
    backend = options.values.get("rdzv-backend")
    return backend is None or (backend.literal and backend.text in ("", "static"))


def _lost(options: Options, around: Surroundings) -> Iterator[tuple[int, str]]:
    """Yield the reasons why the nodes would not find each other, as line (0: the command's) and sentence."""
    if "standalone" in options.switches:
        yield options.switches["standalone"].line, "--standalone makes each node meet itself."
        return
    static = _is_static(options)
    name = "master-addr" if static and "rdzv-endpoint" not in options.values else "rdzv-endpoint"
    address = options.values.get(name)
    if address is None:
        yield 0, f"Without --{name} each node searches the others on itself."
    elif HERE.fullmatch(address.text) and not _is_head(options, static, around):
        yield address.line, f"{address.text} is another place on each node."
    if static:
        yield from _same_node(options.values.get("node-rank"), around)


def _same_node(rank: Word | None, around: Surroundings) -> Iterator[tuple[int, str]]:
    if rank is None:
        yield 0, "Without --node-rank each node takes itself for node 0."
    elif rank.text.isdecimal() and around.every_node:
        yield rank.line, f"Every node runs this line, so each takes itself for node {rank.text}."
