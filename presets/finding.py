"""Findings on presets, plans and files, the errors that refuse them, and hints for names that do not exist."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

# -----------------------------------------------------------------------------------------------------------
# What presets and plans can refuse; imported by every verb, so that nothing else is in here.


class PresetError(Exception):
    """A preset cannot be read or found; the text is one sentence that says where and what to do."""


class PlanError(Exception):
    """No plan can be made; the text is one sentence that says what was wrong and what to do."""


# -----------------------------------------------------------------------------------------------------------
# What a check found: the one shape of it, for lint, doctor and the screen.


Severity = Literal["error", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")
"""From the worst."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One thing that is wrong, or better known."""

    id: str
    """Stable, as "L9" or "D-SHM-SMALL"; the documentation lists all of them."""
    severity: Severity
    """"error": it will not work, or not do what it says; "warning": it costs time or money; "note": worth knowing."""
    where: str
    """The line, field, variable or node that it is about; "" for the whole."""
    value: str = ""
    """What stands or was measured there."""
    text: str
    """What is wrong and why, a sentence."""
    remedy: str = ""
    """What to do, a sentence; "" where nothing has to be done."""

    def as_dict(self) -> dict[str, str]:
        """For `--json`."""
        return {
            "id": self.id,
            "severity": self.severity,
            "where": self.where,
            "value": self.value,
            "text": self.text,
            "remedy": self.remedy,
        }


def worst_first(findings: Iterable[Finding]) -> list[Finding]:
    """Errors, then warnings, then notes, each in the order in which they were found."""
    return sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity))


def failed(findings: Iterable[Finding]) -> bool:
    """Whether an error is among them: what `lint` and `doctor` return 1 for."""
    return any(finding.severity == "error" for finding in findings)


# -----------------------------------------------------------------------------------------------------------
# Names that do not exist: which of those that do is meant.


def nearest(word: str, names: Iterable[str], least: float = 0.6) -> str:
    """The name most like `word`; "" where none has at least that share in common with it, 0 to 1."""
    import difflib  # needed where a user has misspelt something

    return next(iter(difflib.get_close_matches(word, list(names), n=1, cutoff=least)), "")


def did_you_mean(word: str, names: Iterable[str]) -> str:
    """The question "did you mean NAME?"; "" where no name is near."""
    near = nearest(word, names)
    return near and f"did you mean {near}?"


def nearest_or_all(word: str, names: Iterable[str]) -> str:
    """The end of a sentence about an unknown `word`: the question, or all names there are."""
    choices = list(names)
    all_of_them = f"there are {', '.join(choices)}." if len(choices) < 16 else ""
    hint = did_you_mean(word, choices) or all_of_them
    return f"; {hint}" if hint else "."
