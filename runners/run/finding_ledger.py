"""The ledger of findings: raise each once, raise it again after a change, and clear it when it no longer holds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from ...presets.finding import Finding
from .model import FindingCleared, FindingRaised

Key = tuple[str, int | None, int | None]
Emit = Callable[[FindingRaised | FindingCleared], None]


def key(finding: Finding) -> Key:
    """Return the key of a finding in `RunState`."""
    return finding.id, finding.rank, finding.node


def by_key(findings: Iterable[Finding]) -> dict[Key, Finding]:
    """Map keys to findings; the last of each key counts."""
    return {key(finding): finding for finding in findings}


class FindingLedger:
    """The currently raised findings; every change is emitted.

    With `state` (the findings of the run's state, which the emitted events change) the ledger is the run's. Without it
    the ledger belongs to one part, and keeps only the findings of that part.
    """

    def __init__(self, emit: Emit, state: Mapping[Key, Finding] | None = None) -> None:
        self._emit = emit
        self._own: dict[Key, Finding] = {}
        self.raised: Mapping[Key, Finding] = self._own if state is None else state

    def adopt(self, findings: Iterable[Finding]) -> None:
        """Take over findings that an earlier process raised."""
        self._own.update(by_key(findings))

    def holds(self, name: str, rank: int | None = None, node: int | None = None) -> bool:
        return (name, rank, node) in self.raised

    def raise_finding(self, finding: Finding) -> None:
        """Raise a finding, unless an equal one is raised."""
        if self.raised.get(key(finding)) != finding:
            self._own[key(finding)] = finding
            self._emit(FindingRaised(finding))

    def raise_once(self, finding: Finding) -> None:
        """Raise a finding, unless its key is raised with any text: for numbers that change with every sample."""
        if key(finding) not in self.raised:
            self.raise_finding(finding)

    def clear(self, name: str, rank: int | None = None, node: int | None = None) -> None:
        if self.holds(name, rank, node):
            self._own.pop((name, rank, node), None)
            self._emit(FindingCleared(name, rank, node))

    def update(self, findings: Iterable[Finding]) -> None:
        """Raise these findings, and clear all others of the ledger."""
        current = by_key(findings)
        for at in [at for at in self.raised if at not in current]:
            self.clear(*at)
        for finding in current.values():
            self.raise_finding(finding)
