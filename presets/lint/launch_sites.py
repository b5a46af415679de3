"""Determine where a launch runs: on which nodes, how often, with which GPUs, and which shell expands its variables."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ..finding import PresetError
from ..text_formats import MarkupNode, Unreadable, decoded, read_yaml, whole
from .launcher_calls import ASSIGNMENT, LauncherCall, Setting, ShellText, flags_of
from .shell import Word, names_in
from .slurm import Slurm, launch_words, read_step
from .surroundings import Surroundings
from .torchrun_options import Options, read_options

PER_TASK = re.compile(
    r"SLURM_(PROCID|NODEID|LOCALID)|SLURMD_NODENAME|SLURM_TOPOLOGY_ADDR"
    r"|(OMPI_COMM_WORLD|MV2_COMM_WORLD|MPI)_(LOCAL)?RANK|PMIX?_(LOCAL_)?RANK"
)
"""Variables that differ between the tasks of a step."""
PYTHON_NODES = ("num_nodes", "nnodes", "trainer.num_nodes", "num_machines", "trainer.nnodes")
"""Options of training scripts for the number of nodes."""
MOST_DEEP = 4
"""Most variables that hold one another to follow."""


@dataclass(frozen=True, slots=True)
class Site:
    """The place of a launch. None means unknown."""

    nodes: int | None = None
    copies: int | None = None
    """How many times the command is started at once, on all nodes together."""
    gpus: int | None = None
    """GPUs that one copy sees."""
    on_each: bool = False
    """True if every node, or every task, runs the command."""
    step: Slurm | None = None
    """Options of srun on top of those of the batch script."""
    own: Slurm | None = None
    """Options of srun only."""
    in_image: bool = False
    remote: str = ""
    """The program that runs the command on another machine (ssh, mpirun), or ""."""

    @property
    def per_node(self) -> int | None:
        """Return the number of copies per node."""
        return -(-self.copies // self.nodes) if self.copies and self.nodes else None

    @property
    def is_part(self) -> bool:
        """Return True if the command runs on some nodes of the job only."""
        if self.remote in launch_words()["starters"]["remote"]:
            return True
        own = self.own
        return own is not None and (own.number("nodes") == 1 or own.has("nodelist") or own.has("relative"))


@dataclass(frozen=True, slots=True)
class Launch:
    """A launch with its place and its text."""

    call: LauncherCall
    site: Site
    script: ShellText
    around: Surroundings
    options: Options
    """torchrun's options."""
    flags: Mapping[str, Word]
    """All options by name with `_`, those of the script included."""

    @property
    def where(self) -> str:
        return self.around.at(self.call.line)

    @property
    def is_on_cpu(self) -> bool:
        """Return True if the words of the launch say that it needs no GPU."""
        words = [word.text for word in self.call.words]
        return "--cpu" in words or "gloo" in " ".join(words) or self.around.gpus == 0

    @property
    def is_deepspeed(self) -> bool:
        return self.call.program == "deepspeed"

    def told_nodes(self) -> int | None:
        """Return the number of nodes in the launcher's options, or None if it is unknown."""
        if self.call.program == "torchrun":
            word = self.options.values.get("nnodes")
            if word is None:
                return None if self.options.opaque or self.call.completed or self._has("PET_") else 1
            return whole(word.text.rpartition(":")[2]) if word.literal else self._counted(word)
        if self.call.program == "accelerate":
            word = self.flags.get("num_machines")
            if word is None:
                return whole(self.config_text("num_machines"))
            return whole(word.text) or self._counted(word)
        names = ("num_nodes",) if self.is_deepspeed else PYTHON_NODES
        word = next((self.flags[name] for name in names if name in self.flags), None)
        if word is None:
            return None if self.is_deepspeed else 1
        return whole(word.text) or self._counted(word)

    def told_ranks(self) -> int | None:
        """Return the number of ranks that one copy starts, 0 for one per GPU, or None if it is unknown."""
        if self.call.program == "torchrun":
            word = self.options.values.get("nproc-per-node")
            if word is None:
                return None if self.options.opaque or self._has("PET_") else 1
            return 0 if word.text in ("gpu", "auto") else whole(word.text)
        if self.call.program == "accelerate":
            total, machines = self.flags.get("num_processes"), self.told_nodes()
            if machines is None and not {"num_machines", "config_file"} & self.flags.keys():
                machines = 1
            number = whole(total.text) if total else whole(self.config_text("num_processes"))
            return number // machines if number and machines and number % machines == 0 else None
        word = self.flags.get("num_gpus")
        return whole(word.text) if word else None

    def config_text(self, key: str) -> str:
        """Return a value of accelerate's configuration file, or "" if it is missing."""
        config = self.config()
        node = config.get(key) if config else None
        return node.shown if node else ""

    def config(self) -> MarkupNode | None:
        """Return accelerate's configuration file, or None if it is missing or unreadable."""
        word = self.flags.get("config_file") if self.call.program == "accelerate" else None
        data = self.around.read(word.text) if word and word.literal and self.around.read else None
        if data is None:
            return None
        try:
            return next(iter(read_yaml(decoded(data))), None)
        except (Unreadable, PresetError):
            return None

    def _has(self, prefix: str) -> bool:
        return any(name.startswith(prefix) for name in self.around.env)

    def _counted(self, word: Word) -> int | None:
        """Return the job's nodes if a word is the scheduler's variable for it."""
        if re.fullmatch(r"\$\{?SKYPILOT_NUM_NODES\}?", word.text):
            return self.around.nnodes
        is_count = re.search(r"SLURM_(JOB_NUM_NODES|NNODES)", word.text)
        return self.around.batch.nodes if is_count and self.around.batch else None


def launches(script: ShellText, around: Surroundings) -> list[Launch]:
    """Return everything that a text starts, with its place."""
    return [
        Launch(
            call,
            site_of(call, around),
            script,
            around,
            read_options(call.words if call.program == "torchrun" else ()),
            flags_of(call.words),
        )
        for call in script.started
    ]


def site_of(call: LauncherCall, around: Surroundings) -> Site:
    """Determine the place of a launch."""
    names = [word.text.rpartition("/")[2] for word in call.before]
    starters = launch_words()["starters"]
    in_image = around.in_image or bool(set(names) & set(starters["containers"]))
    if "srun" in names:
        own, _ = read_step(call.before[names.index("srun") + 1 :])
        in_image = in_image or any(name.startswith("container-image") for name in own.options)
        site = _step(own, around)
    elif remote := next((name for name in names if name in starters["remote"]), ""):
        site = Site(remote=remote)
    elif "mpirun" in names or "mpiexec" in names:
        site = _mpi(call.before, around)
    elif around.is_task:
        site = Site(around.nnodes, around.nnodes, around.gpus, on_each=True)
    elif around.batch:
        site = Site(1, 1, around.gpus)
    else:
        site = Site(None, None, around.gpus)
    return replace(site, in_image=in_image, gpus=_visible(call, around, site.gpus))


def _step(own: Slurm, around: Surroundings) -> Site:
    batch = around.batch or Slurm()
    both = batch.under(own)
    is_known = around.batch is not None or own.has("nodes")
    nodes = both.nodes if is_known else None
    copies = both.tasks if is_known and not _is_doubtful(batch, own) else None
    if own.number("ntasks"):
        copies = own.number("ntasks")
        if not own.has("nodes"):
            nodes = 1 if copies == 1 else nodes
    if own.has("nodelist") and not own.has("nodes"):
        nodes = copies = None
    gpus = both.gpus_per_task or (both.gpus if is_known else None)
    return Site(nodes, copies, gpus, on_each=True, step=both, own=own)


def _is_doubtful(batch: Slurm, own: Slurm) -> bool:
    """Return True if srun takes the number of tasks from the batch job, against its own options."""
    inherits = batch.has("ntasks") or batch.has("ntasks-per-node")
    return inherits and not own.has("ntasks") and (own.has("nodes") or own.has("ntasks-per-node"))


def _mpi(words: Sequence[Word], around: Surroundings) -> Site:
    flags = flags_of(words)
    count = next((whole(flags[name].text) for name in ("np", "n", "c") if name in flags), None)
    hosts = next((flags[name].text for name in ("host", "H", "hosts") if name in flags), "")
    nodes = len(hosts.split(",")) if hosts and "$" not in hosts else None
    return Site(nodes, count, around.gpus, on_each=True, remote="mpirun")


def _visible(call: LauncherCall, around: Surroundings, gpus: int | None) -> int | None:
    """Return the GPUs that CUDA_VISIBLE_DEVICES leaves, None if its value is unknown."""
    devices = visible_devices(call, around.env)
    if devices is None:
        return gpus
    return len(devices.split(",")) if re.fullmatch(r"[\d,]+", devices) else None


def visible_devices(call: LauncherCall, env: Mapping[str, str]) -> str | None:
    """Return CUDA_VISIBLE_DEVICES as it is set for a launch, or None if it is not."""
    own = [match for word in call.before if (match := ASSIGNMENT.match(word.text))]
    values = {match[1]: match[2] for match in own}
    return values.get("CUDA_VISIBLE_DEVICES", env.get("CUDA_VISIBLE_DEVICES"))


class Expansion:
    """Follows the variables of one launch through the shells that expand them."""

    def __init__(self, launch: Launch) -> None:
        self._call, self._script, self._around = launch.call, launch.script, launch.around
        self._runs_on_each = launch.around.is_task
        self._is_started_on_each = launch.site.on_each

    def once(self, word: Word) -> Iterator[str]:
        """Yield the names in a word that one shell expands once for all tasks."""
        if not self._is_started_on_each:
            return
        for name, on_each in self._sources(word.text, word.later, 0):
            if not on_each:
                yield name

    def on_each(self, word: Word) -> Iterator[str]:
        """Yield the names in a word that every node expands for itself."""
        for name, on_each in self._sources(word.text, word.later, 0):
            if on_each:
                yield name

    def never(self, word: Word) -> Iterator[str]:
        """Yield the names in a word that no shell expands."""
        if not self._call.late and not self._call.inner:
            yield from (name for name in names_in(word.text) if name in word.later)

    def _sources(self, text: str, later: frozenset[str], depth: int) -> Iterator[tuple[str, bool]]:
        for name in names_in(text):
            is_inner = name in self._call.late
            if name in later and not is_inner:
                continue
            yield from self._follow(name, is_inner, depth)

    def _follow(self, name: str, is_inner: bool, depth: int) -> Iterator[tuple[str, bool]]:
        setting = self._setting(name, is_inner)
        if setting is None or depth > MOST_DEEP:
            yield name, is_inner or self._is_own(name)
        elif not setting.is_conditional and ":-" not in setting.value:
            is_inside = setting in self._call.inner
            for source in names_in(setting.value):
                if source not in setting.later:
                    yield from self._follow(source, is_inside and source in self._call.late, depth + 1)

    def _setting(self, name: str, is_inner: bool) -> Setting | None:
        inside = next((one for one in self._call.inner if one.name == name), None) if is_inner else None
        return inside or self._script.setting(name)

    def _is_own(self, name: str) -> bool:
        """Return True if the shell of this text expands a name, and runs on each node."""
        late = self._around.late
        return self._runs_on_each and (late is None or name in late)
