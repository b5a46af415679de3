"""Findings on presets, plans and files, the errors that refuse them, and hints for names that do not exist."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass
from typing import Literal, TypedDict


class PresetError(Exception):
    """A preset cannot be read or found; the text is one sentence that says where and what to do."""


class PlanError(Exception):
    """No plan can be made; the text is one sentence that says what was wrong and what to do."""


Severity = Literal["error", "warning", "note"]
SEVERITIES: tuple[str, ...] = ("error", "warning", "note")
"""From the worst."""
Role = Literal["cause", "hint", "symptom", "fact", "trace", "noise"]
ROLES: tuple[str, ...] = ("cause", "hint", "symptom", "fact", "trace", "noise")
"""From what explains a failure to what says nothing."""
NO_VERDICT = "hang-no-verdict"
"""Of the notes, the one that a user waits for."""


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
    """A statement with its evidence, of lint, doctor, the detectors and the rules of logs."""

    id: str
    """Stable, as "L9" or "hang-python"; the documentation lists all of them."""
    severity: str
    """"error": it does not work, or not as it says; "warning": it costs time or money; "note": worth knowing."""
    text: str
    """What is wrong and why, a sentence."""
    _: KW_ONLY
    role: str = "cause"
    """Of `ROLES`: what it has to do with a failure."""
    rank: int | None = None
    node: int | None = None
    remedy: str = ""
    """What to do, a sentence; "" where nothing has to be done."""
    evidence: tuple[str, ...] = ()
    """A sentence or a line each: what the statement rests on."""
    ranks: tuple[int, ...] = ()
    """All ranks that it is about, where that is not `rank` alone."""
    since: float | None = None
    """Unix time from which it holds; the text itself names no age, so that it stays the same while it holds."""
    where: str = ""
    """The line, field, variable or node that it is about; "" for the whole."""
    value: str = ""
    """What stands or was measured there."""

    @property
    def alarm(self) -> bool:
        """Whether somebody should act; a note is only worth knowing."""
        return self.severity != "note"

    def as_lines(self) -> list[str]:
        """As lint, plan and doctor print it: severity, id, place and value; below it what is wrong, and what to do."""
        head = " ".join(filter(None, (self.severity, self.id, self.where, self.value)))
        return [head, f"    {self.text}", *([f"    → {self.remedy}"] if self.remedy else [])]

    @property
    def quiet(self) -> bool:
        """Whether it stands behind and is shown dim: a note that nobody waits for."""
        return not self.alarm and self.id != NO_VERDICT

    def as_dict(self) -> LaunchFinding:
        return {
            "id": self.id,
            "severity": self.severity,
            "where": self.where,
            "value": self.value,
            "text": self.text,
            "remedy": self.remedy,
        }

    def of_run(self) -> RunFinding:
        return {
            "id": self.id,
            "severity": self.severity,
            "text": self.text,
            "role": self.role,
            "rank": self.rank,
            "node": self.node,
            "remedy": self.remedy,
            "evidence": list(self.evidence),
            "ranks": list(self.ranks),
            "since": self.since,
        }


def worst_first(findings: Iterable[Finding]) -> list[Finding]:
    """By severity, then causes before hints before symptoms; the earlier ones first, else as they were found."""
    return sorted(findings, key=_order)


def _order(finding: Finding) -> tuple[int, bool, int, float]:
    severity = SEVERITIES.index(finding.severity if finding.severity in SEVERITIES else "warning")
    role = ROLES.index(finding.role) if finding.role in ROLES else len(ROLES)
    return severity, finding.quiet, role, float("inf") if finding.since is None else finding.since


def failed(findings: Iterable[Finding]) -> bool:
    """Whether an error is among them: what `lint` and `doctor` return 1 for."""
    return any(finding.severity == "error" for finding in findings)


def nearest(word: str, names: Iterable[str], least: float = 0.6) -> str:
    """The name most like `word`; "" where none has at least that share in common with it, 0 to 1."""
    return next(iter(nearest_names(word, names, least, 1)), "")


def nearest_names(word: str, names: Iterable[str], least: float, most: int) -> list[str]:
    """Up to `most` of the names that `nearest` means, the most alike first."""
    import difflib  # needed where a user has misspelt something

    return difflib.get_close_matches(word, list(names), n=most, cutoff=least)


def misspells(word: str, name: str) -> bool:
    """Whether `word` is `name` but for one letter too many, missing or wrong, or two that changed places."""
    while word and name and word[0] == name[0]:
        word, name = word[1:], name[1:]
    while word and name and word[-1] == name[-1]:
        word, name = word[:-1], name[:-1]
    return max(len(word), len(name)) == 1 or (len(word) == 2 and word == name[::-1])


def did_you_mean(word: str, names: Iterable[str]) -> str:
    """The question "did you mean NAME?"; "" where no name is near."""
    near = nearest(word, names)
    return near and f"did you mean {near}?"


def nearest_or_all(word: str, names: Iterable[str]) -> str:
    """The end of a sentence about an unknown `word`: the question, or all names there are."""
    choices = list(names)
    all_of_them = f"there are {', '.join(choices)}" if len(choices) < 16 else ""
    hint = did_you_mean(word, choices) or all_of_them
    return f"; {hint}" if hint else ""


def sentence(text: str) -> str:
    """A message with a full stop at its end, unless it has an end of its own."""
    return text if text.endswith((".", "?", "!")) else f"{text}."
