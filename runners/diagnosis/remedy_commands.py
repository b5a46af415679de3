"""The shell commands in findings: written with RUN, reported with the run's name, and copied from remedies. Pure."""

from __future__ import annotations

import re
from dataclasses import replace

from ...presets.finding import Finding

_PLACEHOLDER = re.compile(r"(?<=\bdistui )([a-z]+(?: [a-z]+)?) RUN\b")
_QUOTED = re.compile(r"`([^`]+)`")
_PROGRAM = re.compile(
    r"(?:distui|dmesg|ip|kill|kubectl|lsmod|nvidia-smi|ps|sacct|sinfo|ssh|systemctl|ulimit|zstd) "
)
"""Programs of the commands in remedies. Other quoted texts are names, code or log lines."""


def with_run(finding: Finding, run: str) -> Finding:
    """Return the finding with the run's name in its commands of distui."""
    if not run:
        return finding
    return replace(
        finding,
        text=_named(finding.text, run),
        remedy=_named(finding.remedy, run),
        evidence=tuple(_named(line, run) for line in finding.evidence),
    )


def _named(text: str, run: str) -> str:
    return _PLACEHOLDER.sub(lambda match: f"{match[1]} {run}", text)


def command_of(remedy: str) -> str:
    """Return the first shell command that a remedy quotes; "" if it has none."""
    for quoted in _QUOTED.findall(remedy):
        if _PROGRAM.match(quoted):
            return str(quoted)
    return ""
