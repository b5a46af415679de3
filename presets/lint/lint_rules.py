"""The lint rules by ID, and checks for keys, values and variables that several kinds of files share.

The IDs are stable: append new rules. L1 to L14 are mistakes in widely copied recipes. docs/lint.md shows this table.
"""

from __future__ import annotations

import difflib
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from .. import nccl, secrets
from ..finding import Finding, Severity, nearest, sentence
from ..text_formats import MarkupNode, place, whole


@dataclass(frozen=True, slots=True)
class LintRule:
    id: str
    severities: tuple[Severity, ...]
    """The worst first. The others apply if less is known or less is lost."""
    what: str
    """What the rule finds, in a few words."""
    repair: str
    """The general remedy, one sentence."""


Severities = tuple[Severity, ...]
E: Severities = ("error",)
W: Severities = ("warning",)
N: Severities = ("note",)
EW: Severities = ("error", "warning")
EWN: Severities = ("error", "warning", "note")
EN: Severities = ("error", "note")
WN: Severities = ("warning", "note")

# fmt: off
_ALL: tuple[tuple[str, Severities, str, str], ...] = (
    ("L1", E, "`NCCL_TIMEOUT`, which nothing reads",
     "Give init_process_group(timeout=timedelta(minutes=…)); TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC is the watchdog's own."),
    ("L2", EW, "accelerate's `num_processes` taken for the number of one machine",
     "Write the total of all machines: machines × GPUs of each."),
    ("L3", E, "an option that torchrun does not have", "Write the right option."),
    ("L4", W, "options of the static rendezvous with another rendezvous, which ignores them",
     "Leave --node-rank, --master-addr and --master-port out, or leave --rdzv-backend out and keep all three."),
    ("L5", EW, "a command after a launcher that does not return before the training ends",
     "Write it before the launcher."),
    ("L6", E, "variables that the deepspeed launcher does not bring to other nodes",
     "Write them to ~/.deepspeed_env (one NAME=VALUE per line), or start with torchrun on each node."),
    ("L7", E, "a `network_tier` that SkyPilot does not have", "Write best or standard."),
    ("L8", EW, "a configuration file that does not exist", "Name one that exists, relative to where the command runs."),
    ("L9", N, "an old or loose form of an NCCL value: a prefix of interface names, a number of a level",
     "Write =NAME for exactly that interface, ^NAME for all but it; LOC, PIX, PXB, PHB or SYS for a level."),
    ("L10", E, "one rank per GPU, without any GPU", "Write a number, or ask for accelerators."),
    ("L11", W, "hybrid sharding on one node", "Take FULL_SHARD, or as many replicas as there are nodes."),
    ("L12", N, "a managed job, to whose nodes there is no ssh",
     "Launch a cluster to see and restart ranks and GPUs; a managed job shows only its log."),
    ("L13", W, "ports that SkyPilot opens to everybody", "Leave ports out, and forward one with ssh -L."),
    ("L14", W, "`fully_shard` from a private module of torch", "Write: from torch.distributed.fsdp import fully_shard."),
    ("L15", EWN, "a variable that neither NCCL nor torch reads (any more); a typing error is an error",
     "Write the right name, or leave it out."),
    ("L16", E, "a value that NCCL or torch does not take for a variable", "Give a value that it takes."),
    ("L17", E, "batch sizes that contradict each other",
     "Make the total micro × accumulation × data-parallel ranks."),
    ("L18", E, "a mesh that does not fit the ranks or the strategy",
     "Make the product of the dimensions divide the number of ranks."),
    ("L19", E, "a launch that cannot be planned", "Follow the message."),
    ("L20", N, "offload to host memory or disk, several times slower",
     "Check with `distui advise` if it fits without."),
    ("L21", W, "several nodes without `network_tier: best`", "Add network_tier: best under resources."),
    ("L22", N, "the default port 29500, fixed",
     "Leave the port out (torchrun on one node then takes a free one), or take one of your own."),
    ("L23", EW, "a script that sets what the launcher has set for each rank",
     "Use os.environ.setdefault, or leave it out: the launcher sets it."),
    ("L24", E, "a script that starts ranks of its own under a launcher",
     "Let the launcher start the ranks: call the function once, with RANK and LOCAL_RANK from the environment."),
    ("L25", W, "a script with a strategy of its own, other than the preset's",
     "Take the preset of the script's own strategy, or call parallelize() instead."),
    ("L26", W, "a script whose ranks never communicate", "Call parallelize(), or wrap the model."),
    ("L27", N, "a process group that is never destroyed", "End with torch.distributed.destroy_process_group()."),
    ("L28", W, "sharding with one rank, which saves nothing", "Take more ranks, or the preset single."),
    ("L29", W, "an accelerate configuration for several machines without the address of the first one",
     "Add main_process_ip, main_process_port and machine_rank (0 to machines - 1), or give them to accelerate launch."),
    ("L30", E, "a value that the program does not take", "Write one that it takes."),
    ("L31", EW, "a key that the program does not have", "Write the right key, or leave it out."),
    ("L32", E, "a DeepSpeed offload that its stage, or a missing path, makes impossible",
     "Parameters rest elsewhere from stage 3 on, optimizer states from stage 1 on; nvme needs nvme_path."),
    ("L33", E, "bf16 and fp16 both on", "Keep one of the two, bf16 on A100 and newer."),
    ("L34", EN, 'DeepSpeed\'s "auto" outside of transformers and accelerate, which fill it in',
     "Write the numbers, or hand the file to the Trainer or to accelerate."),
    ("L35", EW, "numbers of nodes, GPUs or ranks that do not match", "Make them the same."),
    ("L36", W, "a secret in plain text", "Keep it out of the file: pass it from your environment, or as a secret."),
    ("L37", N, "spot nodes, and no sign of a checkpoint",
     "Save a checkpoint every few minutes, and load the newest at the start."),
    ("L38", E, "nodes that cannot find each other",
     "Give every node the same address of the first one, and each its own --node-rank (or c10d, which needs none)."),
    ("L39", W, "tensor parallelism over nodes", "Keep tp at most the ranks of a node."),
    ("L40", W, "a setting for debugging that makes training slow", "Remove it once the problem is found."),
    ("L41", EW, "a file that cannot be read", "Repair the line."),
    ("L42", W, "NO_SHARD, which saves no memory", "Take DDP, or FULL_SHARD."),
    ("L43", W, "a file of an unknown kind",
     "Name a shell script, SkyPilot task, accelerate or DeepSpeed file, preset, or Python script."),
    ("L44", E, "sizes of a model that the mesh does not divide",
     "Make heads, experts, positions and samples multiples of what divides them, or change the mesh."),
    ("L45", W, "a DeepSpeed script without an optimizer, under a configuration without one",
     "Give deepspeed.initialize(optimizer=…), or your own file, which is merged: --deepspeed_config FILE."),
    ("L46", W, "a script by a path of this machine, for nodes that SkyPilot brings",
     "Give its path from a directory that is copied (--workdir), or one that the nodes have."),
    ("L47", E, "a torch that is older than 2.7 in `setup:`, which distui needs on the nodes",
     "Install torch 2.7 or newer, or launch with `sky launch`."),
    ("L48", EW, "a script that takes a GPU, for ranks that have none",
     "Launch it where there are GPUs, or let the script take the CPU where torch.cuda.is_available() is false."),
    ("L49", W, "several tasks in one file, which distui does not launch",
     "Launch it with `sky jobs launch FILE`, or each task from a file of its own."),
    ("L50", WN, "the rank of the whole job taken for the number of a GPU",
     'Write torch.cuda.set_device(int(os.environ["LOCAL_RANK"])).'),
    ("L51", N, "FSDP1, which torch has deprecated", "FSDP2 is torch.distributed.fsdp.fully_shard."),
    ("L52", W, "a wrapper of torch's that nothing imports",
     "Import it, as in: from torch.nn.parallel import DistributedDataParallel as DDP."),
    ("L53", N, "accumulated gradients that are exchanged in every pass",
     "Run all passes but the last under model.no_sync() (DDP, FSDP1), or with model.set_requires_gradient_sync(False)."),
    ("L54", E, "parallel sizes among the arguments that the ranks cannot be divided by",
     "Make the product of the sizes divide the number of ranks."),
    ("L55", N, "accelerators that are not NVIDIA's, of which distui shows little",
     "Expect no GPU values, no NCCL and no flight recorder there: ranks, steps, stacks, logs and restarts work."),
)
# fmt: on

RULES: Mapping[str, LintRule] = {row[0]: LintRule(*row) for row in _ALL}
"""Every rule, in order."""


def issue(
    id: str,
    where: str,
    text: str,
    *,
    value: str = "",
    remedy: str | None = None,
    near: str = "",
    severity: Severity | None = None,
) -> Finding:
    """Return a finding of the rule `id`. `remedy` and `severity` override the rule's own.

    `near`: the name that was probably meant, as the remedy, or "".
    """
    rule = RULES[id]
    worst = severity or rule.severities[0]
    if worst not in rule.severities:
        raise ValueError(f"{id} is never {worst}")
    if near:
        remedy = f"Did you mean {near}?"
    elif remedy is None:
        remedy = rule.repair
    return Finding(
        id=id,
        severity=worst,
        where=where,
        value=value,
        text=text,
        remedy=remedy,
    )


def once(findings: Iterable[Finding]) -> list[Finding]:
    """Keep one finding per rule, place and value."""
    return list({(finding.id, finding.where, finding.value): finding for finding in findings}.values())


def choice(
    file: str, node: MarkupNode | None, path: str, allowed: Iterable[str], program: str
) -> Iterator[Finding]:
    """Check that a text is one of the allowed values. Case is ignored."""
    if node is None or node.value is None:
        return
    options = list(allowed)
    where = place(file, node, path)
    if node.value is False and "no" in (option.lower() for option in options):
        word = next(option for option in options if option.lower() == "no")
        text = f"Without quotes YAML reads {word} as false, which is no {path} of {program}."
        yield issue("L30", where, text, value=f"{path}: {word}", remedy=f"Write '{word}', in quotes.")
        return
    value = node.shown
    if value.lower() not in (option.lower() for option in options):
        text, remedy = f"{program} has no {path} {value}.", f"Write one of {', '.join(options)}."
        near = nearest(value, options)
        yield issue("L30", where, text, value=f"{path}: {value}", remedy=remedy, near=near)


def keys(
    file: str, node: MarkupNode, allowed: Iterable[str], program: str, *, refuses: bool
) -> Iterator[Finding]:
    """Report keys that a program does not have.

    If the program ignores unknown keys, only keys that look misspelt are reported: the others may be notes.
    """
    options = list(allowed)
    for key, part in node.mapping.items():
        near = nearest(key, options, 0.8)
        if key in options or not (near or refuses):
            continue
        text = f"{program} has no key {key}, and {'refuses the file' if refuses else 'does not read it'}."
        severity: Severity = "error" if near else "warning"  # a newer release may have it
        yield issue("L31", place(file, part, key), text, value=key, near=near, severity=severity)


HERE = re.compile(r"(localhost|127\.\d+\.\d+\.\d+|\[?::1\]?)(:\d+)?")
"""An address that is local to each node."""
DEFAULT_PORT = "29500"
OLD_NAMES = ("NCCL_BLOCKING_WAIT", "NCCL_ASYNC_ERROR_HANDLING", "NCCL_DESYNC_DEBUG", "NCCL_ENABLE_TIMING")
"""torch still reads them. Since 2.2 their names begin with TORCH_."""
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
"""Values that are not secrets: placeholders, short numbers, and paths of files."""
SOCKETS = ("NCCL_SOCKET_NTHREADS", "NCCL_NSOCKS_PERTHREAD")
MOST_SOCKETS = 64
MOST = 500
"""Most variables per place to check."""


def check_variables(name: str, value: str, where: str, nnodes: int | None = None) -> Iterator[Finding]:
    """Check one variable. A value with a `$` is unknown. `nnodes`: number of nodes, or None if unknown."""
    shown = value if where.endswith(name) else f"{name}={value}"
    if re.fullmatch(r"(TORCH_)?NCCL_TIMEOUT\w*", name):
        text = f"Neither NCCL nor torch reads {name}: collectives keep their own timeout (10 minutes)."
        yield issue("L1", where, text, value=shown)
    elif nccl.covers(name) or _misspelt(name):
        for finding in _nccl(name, value, where):
            yield replace(finding, value=shown)
    if _is_slow(name, value, nnodes):
        yield issue("L40", where, f"{name}={value} {SLOW[name][1]}.", value=shown)
    is_loopback = (name, value.lstrip("=")) == ("NCCL_SOCKET_IFNAME", "lo")
    if is_loopback and (nnodes or 1) > 1:
        text = "NCCL is set to use only the loopback interface, which reaches no other node."
        yield issue(
            "L38", where, text, value=shown, remedy="Name the interface between the nodes, or leave it out."
        )


def _is_slow(name: str, value: str, nnodes: int | None) -> bool:
    if name == "NCCL_IB_DISABLE" and nnodes == 1:
        return False
    return name in SLOW and value.upper() == SLOW[name][0]


def check_all(
    env: Mapping[str, str], where: Callable[[str], str], nnodes: int | None = None
) -> Iterator[Finding]:
    """Check all of `env`, and combinations of two. `where` returns the place of a variable."""
    for name, value in itertools.islice(env.items(), MOST):
        yield from check_variables(name, value, where(name), nnodes)
    counts = [whole(env.get(name, "")) or 0 for name in SOCKETS]
    if counts[0] * counts[1] > MOST_SOCKETS:
        text = f"{' × '.join(SOCKETS)} is {counts[0] * counts[1]}, and NCCL takes {MOST_SOCKETS} at most."
        remedy = "Lower one of the two, as in 4 × 4."
        yield issue("L16", where(SOCKETS[0]), text, value=str(counts[0]), remedy=remedy)


def in_plain_text(name: str, value: str, where: str) -> Iterator[Finding]:
    """Report a secret in plain text."""
    open_value = value.strip("'\"")
    if not secrets.is_secret(name) or "$" in value or PLACEHOLDER.fullmatch(open_value):
        return
    text = f"The value of {name} is here in plain text, readable by everybody who can read the file."
    yield issue(
        "L36", where, text, value=secrets.MASK if where.endswith(name) else f"{name}={secrets.MASK}"
    )


def _nccl(name: str, value: str, where: str) -> Iterator[Finding]:
    if name in OLD_NAMES:
        text = f"{name} is the old name of TORCH_{name}, which newer torch warns about."
        yield issue("L15", where, text, severity="note", remedy=f"Write TORCH_{name}.")
        return
    text = nccl.doubt(name)
    if text:
        severity: Severity = "error" if nccl.slip(name) else "warning"
        remedy = None if name in nccl.catalogue() else "Check its spelling: it is set as written."
        yield issue("L15", where, text, near=nccl.likely(name), severity=severity, remedy=remedy)
        return
    fact = nccl.catalogue().get(name)
    if fact is None:
        return
    literal = "$" not in value and "`" not in value
    problem = nccl.check(name, value) if literal else None
    if problem:
        yield issue("L16", where, sentence(problem[:1].upper() + problem[1:]))
    elif literal:
        yield from _loose(fact, value, where)


def _loose(fact: nccl.NcclVariable, value: str, where: str) -> Iterator[Finding]:
    """Report values that NCCL interprets in an unexpected way."""
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
    """Return True if a name without the right prefix is a misspelt NCCL or torch variable."""
    parts = name.upper().split("_")
    first = parts[parts[0] == "TORCH"] if parts[1:] else ""
    if not 3 <= len(first) <= 5 or _alike(first, "NCCL") < 0.7 or first == "NCCL" == name[:4]:
        return False
    near = nccl.likely(name)
    return bool(near) and _alike(name.upper(), near) >= 0.9


def _alike(name: str, other: str) -> float:
    return difflib.SequenceMatcher(None, name, other).ratio()
