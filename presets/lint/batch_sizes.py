"""Rules for batch sizes and ranks that a launch gives to several programs in different forms (L17, L35)."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..finding import Finding, Severity
from ..launchers.deepspeed import BATCH
from ..text_formats import MarkupNode, Unreadable, decoded, place_of, read_json, whole
from .deepspeed_file import check_product, is_deepspeed
from .launch_sites import Launch
from .lint_rules import issue
from .named_files import config_paths
from .shell import Word

DIVIDING = re.compile(
    r"(tensor|pipeline|context)(_model)?_parallel(_size|_degree|ism_degree)?|(tp|pp|cp)(_size|_degree)"
)
"""Options whose product divides the data-parallel ranks."""
TRAINER = (("per_device_train_batch_size", BATCH[1]), ("gradient_accumulation_steps", BATCH[2]))
"""Options of transformers' Trainer, and the keys of DeepSpeed's file that must agree with them."""


@dataclass(frozen=True, slots=True)
class Form:
    """Options by which a program gets its batch sizes."""

    program: str
    total: str
    micro: str


FORMS = (
    Form("Megatron-LM", "global_batch_size", "micro_batch_size"),
    Form("torchtitan", "training.global_batch_size", "training.local_batch_size"),
    Form("NeMo", "model.global_batch_size", "model.micro_batch_size"),
    Form("NeMo", "data.global_batch_size", "data.micro_batch_size"),
    Form("Megatron-Bridge", "train.global_batch_size", "train.micro_batch_size"),
    Form("Composer", "global_train_batch_size", "device_train_microbatch_size"),
)


def check_batches(launch: Launch) -> Iterator[Finding]:
    """Check the batch sizes of one launch."""
    given = arguments(launch.call.words)
    ranks = world(launch)
    yield from _forms(launch, given, ranks)
    yield from _verl(launch, given)
    yield from _lightning(launch, given)
    yield from _cluster(launch, given)
    yield from _hostfile(launch)
    yield from _mpi_hosts(launch)
    for word in config_paths(launch.call):
        yield from _deepspeed(launch, word, given, ranks)


def arguments(words: Sequence[Word]) -> dict[str, Word]:
    """Return the arguments by name with `_`: --name value, --name=value, name=value."""
    found: dict[str, Word] = {}
    for at, word in enumerate(words):
        name, equals, value = word.text.partition("=")
        if not equals and not name.startswith("--"):
            continue
        following = (
            Word(value, word.line) if equals else next(iter(words[at + 1 : at + 2]), Word("", word.line))
        )
        found[name.lstrip("-+").replace("-", "_")] = following
    return found


def _number(given: Mapping[str, Word], name: str) -> int | None:
    word = given.get(name)
    return whole(word.text) if word else None


def world(launch: Launch) -> int | None:
    """Return the number of ranks of a launch, or None if it is unknown."""
    site, program = launch.site, launch.call.program
    if program == "python":
        return site.copies if site.on_each else None
    ranks, nodes = launch.told_ranks(), launch.told_nodes()
    if program == "accelerate":
        return ranks * (nodes or 1) if ranks else None
    if program == "deepspeed":
        return _of_deepspeed(launch, ranks, nodes)
    each = (site.gpus if ranks == 0 else ranks) or None
    return nodes * each if nodes and each else None


def _of_deepspeed(launch: Launch, gpus: int | None, nodes: int | None) -> int | None:
    flags = launch.flags
    if "include" in flags or "exclude" in flags:
        chosen = (
            re.fullmatch(r"localhost:(\d+(?:,\d+)*)", flags["include"].text) if "include" in flags else None
        )
        return chosen[1].count(",") + 1 if chosen else None
    hosts = flags.get("hostfile") or flags.get("H")
    if hosts is not None and nodes is None:
        return None
    each = gpus or launch.site.gpus
    return each * (nodes or 1) if each else None


def _data_ranks(given: Mapping[str, Word], ranks: int | None) -> int | None:
    """Return the data-parallel ranks, or None if they are unknown."""
    sizes = [
        whole(word.text) for name, word in given.items() if DIVIDING.fullmatch(name.rpartition(".")[2])
    ]
    if ranks is None or None in sizes:
        return None
    product = math.prod(size for size in sizes if size and size > 0)
    return ranks // product if ranks % product == 0 else None


def _forms(launch: Launch, given: Mapping[str, Word], ranks: int | None) -> Iterator[Finding]:
    """Report a total that is no multiple of micro batch × data-parallel ranks."""
    data = _data_ranks(given, ranks)
    for form in FORMS:
        total, micro = _number(given, form.total), _number(given, form.micro)
        if not total or not micro or total < 0:
            continue
        where = launch.around.at(given[form.total].line)
        value = f"{form.total} {total}"
        least = micro * (data or 1)
        if total % least:
            ranks_text = f" × {data} data-parallel ranks = {least}" if data else ""
            text = f"{form.total} {total} is not a multiple of {form.micro} {micro}{ranks_text}."
            yield issue(
                "L17", where, text, value=value, remedy=f"{form.program} needs a multiple of {least}."
            )


def _verl(launch: Launch, given: Mapping[str, Word]) -> Iterator[Finding]:
    """Check the sizes of verl, which asserts them after the models are loaded."""
    total = _number(given, "data.train_batch_size")
    mini = _number(given, "actor_rollout_ref.actor.ppo_mini_batch_size")
    gpus, nodes = _number(given, "trainer.n_gpus_per_node"), _number(given, "trainer.nnodes") or 1
    copies = _number(given, "actor_rollout_ref.rollout.n") or 1
    if not total:
        return
    where, value = launch.around.at(given["data.train_batch_size"].line), f"data.train_batch_size={total}"
    if mini and total < mini:
        text = f"data.train_batch_size {total} is less than ppo_mini_batch_size {mini}: verl refuses it."
        yield issue("L17", where, text, value=value, remedy=f"Write {mini} or more.")
    is_megatron = any("megatron" in f"{name} {word.text}" for name, word in given.items())
    if gpus and not is_megatron and (total * copies) % (gpus * nodes):
        text = (
            f"train_batch_size {total} × rollout.n {copies} is not a multiple of the {gpus * nodes} GPUs."
        )
        yield issue("L17", where, text, value=value, remedy=f"Write a multiple of {gpus * nodes}.")


EACH = ("trainer.n_gpus_per_node", "cluster.gpus_per_node", "n_gpus_per_node", "gpus_per_node")
NODES = ("trainer.nnodes", "cluster.num_nodes")
"""Options of programs that start ranks with Ray: GPUs per node, and nodes."""


def _cluster(launch: Launch, given: Mapping[str, Word]) -> Iterator[Finding]:
    """Compare the GPUs and nodes in a program's options with those of the job."""
    nodes = launch.around.batch.nodes if launch.around.batch else launch.around.nnodes
    for names, there, what in ((EACH, launch.around.gpus, "GPUs on a node"), (NODES, nodes, "nodes")):
        name = next((name for name in names if name in given), "")
        number = _number(given, name) if name else None
        if number and there and number != there and launch.call.program == "python":
            text = f"{name} is {number}, and the job has {there} {what}."
            severity: Severity = "error" if number > there else "warning"
            where = launch.around.at(given[name].line)
            yield issue("L35", where, text, value=f"{name}={number}", severity=severity)
    size = next((_number(given, name) for name in TENSOR if name in given), None)
    total = (launch.around.gpus or 0) * (nodes or 0)
    if size and total and size > total:
        text = f"Tensor parallelism of {size} needs {size} GPUs, and the job has {total}."
        yield issue("L54", launch.where, text, value=str(size), remedy=f"Write {total} or less.")


TENSOR = ("tensor_parallel_size", "tensor_model_parallel_size", "tp_size", "tensor_parallel")


def _mpi_hosts(launch: Launch) -> Iterator[Finding]:
    """Compare -np with the slots of -H, and report hosts that a blank separates."""
    words = [word.text for word in launch.call.before]
    if launch.site.remote != "mpirun" and "horovodrun" not in words:
        return
    at = next((at for at, word in enumerate(words) if word in ("-H", "--host", "--hosts", "-host")), None)
    if at is None or at + 1 >= len(words) or "$" in words[at + 1]:
        return
    following = words[at + 2] if at + 2 < len(words) else ""
    if re.fullmatch(r"[A-Za-z][\w.-]*:\d+,?", following):
        text = f"A blank before {following} ends the list of hosts: {following} is taken for the command."
        yield issue(
            "L35",
            launch.where,
            text,
            value=following,
            remedy="Separate the hosts by commas, without blanks.",
        )
    slots = [whole(part.partition(":")[2] or "1") or 1 for part in words[at + 1].split(",") if part]
    if launch.site.copies and launch.site.copies > sum(slots):
        text = f"-np {launch.site.copies} is more than the {sum(slots)} slots of {words[at + 1]}: mpirun refuses it."
        yield issue("L35", launch.where, text, value=f"-np {launch.site.copies}")


def _included(launch: Launch, hosts: Mapping[str, int], file: str) -> Iterator[Finding]:
    """Report hosts and slots in deepspeed's --include and --exclude that the hostfile does not have."""
    for option in ("include", "exclude"):
        word = launch.flags.get(option)
        for part in (word.text if word and word.literal and hosts else "").split("@"):
            host, _, numbers = part.partition(":")
            asked = [int(number) for number in numbers.split(",") if number.isdecimal()]
            text = ""
            if host and host not in hosts:
                text = f"--{option} names {host}, which {file} does not have."
            elif asked and max(asked) >= hosts[host]:
                slots = f"slots={hosts[host]}, which are 0 to {hosts[host] - 1}"
                text = f"--{option} names slot {max(asked)} of {host}, and {file} gives it {slots}."
            if text:
                remedy = "Write slots that the hostfile has."
                yield issue("L35", launch.where, text, value=f"--{option} {part}", remedy=remedy)
                return


def _hostfile(launch: Launch) -> Iterator[Finding]:
    """Compare deepspeed's options with its hostfile."""
    word = launch.flags.get("hostfile") or launch.flags.get("H") if launch.is_deepspeed else None
    data = launch.around.read(word.text) if word and word.literal and launch.around.read else None
    if word is None or data is None:
        return
    hosts = {
        name.decode(errors="replace"): int(number)
        for name, number in re.findall(rb"^([^#\s]\S*)\s+slots\s*=\s*(\d{1,6})", data, re.MULTILINE)
    }
    slots = list(hosts.values())
    yield from _included(launch, hosts, word.text)
    asked = {
        name: whole(launch.flags[name].text) for name in ("num_nodes", "num_gpus") if name in launch.flags
    }
    nodes, gpus = asked.get("num_nodes"), asked.get("num_gpus")
    if nodes and slots and nodes > len(slots):
        text = f"--num_nodes is {nodes}, and {word.text} has {len(slots)} hosts with slots."
        yield issue("L35", launch.where, text, value=f"--num_nodes {nodes}")
    if gpus and slots and gpus > min(slots):
        text = f"--num_gpus is {gpus}, and {word.text} has a host with {min(slots)} slots."
        yield issue("L35", launch.where, text, value=f"--num_gpus {gpus}")


def _lightning(launch: Launch, given: Mapping[str, Word]) -> Iterator[Finding]:
    """Compare the devices and nodes of Lightning's trainer with the tasks of srun, which it takes for its ranks."""
    if launch.site.step is None or launch.call.program != "python":
        return
    for name, count, what in (
        ("devices", launch.site.per_node, "task(s) on each node"),
        ("num_nodes", launch.site.nodes, "node(s)"),
    ):
        option = next((key for key in (f"trainer.{name}", f"trainer.strategy.{name}") if key in given), "")
        number = _number(given, option) if option else None
        if option and name == "devices" and given[option].text in ("-1", "auto"):
            number = launch.site.gpus
        if number and count and number != count:
            text = f"{option} is {number}, and srun starts {count} {what}: Lightning refuses that."
            yield issue("L35", launch.around.at(given[option].line), text, value=f"{option}={number}")


def _deepspeed(
    launch: Launch, word: Word, given: Mapping[str, Word], ranks: int | None
) -> Iterator[Finding]:
    """Check DeepSpeed's file against the ranks and against the Trainer's options."""
    if not word.text.endswith(".json") or launch.around.read is None:
        return
    data = launch.around.read(word.text)
    try:
        document = read_json(decoded(data)) if data is not None else None
    except Unreadable:
        return
    if document is None or not is_deepspeed(document):
        return
    count = _data_ranks(given, ranks)
    if count:
        yield from check_product(document, word.text, count)
    yield from _trainer(document, word.text, given)


def _trainer(document: MarkupNode, file: str, given: Mapping[str, Word]) -> Iterator[Finding]:
    """Report numbers that differ between the Trainer's options and DeepSpeed's file."""
    for option, key in TRAINER:
        ours, theirs = _number(given, option), document.number(key)
        if ours and theirs and ours != theirs:
            text = f"{key} is {theirs}, and --{option} is {ours}: transformers refuses the difference."
            remedy = f'Write "auto" for {key}, or {ours}.'
            yield issue("L17", place_of(file, document, key), text, value=f"{key}: {theirs}", remedy=remedy)
