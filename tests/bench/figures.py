"""Numbers to rows of a table. Pure."""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

RESAMPLES = 4000
CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Sample:
    """Repeated measurements of one thing."""

    values: tuple[float, ...]
    unit: str
    digits: int = 2

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    def __str__(self) -> str:
        low, high = quartiles(self.values)
        number = f"{self.median:.{self.digits}f} {self.unit}"
        if len(self.values) < 2:
            return number
        return f"{number} ({low:.{self.digits}f}–{high:.{self.digits}f}, n={len(self.values)})"


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table. `value` is what the goal is about; `goal` None: for information."""

    what: str
    ours: str
    peer: str = ""
    value: float | None = None
    shown: str = ""
    goal: float | None = None
    goal_text: str = ""
    notes: tuple[str, ...] = field(default=())
    interval: tuple[float, float] | None = None
    """Confidence interval of `value`."""

    @property
    def met(self) -> str:
        """yes or no; not sure where the goal is inside the interval; empty where there is no goal."""
        if self.goal is None:
            return ""
        if self.value is None:
            return "not measured"
        if self.interval is not None and self.interval[0] <= self.goal < self.interval[1]:
            return "not sure: too noisy"
        return "yes" if self.value <= self.goal else "**no**"


def quartiles(values: Sequence[float]) -> tuple[float, float]:
    """First and third quartile; the value itself where there is only one."""
    if len(values) < 2:
        return values[0], values[0]
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, high


def interval(differences: Sequence[float]) -> tuple[float, float]:
    """Bootstrap confidence interval of the median of paired differences; the same for the same numbers."""
    dice = random.Random(0)
    medians = sorted(
        statistics.median(dice.choices(differences, k=len(differences))) for _ in range(RESAMPLES)
    )
    edge = int((1 - CONFIDENCE) / 2 * RESAMPLES)
    return medians[edge], medians[-edge - 1]


def ratio_row(what: str, ours: Sample, peer: Sample, goal: float, notes: tuple[str, ...] = ()) -> Row:
    """A row whose goal is a ratio of two medians."""
    ratio = ours.median / peer.median
    return Row(what, str(ours), str(peer), ratio, f"{ratio:.2f} ×", goal, f"≤ {goal:.2f} ×", notes)


def tail_row(what: str, ours: Sample, peer: Sample, goal: float) -> Row:
    """A row whose goal is a ratio of two 95th percentiles."""
    high, other = late(ours.values), late(peer.values)
    notes = (f"95th percentiles: {high:.0f} and {other:.0f} {ours.unit}.",)
    return Row(
        what, str(ours), str(peer), high / other, f"{high / other:.2f} ×", goal, f"≤ {goal:.2f} ×", notes
    )


def late(values: Sequence[float]) -> float:
    """95th percentile."""
    return statistics.quantiles(values, n=20, method="inclusive")[-1]


def limit_row(
    what: str, ours: Sample, goal: float | None, peer: str = "", notes: tuple[str, ...] = ()
) -> Row:
    """A row whose goal is a limit on the median itself."""
    shown = f"{ours.median:.{ours.digits}f} {ours.unit}"
    text = "" if goal is None else f"≤ {goal:g} {ours.unit}"
    return Row(what, str(ours), peer, ours.median, shown, goal, text, notes)


def skipped(what: str, why: str, goal: float | None = None, goal_text: str = "") -> Row:
    """A row that could not be measured here."""
    return Row(what, "–", goal=goal, goal_text=goal_text, notes=(why,))


def markdown(rows: Sequence[Row]) -> str:
    """The table, and under it the notes."""
    lines = ["| what | distui | without it | result | goal | met |", "|---|---|---|---|---|---|"]
    notes: list[str] = []
    for row in rows:
        marks = []
        for note in row.notes:
            if note not in notes:
                notes.append(note)
            marks.append(str(notes.index(note) + 1))
        mark = f" [{', '.join(marks)}]" if marks else ""
        cells = (row.what + mark, row.ours, row.peer, row.shown, row.goal_text, row.met)
        lines.append("| " + " | ".join(cells) + " |")
    listed = [f"{number}. {note}" for number, note in enumerate(notes, 1)]
    return "\n".join([*lines, *(["", *listed] if listed else [])]) + "\n"
