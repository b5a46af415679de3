"""Summarize a user's SkyPilot task: nodes, accelerators, and the launchers and ranks of its `run:`. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from .known_names import known_names
from .launchers import megatron
from .lint.launcher_calls import ASSIGNMENT, LauncherCall, ShellText, read_script
from .lint.shell import Command
from .lint.skypilot_file import gpus
from .lint.torchrun_options import read_options
from .text_formats import plain, whole

PER_NODE = ("gpu", "auto", "$SKYPILOT_NUM_GPUS_PER_NODE", "${SKYPILOT_NUM_GPUS_PER_NODE}")
"""Values of --nproc-per-node that mean the accelerators of a node."""
ROW_PER_RANK = "each process that shows that it is a rank gets a row"


@dataclass(frozen=True, slots=True)
class TaskLauncher:
    name: str
    line: int
    """Line of `run:`, from 1."""
    known: bool
    """True if distui knows the ranks, which is the case for torchrun."""
    ranks: int | None = None
    """Ranks of all nodes, or None if only the nodes know them."""

    @property
    def row(self) -> str:
        where = f"{self.name} (run: line {self.line})"
        if not self.known:
            how = "unknown to distui" if _is_foreign_launcher(self.name) else "as it is"
            return f"{where}, {how}: {ROW_PER_RANK}"
        return f"{where}: {'ranks as it finds them' if self.ranks is None else f'{self.ranks} ranks'}"


@dataclass(frozen=True, slots=True)
class TaskSummary:
    nnodes: int
    accelerators: str | None
    """Per node, as written."""
    gpus: int | None
    """Per node, or None if alternatives differ or SkyPilot chooses."""
    launchers: list[TaskLauncher]

    def lines(self) -> list[str]:
        """Return the lines that are printed above the task."""
        nodes = f"nodes        {self.nnodes}"
        if self.accelerators:
            nodes += f", each {self.accelerators}"
            if self.gpus and self.nnodes > 1:
                nodes += f" = {self.nnodes * self.gpus} in all"
        rows = [launcher.row for launcher in self.launchers] or [f"none seen in run: {ROW_PER_RANK}"]
        return [nodes, *(f"launcher     {row}" for row in rows)]

    def document(self) -> dict[str, Any]:
        """Return the summary as JSON values."""
        return asdict(self)


def summary(config: Mapping[str, Any], nnodes: int) -> TaskSummary:
    """Summarize a task. `nnodes`: nodes of the launch."""
    resources = config.get("resources")
    wanted = resources.get("accelerators") if isinstance(resources, Mapping) else None
    each = gpus(plain(config))
    text = read_script(str(config.get("run") or ""))
    launchers = [_launcher(call, each, nnodes) for call in text.launches]
    return TaskSummary(nnodes, _accelerators(wanted), each, [*launchers, *_unknown_launchers(text)])


def own_mesh(config: Mapping[str, Any], nnodes: int) -> dict[str, int]:
    """Return the mesh (tp, pp, …) from the options of a task's first launcher that sets any; {} if none does."""
    per_node = gpus(plain(config))
    for call in read_script(str(config.get("run") or "")).launches:
        mesh = megatron.of_command([word.text for word in call.words], nnodes, per_node)
        if mesh:
            return mesh
    return {}


def _accelerators(wanted: object) -> str | None:
    if isinstance(wanted, Mapping):
        return " or ".join(f"{name}:{1 if count is None else count}" for name, count in wanted.items())
    if isinstance(wanted, list):
        return " or ".join(map(str, wanted))
    return None if wanted is None else str(wanted)


def _launcher(call: LauncherCall, per_node: int | None, nnodes: int) -> TaskLauncher:
    if call.program != "torchrun":
        return TaskLauncher(call.program, call.line, False)
    each = _ranks_per_node(call, per_node)
    return TaskLauncher(call.program, call.line, True, None if each is None else each * nnodes)


def _unknown_launchers(text: ShellText) -> Iterator[TaskLauncher]:
    """Yield other programs that start ranks, from lines without a launcher that distui knows."""
    lines = {call.line for call in text.launches}
    for command in text.commands:
        name = _program(command)
        if _is_foreign_launcher(name) and command.line not in lines:
            yield TaskLauncher(name, command.line, False)


def _is_foreign_launcher(name: str) -> bool:
    """Whether the program starts ranks, but not by torchrun, accelerate or deepspeed, which distui follows."""
    return name in known_names("starters")["of_ranks"]


def _program(command: Command) -> str:
    for word in command.words:
        if word.text not in ("exec", "nohup") and not ASSIGNMENT.match(word.text):
            return word.text.rpartition("/")[2]
    return ""


def _ranks_per_node(call: LauncherCall, gpus_per_node: int | None) -> int | None:
    """Return the ranks per node, or None if unknown."""
    options = read_options(call.words)
    word = options.values.get("nproc-per-node")
    if word is not None:
        return (gpus_per_node or None) if word.text in PER_NODE else whole(word.text)
    if options.opaque:
        return None
    return (gpus_per_node or None) if call.completed else 1
