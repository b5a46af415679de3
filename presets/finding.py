"""Findings about presets, plans and files, their errors, and hints for unknown names."""

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
"""Worst first."""
Role = Literal["cause", "hint", "symptom", "fact", "trace", "noise"]
ROLES: tuple[str, ...] = ("cause", "hint", "symptom", "fact", "trace", "noise")
"""Most relevant first."""
NO_VERDICT = "hang-no-verdict"
"""The only note that a user waits for."""


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
    since: float | None


@dataclass(frozen=True, slots=True)
class Finding:
    """A statement with its evidence, from lint, doctor, the detectors and the log rules."""

    id: str
    """Stable, such as "L9" or "hang-python". The documentation lists all of them."""
    severity: str
    """Severity: "error" does not work as written, "warning" costs time or money, "note" is worth knowing."""
    text: str
    """One sentence with the problem and its reason."""
    _: KW_ONLY
    role: str = "cause"
    """One of `ROLES`: the relation to a failure."""
    rank: int | None = None
    node: int | None = None
    remedy: str = ""
    """One sentence with the remedy, or "" if nothing has to be done."""
    evidence: tuple[str, ...] = ()
    """Sentences or lines that support the statement."""
    ranks: tuple[int, ...] = ()
    """All affected ranks, if there are more than `rank`."""
    since: float | None = None
    """Unix time of the beginning. The text contains no age, so that it does not change."""
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
        return {**shown, "evidence": list(self.evidence), "ranks": list(self.ranks)}  # type: ignore[typeddict-item]


def worst_first(findings: Iterable[Finding]) -> list[Finding]:
    """Sort by severity, then causes before hints before symptoms, then by time. The sort is stable."""
    return sorted(findings, key=_order)


def _order(finding: Finding) -> tuple[int, bool, int, float]:
    severity = SEVERITIES.index(finding.severity if finding.severity in SEVERITIES else "warning")
    role = ROLES.index(finding.role) if finding.role in ROLES else len(ROLES)
    return severity, finding.quiet, role, float("inf") if finding.since is None else finding.since


def failed(findings: Iterable[Finding]) -> bool:
    """Return True if an error is among them. `lint` and `doctor` then exit with 1."""
    return any(finding.severity == "error" for finding in findings)


def nearest(word: str, names: Iterable[str], least: float = 0.6) -> str:
    """Return the name most similar to `word`, or "" if no similarity reaches `least` (0 to 1)."""
    return next(iter(nearest_names(word, names, least, 1)), "")


def nearest_names(word: str, names: Iterable[str], least: float, most: int) -> list[str]:
    """Return up to `most` similar names, the most similar first."""
    import difflib  # needed only after a misspelling

    return difflib.get_close_matches(word, list(names), n=most, cutoff=least)


def misspells(word: str, name: str) -> bool:
    """Return True if one letter is added, missing or wrong, or two letters are swapped."""
    while word and name and word[0] == name[0]:
        word, name = word[1:], name[1:]
    while word and name and word[-1] == name[-1]:
        word, name = word[:-1], name[:-1]
    return max(len(word), len(name)) == 1 or (len(word) == 2 and word == name[::-1])


def did_you_mean(word: str, names: Iterable[str]) -> str:
    """Return the question "did you mean NAME?", or "" if no name is similar."""
    near = nearest(word, names)
    return near and f"did you mean {near}?"


def nearest_or_all(word: str, names: Iterable[str]) -> str:
    """Return the end of a sentence about an unknown `word`: the question, or a list of all names."""
    choices = list(names)
    all_of_them = f"there are {', '.join(choices)}" if len(choices) < 16 else ""
    hint = did_you_mean(word, choices) or all_of_them
    return f"; {hint}" if hint else ""


def sentence(text: str) -> str:
    """Add a full stop, unless the message ends with other punctuation."""
    return text if text.endswith((".", "?", "!")) else f"{text}."
