"""The remedy of a finding in words that are complete without the rows around it. Pure."""

from __future__ import annotations

import re

from ...presets.finding import Finding

_PLACE = re.compile(r"(?:raised|crashed) at (\S+:\d+)$")
"""The line of the evidence that names file and line."""


def remedy_text(finding: Finding) -> str:
    """Return the remedy; "that line" becomes the file and line of the evidence."""
    for line in finding.evidence:
        if place := _PLACE.match(line):
            return re.sub(r"\bthat line\b", lambda _: place[1], finding.remedy)
    return finding.remedy


def with_keys(remedy: str) -> str:
    """Name the cockpit's key instead of the command that dumps stacks."""
    return re.sub(r"`distui dump stacks[^`]*`", "the stacks (key w)", remedy)
