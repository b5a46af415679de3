"""Find the first line with any error word in a short log without training, if no rule and no error form matches.

Users paste a few lines around an error. In a complete log these words are normal, so this module stops if it sees
training or a longer log.
"""

from __future__ import annotations

from dataclasses import replace

from ..inrank.failure_causes import advice_of, of_line
from .error_lines import UNEXPLAINED, is_alive
from .exceptions import sentence, text_of
from .line_formats import LINES
from .rules import First, LogLine, Rule, RuleHits, shown

MOST_LINES = 200
"""Maximum number of lines of all files together, and of one file, for a short log."""
QUOTED = 300
"""Maximum number of quoted characters of the line."""
NO_ADVICE = "Read the lines around it: it is the first sign of a problem that was found."
PLACE = (1 << 21) + 1
"""Sorts these lines after error messages."""


class ShortLog:
    """Collect the first such line while the log is short."""

    def __init__(self, pasted: bool) -> None:
        """`pasted`: whether the user gave the logs. A run of distui has better sources."""
        self.open = pasted
        """Whether the log is short so far and shows no training."""
        self._lines = 0
        self._first: First | None = None
        self._text = ""

    def asks(self, line: str, number: int) -> bool:
        """Whether a line that is not NCCL's may report an error, so that the caller must `take` it."""
        self._lines += 1
        if max(self._lines, number) > MOST_LINES or is_alive(line):
            self.open, self._first = False, None
        return self.open and self._first is None and LINES["trouble"].search(line) is not None

    def take(self, line: LogLine) -> None:
        """Keep the line if it reports an error."""
        if LINES["everyday"].search(line.text) or LINES["less"].search(line.raw):
            return
        if LINES["trouble"].search(line.text):
            anybody = replace(line.head, rank=None)  # the evidence is too weak to blame a rank
            self._first = line._replace(head=anybody).first
            self._text = shown(line.text.strip())[:QUOTED]

    def entries(self) -> list[RuleHits]:
        """Return the line as a rule that fired; [] without one."""
        if self._first is None:
            return []
        name, text, remedy = self._explained()
        rule = Rule(
            id=name,
            severity="error",
            layer="unknown",
            role="cause",
            confidence="low",
            place=PLACE,
            text=text,
            remedy=remedy,
        )
        return [RuleHits.of(rule, self._first)]

    def _explained(self) -> tuple[str, str, str]:
        """Return the rule id, text and remedy of the line."""
        failure = of_line(self._text)
        if failure is not None and not failure.symptom:
            return f"died-{failure.kind}", text_of(failure), sentence(failure.remedy)
        advice = advice_of(self._text)
        if advice:
            return UNEXPLAINED, f"The log has this line: {self._text}", sentence(advice)
        return UNEXPLAINED, f"No rule knows this: {self._text}", NO_ADVICE
