"""The check of a planned launch: what `lint` finds in its plan, script and nodes."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

from msgspec import Struct, field

from ...presets.finding import Finding, worst_first
from ...presets.lint import lint_command, lint_plan, lint_task
from ...presets.load import load
from ...presets.model import Loaded, Preset
from ...presets.plan import Plan
from ...presets.request import Request
from ...presets.text_formats import MOST_BYTES
from ..run import file_io, machine, run_directories
from ..run.errors import RunError
from .prepared import script_texts

MOST_RUNS = 100
"""Most runs to search for an earlier one of a script."""


def findings(plan: Plan, request: Request) -> list[Finding]:
    """Return the findings of a plan and of the request that it is of, the worst first. Raises PresetError."""
    if request.command:
        return command_findings(request.command)
    if request.task is not None:
        nnodes = None if request.nnodes is None else plan.nnodes
        beside = exists_beside(Path(request.task).parent)
        hits = lint_task(request.task, _content(request.task) or b"", request, nnodes, beside)
        without_preset = Loaded(preset=Preset(name=""))
        return worst_first([*hits, *lint_plan(plan, without_preset, request)])
    texts, loaded = script_texts(request), load(request.preset, request.overrides)
    return lint_plan(
        plan,
        loaded,
        request,
        source=texts["script_source"],
        beside=texts["script_beside"],
        ran_on_one_node=ran_on_one_node(request.script or "") if plan.nnodes > 1 else None,
    )


def ran_on_one_node(script: str) -> bool:
    """Return True if one of the newest runs had this script, by its name, on one node."""
    try:
        single = [entry for entry in run_directories.entries() if entry.record.nnodes == 1]
    except RunError:
        return True  # unknown: nothing is said
    name = Path(script).name
    for entry in single[:MOST_RUNS]:
        plan = file_io.document_or_none(entry.path / run_directories.PLAN_FILE, _Command)
        if plan is not None and any(Path(word).name == name for word in plan.command):
            return True
    return False


class _Command(Struct, frozen=True):
    """The command of a plan."""

    command: list[str] = field(default_factory=list)


def command_findings(command: tuple[str, ...]) -> list[Finding]:
    """Return the findings of a command line."""
    has_gpus = machine.gpus_here() > 0
    return lint_command(shlex.join(command), exists_beside(Path.cwd()), _content, has_gpus)


def exists_beside(folder: Path) -> Callable[[str], bool]:
    """Return a test whether a file exists in a folder or in the working directory."""
    return lambda name: any((place / name).is_file() for place in (folder, Path.cwd()))


def content_beside(folder: Path) -> Callable[[str], bytes | None]:
    """Return a reader of the files in a folder or in the working directory."""

    def content(name: str) -> bytes | None:
        own = _content(str(folder / name))
        return _content(name) if own is None else own

    return content


def _content(name: str) -> bytes | None:
    """Return a file's content; None if it does not exist or cannot be read."""
    try:
        return file_io.head(Path(name), MOST_BYTES + 1)
    except file_io.FileError:
        return None
