"""1,098 logs after public threads (tests/corpus/threads): how often the headline names the first cause.

The held-out half is there for its score alone: a rule or a pattern is never written after one of its logs.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from each import for_each

from distui.runners.diagnosis.first_cause import judge
from distui.runners.diagnosis.read_logs import read_all
from distui.tui.verbs.diagnose import text

THREADS = Path(__file__).parents[2] / "corpus/threads"
HEALTHY = "healthy"
LATER = {7: "seventh", 8: "eighth", 9: "ninth", 10: "tenth", 11: "eleventh"}
"""The sets that were drawn last: mended with all of them in sight, so of no half."""
HALVES = ("develop", "held-out", *LATER.values())


@dataclass(frozen=True)
class Told:
    """What the diagnosis says of a log, and its label."""

    label: dict[str, Any]
    head: str
    """The headline, with the evidence below it."""
    failed: bool

    @property
    def right(self) -> bool:
        """Whether the headline names the first cause."""
        first = self.head.split("\n")[0].lower()
        return self.failed and any(re.search(words, first) for words in self.label["headline"])

    def names(self, what: str) -> bool:
        """Whether it names the rank or the host."""
        return re.search(rf"\b{re.escape(what)}\b", self.head, re.IGNORECASE) is not None


@functools.cache
def told(half: str) -> tuple[Told, ...]:
    """All logs of one half."""
    return tuple(_told(half))


def _told(half: str) -> Iterator[Told]:
    for label in json.loads((THREADS / "labels.json").read_text("utf-8")):
        odd = int(hashlib.sha256(label["source"].encode()).hexdigest(), 16) % 2
        if half != LATER.get(label.get("round"), "held-out" if odd else "develop"):
            continue
        name = f"{label['log']}.log"
        reading = read_all([(name, THREADS / name)])
        verdict = judge(reading)
        yield Told(label, "\n".join(text(reading, verdict)[:3]), verdict.failed)


def score(half: str) -> dict[str, float]:
    """Shares of one half: of failed jobs with the right headline, of those with rank or host told that name it."""
    failed = [one for one in told(half) if one.label["kind"] != HEALTHY]
    ranks = [one for one in failed if one.label["rank"] is not None]
    hosts = [one for one in failed if one.label["host"]]
    return {
        "right": sum(one.right for one in failed) / len(failed),
        "rank": sum(one.names(f"rank {one.label['rank']}") for one in ranks) / len(ranks),
        "host": sum(one.names(one.label["host"]) for one in hosts) / len(hosts),
        "silent": sum(not one.failed for one in failed),
    }


# What was reached: these only rise, and `silent`, failed jobs that are told as healthy, only falls.
@for_each(
    ("half", "least"),
    [
        ("develop", {"right": 1.0, "rank": 1.0, "host": 1.0, "silent": 0}),
        ("held-out", {"right": 0.96, "rank": 1.0, "host": 0.95, "silent": 1}),
        ("seventh", {"right": 1.0, "rank": 0.92, "host": 0.87, "silent": 0}),
        ("eighth", {"right": 0.98, "rank": 0.93, "host": 1.0, "silent": 1}),
        ("ninth", {"right": 0.97, "rank": 0.95, "host": 0.97, "silent": 1}),
        ("tenth", {"right": 0.98, "rank": 0.92, "host": 0.94, "silent": 0}),
        ("eleventh", {"right": 1.0, "rank": 0.95, "host": 0.92, "silent": 0}),
    ],
)
def test_the_first_cause_is_named(half: str, least: dict[str, float]) -> None:
    reached = score(half)
    assert reached["silent"] <= least.pop("silent")
    assert {name: reached[name] for name in least if reached[name] < least[name]} == {}


@for_each(
    ("words", "most"),
    [("Check what the script does at that line", 0.02), ("No rule knows this", 0.06)],
)
def test_a_right_answer_has_a_remedy_that_acts(words: str, most: float) -> None:
    right = [one for half in HALVES for one in told(half) if one.label["kind"] != HEALTHY and one.right]
    assert sum(words in one.head for one in right) / len(right) <= most


@for_each("half", HALVES)
def test_a_healthy_log_has_no_first_cause(half: str) -> None:
    healthy = [one for one in told(half) if one.label["kind"] == HEALTHY]
    assert len(healthy) > 10
    assert [one.label["log"] for one in healthy if one.failed or one.head.startswith("First cause")] == []
