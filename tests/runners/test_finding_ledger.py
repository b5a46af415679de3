"""Findings are raised once, reworded when they change, and cleared when they hold no more."""

from __future__ import annotations

from dataclasses import replace

from distui.presets.finding import Finding
from distui.runners.run.finding_ledger import FindingLedger
from distui.runners.run.model import FindingCleared, FindingRaised, Stamped
from distui.runners.run.state import RunState

A, B, C = (Finding(name, "warning", name, node=1) for name in "abc")


def test_only_changes_are_emitted() -> None:
    told: list[FindingRaised | FindingCleared] = []
    ledger = FindingLedger(told.append)
    ledger.update([A, B, C])
    assert told == [FindingRaised(A), FindingRaised(B), FindingRaised(C)]
    told.clear()
    again = replace(A, text="a again")
    ledger.update([again, B])
    assert told == [FindingCleared("c", node=1), FindingRaised(again)]
    told.clear()
    ledger.raise_finding(B)
    ledger.raise_once(replace(B, text="b again"))
    ledger.clear("c", node=1)
    ledger.clear("b", node=2)
    assert told == []
    ledger.raise_finding(replace(B, text="b again"))
    ledger.clear("b", node=1)
    assert [type(event) for event in told] == [FindingRaised, FindingCleared]


def test_what_an_earlier_process_raised_is_cleared() -> None:
    told: list[FindingRaised | FindingCleared] = []
    ledger = FindingLedger(told.append)
    ledger.adopt([A, B])
    ledger.update([B])
    assert told == [FindingCleared("a", node=1)]


def test_the_ledger_of_a_run_knows_what_everybody_raised() -> None:
    state, told = RunState(), list[FindingRaised | FindingCleared]()

    def emit(event: FindingRaised | FindingCleared) -> None:
        told.append(event)
        state.apply(Stamped(1.0, event, len(told), node=1))

    state.apply(Stamped(0.0, FindingRaised(A), 0, node=1))  # by another part, or an earlier process
    ledger = FindingLedger(emit, state.findings)
    ledger.raise_finding(A)
    assert not told
    ledger.clear("a", node=1)
    assert not state.findings
    ledger.raise_once(B)
    assert ledger.holds("b", node=1)
    assert list(state.findings.values()) == [B]
    assert told == [FindingCleared("a", node=1), FindingRaised(B)]
