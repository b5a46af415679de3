"""lint: checks a launch, configuration files or a command before GPUs cost money."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict

from ...presets.finding import Finding, LaunchFinding, failed
from ...presets.lint import SUFFIXES
from ...presets.load import library, load
from ...runners.launch import check
from ...runners.launch.linting import findings_of_files, findings_of_launch
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
        return findings_of_files([options.task] if options.task else words)
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
    return "/" in word or word.endswith(SUFFIXES) or (Path(word).is_file() and word not in library().names)


def _launch(options: argparse.Namespace) -> list[Finding]:
    """Return the findings of a launch. Raises RunError and PresetError."""
    launch.take_defaults(options)
    load(
        launch.preset_of(options), options.set
    )  # a word that is no preset is reported before a missing script
    return findings_of_launch(launch.requested(options))
