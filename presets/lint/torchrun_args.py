"""Rules about torchrun's options and the environment variables beside them."""

from __future__ import annotations

import difflib
import functools
import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from .. import nccl, secrets
from ..finding import Finding, nearest
from .lint_rules import issue
from .markup import whole
from .shell import LauncherCall, Surroundings, Word

# -----------------------------------------------------------------------------------------------------------
# The options of torchrun, read as its own parser would.


VALUES = frozenset(
    {
        *(
            "nnodes",
            "nproc-per-node",
            "rdzv-backend",
            "rdzv-endpoint",
            "rdzv-id",
            "rdzv-conf",
            "max-restarts",
        ),
        *("monitor-interval", "start-method", "event-log-handler", "role", "log-dir", "redirects", "tee"),
        *("local-ranks-filter", "duplicate-stdout-filters", "duplicate-stderr-filters", "node-rank"),
        *("master-addr", "master-port", "local-addr", "logs-specs", "numa-binding", "signals-to-handle"),
        *("shutdown-timeout", "log-line-prefix-template"),
    }
)
"""Options with a value, of torch 2.7 to 2.15; `_` does for `-`."""
SWITCHES = frozenset(
    {"standalone", "module", "no-python", "run-path", "virtual-local-rank", "print-completion", "help"}
)
NEWER = frozenset({"log-line-prefix-template", "print-completion"})
"""Those that torch 2.13 does not have yet."""
SHORT = {"-r": "redirects", "-t": "tee"}


@dataclass(slots=True)
class Options:
    """What a command line says in front of the script."""

    values: dict[str, Word] = field(default_factory=dict)
    switches: dict[str, Word] = field(default_factory=dict)
    unknown: list[Word] = field(default_factory=list)
    opaque: bool = False
    """Whether a variable may hold further options."""
    script: Word | None = None

    def number(self, name: str) -> int | None:
        """The whole number of an option, None where there is none."""
        word = self.values.get(name)
        return whole(word.text) if word else None

    def literal(self, name: str) -> str:
        """The value of an option, "" where there is none or a shell has still to make it."""
        word = self.values.get(name)
        return word.text if word and word.literal else ""


def read(words: Sequence[Word]) -> Options:
    """The options of `words`, which follow the program's name."""
    made, left = Options(), list(words)
    while left:
        word = left.pop(0)
        text = word.text
        if text == "--":
            made.script = left[0] if left else None
            break
        if not text.startswith("-"):
            if word.literal or text.endswith(".py"):
                made.script = word
                break
            made.opaque = True  # "$OPTIONS", or a script's name: what follows is told by the next word
            if not any(after.text.startswith("-") for after in left[:1]):
                break
            continue
        if len(text) > 1:
            _take(made, word, left)
    return made


def _take(made: Options, word: Word, left: list[Word]) -> None:
    """One option, and its value from what is left."""
    name, equals, value = word.text.partition("=")
    if name in ("-m", "-h"):
        made.switches["module" if name == "-m" else "help"] = word
        return
    short = SHORT.get(name[:2]) if not name.startswith("--") else None
    full = short or _full(name)
    if full in SWITCHES:
        made.switches[full] = word
    elif full in VALUES:
        attached = equals or (short and len(name) > 2)
        text = value if equals else name[2:]
        taken = Word(text, word.line) if attached else left.pop(0) if left else None
        if taken is not None:
            made.values[full] = taken
    elif "$" in name:
        made.opaque = True
    elif made.opaque:  # of a script whose name is in a variable
        left.clear()
    else:
        made.unknown.append(word)
        if left and not left[0].literal:  # its value, or the script: what follows is not told apart
            made.opaque = True
            left.clear()
        if not equals and left[1:] and not left[0].text.startswith("-") and not _script(left[0]):
            left.pop(0)  # its value, as far as one can tell


def _script(word: Word) -> bool:
    return word.text.endswith((".py", ".sh"))


def _full(name: str) -> str:
    """The option that argparse takes `name` for: itself, or the only one that begins so; "" for none."""
    if not name.startswith("--"):
        return ""
    plain = name[2:].replace("_", "-")
    if plain in VALUES | SWITCHES:
        return plain
    spellings = {key: option for option in VALUES | SWITCHES for key in (option, option.replace("-", "_"))}
    starting = [option for key, option in spellings.items() if plain and key.startswith(name[2:])]
    return starting[0] if len(starting) == 1 else ""  # argparse takes two spellings for an ambiguity


def nearest_option(name: str) -> str:
    """The option that is meant by an unknown one, with `--`; "" where none is near."""
    plain = name.lstrip("-").partition("=")[0].replace("_", "-")
    near = nearest(plain, sorted(VALUES | SWITCHES), 0.7)
    return f"--{near}" if near else ""


# -----------------------------------------------------------------------------------------------------------
# Environment variables: names that nobody reads, values that nobody takes, and what slows training down.


FOREIGN = (
    *("NCCL_FASTRAK_", "NCCL_GPUDIRECTTCPX_", "NCCL_SHARP_", "NCCL_UCX_", "NCCL_PLUGIN_", "NCCL_SHIMNET_"),
    *("NCCL_TUNER_CONFIG", "NCCL_HOME", "NCCL_ROOT", "NCCL_LIB", "NCCL_INCLUDE", "NCCL_VERSION"),
)
"""Plugins' own variables, and those of builds and images."""
OLD_NAMES = ("NCCL_BLOCKING_WAIT", "NCCL_ASYNC_ERROR_HANDLING", "NCCL_DESYNC_DEBUG", "NCCL_ENABLE_TIMING")
"""torch still reads them, under TORCH_ in front since 2.2."""
SLOW: Mapping[str, tuple[str, str]] = {
    "CUDA_LAUNCH_BLOCKING": ("1", "makes the CPU wait for every kernel"),
    "NCCL_P2P_DISABLE": ("1", "keeps GPUs of a node from NVLink and PCIe peer access"),
    "NCCL_SHM_DISABLE": ("1", "sends what could go through shared memory over the network"),
    "NCCL_IB_DISABLE": ("1", "sends traffic between nodes over TCP instead of InfiniBand or RoCE"),
    "TORCH_DISTRIBUTED_DEBUG": ("DETAIL", "adds a collective that checks each collective"),
}
PLACEHOLDER = re.compile(
    r"|<.*>|\*+|x{3,}|\.{2,}|…|your.*|change.?me|replace.?me|todo|none|null|dummy|true|false|\d{1,7}|[/~.].*",
    re.I,
)
"""What stands where a secret is still to be written, and what is none: a short number, the path of a file."""
SOCKETS = ("NCCL_SOCKET_NTHREADS", "NCCL_NSOCKS_PERTHREAD")
MOST_SOCKETS = 64
MOST = 500
"""Variables of one place that are looked at."""


def check_variables(name: str, value: str, where: str, nnodes: int | None = None) -> Iterator[Finding]:
    """What is wrong with one variable. A value with a `$` in it is not known; `nnodes` None: nor are the nodes."""
    literal = "$" not in value and "`" not in value
    shown = value if where.endswith(name) else f"{name}={value}"
    if re.fullmatch(r"(TORCH_)?NCCL_TIMEOUT\w*", name):
        text = f"Neither NCCL nor torch reads {name}: collectives keep their own timeout (10 minutes)."
        yield issue("L1", where, text, value=shown)
    elif nccl.covers(name) or _misspelt(name):
        for finding in _nccl(name, value, where, literal):
            yield replace(finding, value=shown)
    bad, what = SLOW.get(name, ("", ""))
    if bad and value.upper() == bad and not (name == "NCCL_IB_DISABLE" and nnodes == 1):
        yield issue("L40", where, f"{name}={value} {what}.", value=shown)
    if name == "NCCL_SOCKET_IFNAME" and value.lstrip("=") == "lo" and (nnodes or 1) > 1:
        text = "NCCL is told to use the loopback interface alone, which reaches no other node."
        yield issue(
            "L38", where, text, value=shown, remedy="Name the interface between the nodes, or leave it out."
        )


def check_all(
    env: Mapping[str, str], where: Callable[[str], str], nnodes: int | None = None
) -> Iterator[Finding]:
    """All of `env`, and what two of them are together; `where` says where a variable stands."""
    for name, value in itertools.islice(env.items(), MOST):
        yield from check_variables(name, value, where(name), nnodes)
    counts = [whole(env.get(name, "")) or 0 for name in SOCKETS]
    if counts[0] * counts[1] > MOST_SOCKETS:
        text = f"{' × '.join(SOCKETS)} is {counts[0] * counts[1]}, and NCCL takes {MOST_SOCKETS} at most."
        remedy = "Lower one of the two, as in 4 × 4."
        yield issue("L16", where(SOCKETS[0]), text, value=str(counts[0]), remedy=remedy)


def in_plain_text(name: str, value: str, where: str) -> Iterator[Finding]:
    """A secret whose value stands in a file."""
    open_value = value.strip("'\"")
    if not secrets.is_secret(name) or "$" in value or PLACEHOLDER.fullmatch(open_value):
        return
    text = f"The value of {name} stands here in plain text, for everybody who reads the file."
    yield issue(
        "L36", where, text, value=secrets.MASK if where.endswith(name) else f"{name}={secrets.MASK}"
    )


def _nccl(name: str, value: str, where: str, literal: bool) -> Iterator[Finding]:
    if name in OLD_NAMES:
        text = f"{name} is the old name of TORCH_{name}, which newer torch warns about."
        yield issue("L15", where, text, severity="note", remedy=f"Write TORCH_{name}.")
        return
    fact = nccl.catalogue().get(name)
    if fact is None:
        if not name.startswith(FOREIGN):
            near = _nearest(name)
            remedy = f"Did you mean {near}?" if near else None
            text = f"Neither NCCL nor torch is known to read {name}: it does nothing."
            yield issue("L15", where, text, remedy=remedy)
        return
    if fact.until:
        yield issue("L15", where, f"{name} is no longer read: NCCL {fact.until} was the last that did.")
        return
    problem = nccl.check(name, value) if literal else None
    if problem:
        yield issue("L16", where, problem[:1].upper() + problem[1:])
    elif literal:
        yield from _loose(fact, value, where)


def _loose(fact: nccl.NcclVariable, value: str, where: str) -> Iterator[Finding]:
    """Forms that are taken, and mean something other than they look like."""
    if fact.kind == "level" and value.isdecimal():
        text = f"{fact.name}={value} is the number that older NCCL used for a level."
        remedy = f"Write one of {', '.join(fact.values)}."
        yield issue("L9", where, text, remedy=remedy)
    if fact.name == "NCCL_SOCKET_IFNAME" and not value.startswith(("=", "^")) and value[-1:].isdigit():
        first = value.split(",")[0]
        text = f"{first} is the start of a name, which {first}0 and {first}1 have too."
        remedy = f"Write ={value} for exactly {'that' if first == value else 'those'}; ^ in front excludes."
        yield issue("L9", where, text, remedy=remedy)


def _misspelt(name: str) -> bool:
    """Whether a name outside of the families is one of theirs but for a letter or two."""
    parts = name.upper().split("_")
    first = parts[parts[0] == "TORCH"] if parts[1:] else ""
    if not 3 <= len(first) <= 5 or _alike(first, "NCCL") < 0.7 or first == "NCCL" == name[:4]:
        return False
    near = _nearest(name)
    return bool(near) and _alike(name.upper(), near) >= 0.9


def _alike(name: str, other: str) -> float:
    return difflib.SequenceMatcher(None, name, other).ratio()


@functools.lru_cache(maxsize=1000)
def _nearest(name: str) -> str:
    return nearest(name.upper()[:60], nccl.catalogue(), 0.75)


# -----------------------------------------------------------------------------------------------------------
# Rules about a torchrun command line.


STATIC_ONLY = ("node-rank", "master-addr", "master-port")
"""What the c10d and etcd rendezvous do not look at."""
HERE = re.compile(r"(localhost|127\.\d+\.\d+\.\d+|\[?::1\]?)(:\d+)?")
DEFAULT_PORT = "29500"


def check(launch: LauncherCall, around: Surroundings) -> Iterator[Finding]:
    """Everything about one torchrun."""
    options = read(launch.words)
    options.opaque = options.opaque or launch.completed
    if not launch.legacy:
        yield from _unknown(options, around)
    yield from _mixed(options, around)
    yield from _counts(options, launch, around)
    yield from _port(options, around)
    yield from _rendezvous(options, launch, around)


def _unknown(options: Options, around: Surroundings) -> Iterator[Finding]:
    for word in options.unknown:
        near = nearest_option(word.text)
        name = word.text.partition("=")[0]
        remedy = f"Did you mean {near}?" if near else None
        text = f"torchrun has no option {name} and ends with an error."
        yield issue("L3", around.at(word.line), text, value=name, remedy=remedy)


def _mixed(options: Options, around: Surroundings) -> Iterator[Finding]:
    backend = options.literal("rdzv-backend")
    if backend in ("", "static"):
        return
    given = [name for name in STATIC_ONLY if name in options.values]
    if given:
        names = ", ".join(f"--{name}" for name in given)
        text = f"{names} say nothing to the {backend} rendezvous: nodes are numbered as they come."
        yield issue("L4", around.at(options.values[given[0]].line), text, value=f"--{given[0]}")


def _counts(options: Options, launch: LauncherCall, around: Surroundings) -> Iterator[Finding]:
    """Nodes and ranks against what there is."""
    nproc, nodes = options.values.get("nproc-per-node"), options.number("nnodes")
    if nproc and nproc.text == "gpu" and (around.gpus == 0 or around.env.get("CUDA_VISIBLE_DEVICES") == ""):
        text = 'There is no GPU: torchrun ends with "Cuda is not available".'
        yield issue("L10", around.at(nproc.line), text, value="--nproc-per-node gpu")
    ranks = options.number("nproc-per-node")
    if nproc and ranks is not None:
        yield from ranks_of_node(ranks, around, around.at(nproc.line), "--nproc-per-node")
    elif not nproc and not options.opaque and (around.gpus or 0) > 1 and not launch.legacy:
        text = f"Without --nproc-per-node torchrun starts one rank, and each node has {around.gpus} GPUs."
        remedy = "Add --nproc-per-node gpu."
        yield issue("L35", around.at(launch.line), text, severity="warning", remedy=remedy)
    if nodes is not None and around.nnodes is not None and nodes != around.nnodes:
        waits = (
            "waits for the others until it gives up" if nodes > around.nnodes else "leaves the others out"
        )
        text = f"torchrun is told {nodes} nodes and there are {around.nnodes}: it {waits}."
        yield issue("L35", around.at(options.values["nnodes"].line), text, value=f"--nnodes {nodes}")
    elif "nnodes" not in options.values and not options.opaque and (around.nnodes or 1) > 1:
        text = f"Without --nnodes each of the {around.nnodes} nodes trains alone."
        yield issue("L35", around.at(launch.line), text, remedy=f"Add --nnodes {around.nnodes}.")


def ranks_of_node(ranks: int, around: Surroundings, where: str, option: str) -> Iterator[Finding]:
    """So many ranks on nodes of so many GPUs."""
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
    """Whether several nodes have one place to meet."""
    nodes = options.values.get("nnodes")
    if nodes is None or options.opaque or any(name.startswith("PET_") for name in around.env):
        return
    most = whole(nodes.text.rpartition(":")[2]) if nodes.literal else around.nnodes
    if (most or 1) < 2:
        return
    for line, text in _lost(options, around):
        yield issue("L38", around.at(line or launch.line), text)


def _is_head(options: Options, static: bool, around: Surroundings) -> bool:
    """Whether the line is for the first node alone, which may call itself localhost."""
    return static and options.literal("node-rank") == "0" and not around.every_node


def _lost(options: Options, around: Surroundings) -> Iterator[tuple[int, str]]:
    """Why the nodes would not find each other: line (0: the command's) and sentence."""
    if "standalone" in options.switches:
        yield options.switches["standalone"].line, "--standalone makes each node meet itself."
        return
    static = options.literal("rdzv-backend") in ("", "static") and not (
        "rdzv-backend" in options.values and not options.values["rdzv-backend"].literal
    )
    name = "master-addr" if static and "rdzv-endpoint" not in options.values else "rdzv-endpoint"
    address = options.values.get(name)
    if address is None:
        yield 0, f"Without --{name} each node looks for the others on itself."
    elif HERE.fullmatch(address.text) and not _is_head(options, static, around):
        yield address.line, f"{address.text} is another place on each node."
    rank = options.values.get("node-rank")
    if static and rank is None:
        yield 0, "Without --node-rank each node takes itself for node 0."
    elif static and rank is not None and rank.text.isdecimal() and around.every_node:
        yield rank.line, f"Every node runs this line, so each takes itself for node {rank.text}."
