"""Summarize a user's SkyPilot task: nodes, accelerators, and the launchers and ranks of its `run:`. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from .launchers import megatron
from .lint import config_files, launches, shell
from .text_formats import plain, whole

OTHERS = frozenset(
    {
        "fabric",
        "lightning",
        "tune",
        "mpirun",
        "mpiexec",
        "srun",
        "horovodrun",
        "ray",
        "composer",
        "colossalai",
        "torchx",
        "llamafactory-cli",
        "axolotl",
        "swift",
        "xtuner",
        "nemo",
        "litgpt",
        "pdsh",
    }
)
"""Programs that start ranks without distui's shim."""
PER_NODE = ("gpu", "auto", "$SKYPILOT_NUM_GPUS_PER_NODE", "${SKYPILOT_NUM_GPUS_PER_NODE}")
"""Values of --nproc-per-node that mean the accelerators of a node."""


@dataclass(frozen=True, slots=True)
class TaskLauncher:
    name: str
    line: int
    """Line of `run:`, from 1."""
    steered: bool
    """True if distui knows the ranks, which is the case for torchrun."""
    ranks: int | None = None
    """Ranks of all nodes, or None if only the nodes know them."""


@dataclass(frozen=True, slots=True)
class TaskSummary:
    nnodes: int
    accelerators: str
    """Per node, as written, or ""."""
    gpus: int | None
    """Per node, or None if alternatives differ or SkyPilot chooses."""
    launchers: tuple[TaskLauncher, ...]

    def lines(self) -> list[str]:
        """Return the lines that are printed above the task."""
        total = f" = {self.nnodes * self.gpus} in all" if self.gpus and self.nnodes > 1 else ""
        each = f", each {self.accelerators}{total}" if self.accelerators else ""
        rows = [
            f"nodes        {self.nnodes}{each}",
            *(f"launcher     {_row(launcher)}" for launcher in self.launchers),
        ]
        if not self.launchers:
            rows.append("launcher     none seen in run: a torchrun that it starts is seen when it runs")
        return rows

    def document(self) -> dict[str, Any]:
        """Return the summary as JSON values."""
        listed = [
            {
                "name": launcher.name,
                "line": launcher.line,
                "known": launcher.steered,
                "ranks": launcher.ranks,
            }
            for launcher in self.launchers
        ]
        return {
            "nnodes": self.nnodes,
            "accelerators": self.accelerators or None,
            "gpus": self.gpus,
            "launchers": listed,
        }


def _row(launcher: TaskLauncher) -> str:
    where = f"{launcher.name} (run: line {launcher.line})"
    if launcher.steered:
        return (
            f"{where}: {'ranks as it finds them' if launcher.ranks is None else f'{launcher.ranks} ranks'}"
        )
    what = "unknown to distui" if launcher.name in OTHERS else "as it is"
    ranks = "" if launcher.ranks is None else f" {launcher.ranks} ranks,"
    return f"{where}, {what}:{ranks} each process that shows that it is a rank gets a row"


def summary(config: Mapping[str, Any], nnodes: int) -> TaskSummary:
    """Summarize a task. `nnodes`: nodes of the launch."""
    node = plain(config)
    gpus = config_files.gpus(node)
    resources = config.get("resources") or {}
    wanted = resources.get("accelerators") if isinstance(resources, Mapping) else None
    text = shell.read_script(str(config.get("run") or ""))
    return TaskSummary(nnodes, _accelerators(wanted), gpus, tuple(_launchers(text, gpus, nnodes)))


def own_mesh(run: str) -> dict[str, int]:
    """Return the mesh from the parallel sizes of a text's first launcher with any, or {}."""
    for call in shell.read_script(run).launches:
        mesh = megatron.of_command([word.text for word in call.words])
        if mesh:
            return mesh
    return {}


def _accelerators(wanted: object) -> str:
    if isinstance(wanted, Mapping):
        return " or ".join(f"{name}:{1 if count is None else count}" for name, count in wanted.items())
    if isinstance(wanted, list):
        return " or ".join(map(str, wanted))
    return "" if wanted is None else str(wanted)


def _launchers(text: shell.ShellText, gpus: int | None, nnodes: int) -> Iterator[TaskLauncher]:
    for call in text.launches:
        torchrun = call.program == "torchrun"
        each = _each(call, gpus) if torchrun else None
        yield TaskLauncher(call.program, call.line, torchrun, None if each is None else each * nnodes)
    named = {id(call.command) for call in text.launches}
    for command in text.commands:
        name = _program(command)
        if (
            name in OTHERS
            and not any(call.line == command.line for call in text.launches)
            and id(command) not in named
        ):
            yield TaskLauncher(name, command.line, False)


def _program(command: shell.Command) -> str:
    for word in command.words:
        if word.text not in ("exec", "nohup") and not shell.ASSIGNMENT.match(word.text):
            return word.text.rsplit("/", 1)[-1]
    return ""


def _each(call: shell.LauncherCall, gpus: int | None) -> int | None:
    """Return the ranks per node, or None if unknown."""
    options = launches.read_options(call.words)
    word = options.values.get("nproc-per-node")
    if word is not None:
        return (gpus or None) if word.text in PER_NODE else whole(word.text)
    if options.opaque:
        return None
    return gpus if call.completed else 1
