"""From facts to findings: pure functions, by subject."""

from __future__ import annotations

from collections.abc import Sequence

from ....presets.finding import Finding
from .. import network_checks, node_checks
from ..node_checks import ExaminedNode

PER_NODE = (
    node_checks.check_software,
    node_checks.check_hardware,
    node_checks.check_system,
    network_checks.check_network,
)


def check(nodes: Sequence[ExaminedNode]) -> list[Finding]:
    """What is found on each node, and between them."""
    findings = [finding for node in nodes for check_node in PER_NODE for finding in check_node(node)]
    return findings + network_checks.check_differences(nodes)
