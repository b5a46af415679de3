"""The verdict of distui on a run of the rig, beside the one that its scenario must lead to."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from distui.runners.diagnosis.first_cause import judge
from distui.runners.diagnosis.read_logs import read_all

from .scenarios import Scenario

OF_THE_RIG = {"sock-bad-interface-hint"}
"""Its nodes meet over the loopback interface, which is rightly told."""


@dataclass(frozen=True, slots=True)
class Told:
    """What a person is told."""

    first: str
    """Id of the first cause; "" for none."""
    ranks: tuple[int, ...]
    text: str
    failed: bool
    hints: tuple[str, ...]
    """Ids of other findings that a person would look at."""


def of_folder(folder: Path) -> Told:
    """Of the logs of a run."""
    verdict = judge(read_all((path.name, path) for path in sorted(folder.glob("rank*.log"))))
    first = verdict.first
    others = [each.id for each in verdict.findings if each is not first and each.role in ("cause", "hint")]
    if first is None:
        return Told("", (), "", verdict.failed, tuple(others))
    ranks = first.ranks or (() if first.rank is None else (first.rank,))
    return Told(first.id, tuple(ranks), first.text, verdict.failed, tuple(others))


def wrong(scenario: Scenario, told: Told) -> str:
    """What is wrong with a verdict, a sentence; "" where it is right."""
    if told.first != scenario.first:
        return f"the first cause is {told.first or 'none'}, not {scenario.first or 'none'}: {told}"
    if told.failed != bool(scenario.first):
        return f"a job that {'failed' if scenario.first else 'is healthy'} is told as the opposite: {told}"
    if not scenario.first and set(told.hints) - OF_THE_RIG:
        return f"a healthy job is told to be looked at: {told}"
    if scenario.named is not None and told.ranks != scenario.named:
        return f"ranks {told.ranks} are named, not {scenario.named}: {told}"
    if absent := [text for text in scenario.says if text not in told.text]:
        return f"{absent} is not said: {told}"
    return ""
