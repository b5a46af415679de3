"""lint: checks a launch, configuration files or a command before GPUs cost money."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict

from ...presets.finding import Finding, LaunchFinding, PlanError, PresetError, failed, worst_first
from ...presets.lint import SUFFIXES, lint_file, refusal
from ...presets.load import Library, library, load
from ...presets.plan import make_plan
from ...presets.text_formats import MOST_BYTES
from ...runners.launch import check
from ...runners.launch.prepare import prepare
from ...runners.launch.prepared import run_name
from ...runners.node import local_agent
from ...runners.run import file_io, run_directories
from ...runners.run.errors import RunError
from ..rows.glyphs import counted
from ..terminal import answer
from . import launch


class Findings(TypedDict):
    """`lint`."""

    findings: list[LaunchFinding]


def lint(options: argparse.Namespace) -> int:
    """Print the findings; return 1 if one is an error. Raises RunError and PresetError."""
    findings = _checked(options)
    answer(options.json, Findings(findings=[finding.as_dict() for finding in findings]), text(findings))
    return 1 if failed(findings) else 0


def text(findings: Sequence[Finding]) -> list[str]:
    """Return the lines of each finding, and a last line that counts them."""
    lines = [line for finding in findings for line in (*finding.as_lines(), "")]
    return [*lines, counted(findings) or "no findings"]


def _checked(options: argparse.Namespace) -> list[Finding]:
    """Return the findings of the files, the command or the launch. Raises RunError and PresetError."""
    words, rest = list(options.preset), options.rest or []
    if options.task or _are_files(words):
        if rest or (options.task and words):
            raise RunError(
                "files and a launch are checked separately: leave out PRESET and everything after --"
            )
        return _files([options.task] if options.task else words)
    if words:
        options.preset = words[0]
        return _launch(options)
    if rest:
        return check.command_findings(tuple(rest))
    raise RunError(
        "nothing to check: `distui lint PRESET -- SCRIPT` checks a launch, `distui lint FILE…` configuration files, "
        "`distui lint -- COMMAND…` a command line"
    )


def _are_files(words: Sequence[str]) -> bool:
    return len(words) > 1 or any(map(is_file, words))


def is_file(word: str) -> bool:
    """Whether a word names a file, existing or not, rather than a preset."""
    return "/" in word or word.endswith(SUFFIXES) or (not word.isidentifier() and Path(word).is_file())


def _files(files: Sequence[str]) -> list[Finding]:
    presets = _presets()
    findings: list[Finding] = []
    for file in files:
        findings += _file(file, presets)
    return worst_first(findings)


def _file(file: str, presets: Library | None) -> list[Finding]:
    """Return the findings of a file. Raises RunError and PresetError."""
    path = Path(file)
    try:
        data = file_io.head(path, MOST_BYTES + 1, streams=True)
    except file_io.FileError as error:
        raise RunError(f"file {file} {error.why}: name a file that lint can read") from None
    return lint_file(file, data, exists=check.exists_beside(path.parent), presets=presets)


def _presets() -> Library | None:
    """Return the presets; None if a preset file cannot be read, which is a separate finding."""
    try:
        return library()
    except PresetError:
        return None


def _launch(options: argparse.Namespace) -> list[Finding]:
    """Return the findings of a launch. Raises RunError and PresetError."""
    launch.take_defaults(options)
    loaded = load(launch.preset_of(options), options.set)
    request = launch.requested(options)
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
