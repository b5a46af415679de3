"""From facts to findings: pure functions, by subject."""

from __future__ import annotations

from collections.abc import Sequence

from ....presets.finding import Finding
from .. import network_checks, node_checks
from ..node_checks import ExaminedNode

ONE = (
    node_checks.check_software,
    node_checks.check_hardware,
    node_checks.check_system,
    network_checks.check_network,
)


def check(looks: Sequence[ExaminedNode]) -> list[Finding]:
    """What is found on each node, and between them."""
    found = [finding for look in looks for one in ONE for finding in one(look)]
    return found + network_checks.check_differences(looks)
