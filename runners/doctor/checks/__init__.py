"""From facts to findings: pure functions, by subject."""

from __future__ import annotations

from collections.abc import Sequence

from ....presets.finding import Finding
from ..look import Look
from . import differences, hardware, network, software, system

ONE = (software.check, hardware.check, system.check, network.check)


def check(looks: Sequence[Look]) -> list[Finding]:
    """What is found on each node, and between them."""
    found = [finding for look in looks for one in ONE for finding in one(look)]
    return found + differences.check(looks)
