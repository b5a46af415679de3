"""The ledger of findings: each is raised once, again when it changes, and cleared when it no longer holds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from ..presets.finding import Finding
from .model import FindingCleared, FindingRaised

Key = tuple[str, int | None, int | None]
Emit = Callable[[FindingRaised | FindingCleared], None]


def key(finding: Finding) -> Key:
    """What `RunState` knows a finding by."""
    return finding.id, finding.rank, finding.node


def by_key(findings: Iterable[Finding]) -> dict[Key, Finding]:
    """The last of each key."""
    return {key(finding): finding for finding in findings}


class FindingLedger:
    """What is raised now; every change of it is emitted.

    `state`: the findings of the run's state, which an emitted event changes, so that the ledger is the run's. Without
    it the ledger is of one part, and remembers what that part has raised.
    """

    def __init__(self, emit: Emit, state: Mapping[Key, Finding] | None = None) -> None:
        self._emit = emit
        self._own: dict[Key, Finding] = {}
        self.raised: Mapping[Key, Finding] = self._own if state is None else state

    def adopt(self, findings: Iterable[Finding]) -> None:
        """An earlier process has raised these."""
        self._own.update(by_key(findings))

    def holds(self, name: str, rank: int | None = None, node: int | None = None) -> bool:
        return (name, rank, node) in self.raised

    def raise_finding(self, finding: Finding) -> None:
        """Raise it, unless it is raised in these words."""
        if self.raised.get(key(finding)) != finding:
            self._own[key(finding)] = finding
            self._emit(FindingRaised(finding))

    def raise_once(self, finding: Finding) -> None:
        """Raise it, unless it is raised in whatever words: for numbers that change with every sample."""
        if key(finding) not in self.raised:
            self.raise_finding(finding)

    def clear(self, name: str, rank: int | None = None, node: int | None = None) -> None:
        if self.holds(name, rank, node):
            self._own.pop((name, rank, node), None)
            self._emit(FindingCleared(name, rank, node))

    def update(self, findings: Iterable[Finding]) -> None:
        """These hold now, and of this part no others."""
        current = by_key(findings)
        for at in [at for at in self.raised if at not in current]:
            self.clear(*at)
        for finding in current.values():
            self.raise_finding(finding)
