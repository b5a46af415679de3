"""Findings of every kind, and the errors of presets and plans."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass
from typing import Literal, TypedDict


class PresetError(Exception):
    """A preset cannot be read or found. The text is one sentence with the place and the remedy."""


class PlanError(Exception):
    """No plan can be made. The text is one sentence with the problem and the remedy."""


Severity = Literal["error", "warning", "note"]
SEVERITIES: tuple[str, ...] = ("error", "warning", "note")
"""Worst first. "error": it does not work as written. "warning": it costs time or money. "note": it is worth knowing."""
Role = Literal["cause", "hint", "symptom", "fact", "trace", "noise"]
ROLES: tuple[str, ...] = ("cause", "hint", "symptom", "fact", "trace", "noise")
"""The relation of a finding to a failure or a slowdown, the most relevant first.

"cause": it explains the failure. "hint": it may be the reason, or may have contributed. "symptom": a consequence
on a rank that is not to blame. "fact": true and worth knowing, whether or not anything has failed. "trace": the calls
through which an error passed. "noise": looks like an error and is harmless.
"""
NO_VERDICT = "hang-no-verdict"
"""A hang without a verdict, because data is missing: the only note that is shown like a warning."""


class LaunchFinding(TypedDict):
    """A finding in `--json` of lint, plan and doctor."""

    id: str
    severity: str
    where: str
    value: str
    text: str
    remedy: str


class RunFinding(TypedDict):
    """A finding in `--json` of status and diagnose."""

    id: str
    severity: str
    text: str
    role: str
    rank: int | None
    node: int | None
    remedy: str
    evidence: list[str]
    ranks: list[int]
    waiting: list[int]
    since: float | None


@dataclass(frozen=True, slots=True)
class Finding:
    """A statement with its evidence, from lint, doctor, the detectors and the log rules."""

    id: str
    """Stable, such as "L9" or "hang-python". The documentation lists all of them."""
    severity: str
    """One of `SEVERITIES`."""
    text: str
    """One sentence with the problem and its reason."""
    _: KW_ONLY
    role: str = "cause"
    """One of `ROLES`."""
    rank: int | None = None
    node: int | None = None
    remedy: str = ""
    """One sentence with the remedy, or "" if nothing has to be done."""
    evidence: tuple[str, ...] = ()
    """Sentences or lines that support the statement."""
    ranks: tuple[int, ...] = ()
    """All affected ranks, if there are more than `rank`."""
    waiting: tuple[int, ...] = ()
    """Ranks that wait for the affected ones."""
    since: float | None = None
    """Unix time of the problem's beginning. `text` contains no age, so that it does not change with time."""
    where: str = ""
    """The line, field, variable or node with the problem, or "" for the whole."""
    value: str = ""
    """The value or measurement at that place."""

    @property
    def alarm(self) -> bool:
        """Return True if a user should act. A note is only worth knowing."""
        return self.severity != "note"

    def as_lines(self) -> list[str]:
        """Return the lines that lint, plan and doctor print: severity, id, place and value, then text and remedy."""
        head = " ".join(filter(None, (self.severity, self.id, self.where, self.value)))
        return [head, f"    {self.text}", *([f"    → {self.remedy}"] if self.remedy else [])]

    @property
    def quiet(self) -> bool:
        """Return True if the finding is sorted last and shown dim: a note other than NO_VERDICT."""
        return not self.alarm and self.id != NO_VERDICT

    def as_dict(self) -> LaunchFinding:
        return {name: getattr(self, name) for name in LaunchFinding.__annotations__}  # type: ignore[return-value]

    def of_run(self) -> RunFinding:
        shown = {name: getattr(self, name) for name in RunFinding.__annotations__}
        lists = {name: list(getattr(self, name)) for name in ("evidence", "ranks", "waiting")}
        return {**shown, **lists}  # type: ignore[typeddict-item]


def worst_first(findings: Iterable[Finding]) -> list[Finding]:
    """Sort by severity, then by the order of `ROLES`, then by time. The sort is stable."""
    return sorted(findings, key=_order)


def _order(finding: Finding) -> tuple[int, bool, int, float]:
    severity = SEVERITIES.index(finding.severity if finding.severity in SEVERITIES else "warning")
    role = ROLES.index(finding.role) if finding.role in ROLES else len(ROLES)
    return severity, finding.quiet, role, float("inf") if finding.since is None else finding.since


def failed(findings: Iterable[Finding]) -> bool:
    """Return True if an error is among them. `lint` and `doctor` then exit with 1."""
    return any(finding.severity == "error" for finding in findings)
