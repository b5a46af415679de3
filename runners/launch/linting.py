"""The findings of `lint`: about a launch, configuration files, or a command."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ...presets.finding import Finding, PlanError, PresetError, worst_first
from ...presets.lint import lint_file, refusal
from ...presets.load import Library, library, load
from ...presets.plan import make_plan
from ...presets.request import Request
from ...presets.text_formats import MOST_BYTES
from ..node import local_agent
from ..run import file_io, run_directories
from ..run.errors import RunError
from . import check
from .prepare import prepare
from .prepared import run_name


def findings_of_files(files: Sequence[str]) -> list[Finding]:
    """Return the findings of files, the worst first. Raises RunError and PresetError."""
    presets = _presets()
    findings: list[Finding] = []
    for file in files:
        findings += _of_file(file, presets)
    return worst_first(findings)


def _of_file(file: str, presets: Library | None) -> list[Finding]:
    path = Path(file)
    try:
        data = file_io.head(path, MOST_BYTES + 1, streams=True)
    except file_io.FileError as error:
        raise RunError(f"file {file} {error.why}: name a file that lint can read") from None
    beside = check.exists_beside(path.parent)
    return lint_file(file, data, exists=beside, read=check.content_beside(path.parent), presets=presets)


def _presets() -> Library | None:
    """Return the presets; None if a preset file cannot be read, which is a separate finding."""
    try:
        return library()
    except PresetError:
        return None


def findings_of_launch(request: Request) -> list[Finding]:
    """Return the findings of a launch, which is planned but not started. Raises RunError and PresetError."""
    loaded = load(request.preset, request.overrides)
    try:
        if request.hosts or request.hostfile or request.through_sky:
            ready = prepare(request)
            return check.findings(ready.plan, ready.asked or request)
        record = run_directories.new_record(request.name or run_name(request.script))
        plan = make_plan(loaded, request, local_agent.place(record, request))
    except PlanError as error:
        return [refusal(str(error))]
    except RunError as error:
        if refusal(str(error)).id == "L19":  # wrong usage, or an unknown place
            raise
        return [refusal(str(error))]
    return check.findings(plan, request)
