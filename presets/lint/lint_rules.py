"""The lint rules by id: severity, what each finds, what to do; and the words of their messages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from ..finding import Finding, Severity, nearest
from .markup import MarkupNode, place

# -----------------------------------------------------------------------------------------------------------
# The rules of lint by id: how bad each is, what it finds, what to do. The ids are stable: new ones are added
# behind.
# L1 to L14 are traps that stand in widely copied recipes; docs/lint.md is this table for a reader.


@dataclass(frozen=True, slots=True)
class LintRule:
    """One kind of mistake."""

    id: str
    severities: tuple[Severity, ...]
    """The worst first; the others where less is known, or less is lost."""
    what: str
    """What it finds, a few words."""
    repair: str
    """What to do in general, a sentence."""


Severities = tuple[Severity, ...]
E: Severities = ("error",)
W: Severities = ("warning",)
N: Severities = ("note",)
EW: Severities = ("error", "warning")
EN: Severities = ("error", "note")
WN: Severities = ("warning", "note")

# fmt: off
_ALL: tuple[tuple[str, Severities, str, str], ...] = (
    ("L1", E, "`NCCL_TIMEOUT`, which nothing reads",
     "Give init_process_group(timeout=timedelta(minutes=…)); TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC is the watchdog's own."),
    ("L2", EW, "accelerate's `num_processes` taken for the number of one machine",
     "Write the total of all machines: machines × GPUs of each."),
    ("L3", E, "an option that torchrun does not have", "Write the option that is meant."),
    ("L4", W, "options of the static rendezvous beside another rendezvous, which ignores them",
     "Leave --node-rank, --master-addr and --master-port out, or leave --rdzv-backend out and keep all three."),
    ("L5", EW, "a command behind a launcher that does not return before the training ends",
     "Write it in front of the launcher."),
    ("L6", E, "variables that the deepspeed launcher does not bring to other nodes",
     "Write them to ~/.deepspeed_env (NAME=VALUE a line), or start with torchrun on each node."),
    ("L7", E, "a `network_tier` that SkyPilot does not have", "Write best or standard."),
    ("L8", EW, "a configuration file that is not there", "Name one that is there, seen from where the command runs."),
    ("L9", N, "an old or loose form of an NCCL value: a prefix of interface names, a number of a level",
     "Write =NAME for exactly that interface, ^NAME for all but it; LOC, PIX, PXB, PHB or SYS for a level."),
    ("L10", E, "one rank a GPU, where there is no GPU", "Write a number, or ask for accelerators."),
    ("L11", W, "hybrid sharding on one node", "Take FULL_SHARD, or as many replicas as there are nodes."),
    ("L12", N, "a managed job, to whose nodes there is no ssh",
     "Launch a cluster where ranks and GPUs are to be seen and restarted; a managed job shows its log alone."),
    ("L13", W, "ports that SkyPilot opens to everybody", "Leave ports out, and forward one with ssh -L."),
    ("L14", W, "`fully_shard` from a private module of torch", "Write: from torch.distributed.fsdp import fully_shard."),
    ("L15", WN, "a variable that neither NCCL nor torch reads (any more)",
     "Take the name that is meant, or leave it out."),
    ("L16", E, "a value that NCCL or torch does not take for a variable", "Give a value that it takes."),
    ("L17", E, "batch sizes that contradict each other",
     "Make the total micro × accumulation × data-parallel ranks."),
    ("L18", E, "a mesh that does not fit the ranks or the strategy",
     "Make the product of the dimensions divide the number of ranks."),
    ("L19", E, "a launch of which no plan can be made", "Do what the sentence says."),
    ("L20", N, "offload to host memory or disk, several times slower",
     "Look with `distui advise` whether it fits without."),
    ("L21", W, "several nodes without `network_tier: best`", "Add network_tier: best under resources."),
    ("L22", N, "the default port 29500, fixed",
     "Leave the port out (torchrun on one node then takes a free one), or take one of your own."),
    ("L23", EW, "a script that sets what the launcher has set for each rank",
     "Use os.environ.setdefault, or leave it out: the launcher sets it."),
    ("L24", E, "a script that starts ranks of its own under a launcher",
     "Let the launcher start the ranks: call the function once, with RANK and LOCAL_RANK from the environment."),
    ("L25", W, "a script with a strategy of its own, other than the preset's",
     "Take the preset that says what the script does, or call parallelize() instead."),
    ("L26", W, "a script whose ranks never speak to each other", "Call parallelize(), or wrap the model."),
    ("L27", N, "a process group that is never destroyed", "End with torch.distributed.destroy_process_group()."),
    ("L28", W, "sharding with one rank, which saves nothing", "Take more ranks, or the preset single."),
    ("L29", W, "an accelerate configuration for several machines that does not say who is first",
     "Add main_process_ip, main_process_port and machine_rank (0 to machines - 1), or give them to accelerate launch."),
    ("L30", E, "a value that the program does not take", "Write one that it takes."),
    ("L31", EW, "a key that the program does not have", "Write the key that is meant, or leave it out."),
    ("L32", E, "a DeepSpeed offload that its stage, or a missing path, makes impossible",
     "Parameters rest elsewhere from stage 3 on, optimizer states from stage 1 on; nvme needs nvme_path."),
    ("L33", E, "bf16 and fp16 both on", "Keep one of the two, bf16 on A100 and newer."),
    ("L34", EN, 'DeepSpeed\'s "auto" outside of transformers and accelerate, which fill it in',
     "Write the numbers, or hand the file to the Trainer or to accelerate."),
    ("L35", EW, "numbers of nodes, GPUs or ranks that do not match", "Make them the same."),
    ("L36", W, "a secret in plain text", "Keep it out of the file: pass it from your environment, or as a secret."),
    ("L37", N, "spot nodes, and nothing that looks like a checkpoint",
     "Save a checkpoint every few minutes, and load the newest at the start."),
    ("L38", E, "nodes that cannot find each other",
     "Give every node the same address of the first one, and each its own --node-rank (or c10d, which needs none)."),
    ("L39", W, "tensor parallelism over nodes", "Keep tp at most the ranks of a node."),
    ("L40", W, "a setting for debugging that makes training slow", "Leave it out when the trouble is found."),
    ("L41", EW, "a file that cannot be read", "Repair the line."),
    ("L42", W, "NO_SHARD, which saves no memory", "Take DDP, or FULL_SHARD."),
    ("L43", W, "a file of no kind that is known here",
     "Name a shell script, SkyPilot task, accelerate or DeepSpeed file, preset, or Python script."),
    ("L44", E, "sizes of a model that the mesh does not divide",
     "Make heads, experts, positions and samples multiples of what divides them, or change the mesh."),
    ("L45", W, "a DeepSpeed script without an optimizer, under a configuration without one",
     "Give deepspeed.initialize(optimizer=…), or write a table [deepspeed.optimizer] in the preset."),
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
    severity: Severity | None = None,
) -> Finding:
    """A finding of the rule `id`; `remedy` and `severity` where the rule's own do not say it best."""
    rule = RULES[id]
    worst = severity or rule.severities[0]
    if worst not in rule.severities:
        raise ValueError(f"{id} is never {worst}")
    return Finding(
        id=id,
        severity=worst,
        where=where,
        value=value,
        text=text,
        remedy=rule.repair if remedy is None else remedy,
    )


def once(findings: Iterable[Finding]) -> list[Finding]:
    """One finding of a rule for each place and value."""
    return list({(finding.id, finding.where, finding.value): finding for finding in findings}.values())


# -----------------------------------------------------------------------------------------------------------
# Keys and values against those that a program knows: what L30 and L31 say of any kind of file.


def choice(
    file: str, node: MarkupNode | None, path: str, allowed: Iterable[str], program: str
) -> Iterator[Finding]:
    """A text that has to be one of some, whatever its case."""
    if node is None or node.value is None:
        return
    options = list(allowed)
    where = place(file, node, path)
    if node.value is False and "no" in (option.lower() for option in options):
        word = next(option for option in options if option.lower() == "no")
        text = f"Without quotes YAML reads {word} as false, which is no {path} of {program}."
        yield issue("L30", where, text, value=f"{path}: {word}", remedy=f"Write '{word}', in quotes.")
        return
    value = str(node.value)
    if value.lower() not in (option.lower() for option in options):
        near = nearest(value, options)
        remedy = f"Did you mean {near}?" if near else f"Write one of {', '.join(options)}."
        text = f"{program} has no {path} {value}."
        yield issue("L30", where, text, value=f"{path}: {value}", remedy=remedy)


def keys(
    file: str, node: MarkupNode, allowed: Iterable[str], program: str, *, refuses: bool
) -> Iterator[Finding]:
    """Keys that a program does not have.

    What it does not refuse it ignores: of those only the ones that look misspelt are named, the others may be notes.
    """
    options = list(allowed)
    for key, part in node.mapping.items():
        near = nearest(key, options, 0.8)
        if key in options or not (near or refuses):
            continue
        text = f"{program} has no key {key}" + (
            ", and refuses the file." if refuses else ", and does not read it."
        )
        severity: Severity = "error" if near else "warning"  # a newer release may have it
        remedy = f"Did you mean {near}?" if near else None
        yield issue("L31", place(file, part, key), text, value=key, remedy=remedy, severity=severity)
