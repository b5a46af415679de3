"""The tables of docs/compatibility.md, from what the rows saw; with DISTUI_WRITE=1 the rows write both anew."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from .features import FEATURES
from .rows import ROWS, Row

SEEN = Path(__file__).with_name("seen.json")
DOCUMENT = Path(__file__).parents[2] / "docs" / "compatibility.md"
BEGIN, END = "<!-- matrix: written by the tests -->", "<!-- end of matrix -->"
COLUMNS = tuple(FEATURES)
HEADS: Mapping[str, str] = {
    "torch": "torch in the environment of the ranks",
    "framework": "script on a framework, unedited",
    "python": "Python of distui itself",
}
PASSED = "yes"


@dataclass(slots=True)
class Seen:
    """What a row came to."""

    date: str = field(default_factory=lambda: time.strftime("%Y-%m-%d"))
    versions: dict[str, str] = field(default_factory=dict)
    features: dict[str, str] = field(default_factory=dict)
    """By name: PASSED, a remark on how it passed, or "wrong: …"."""
    missing: str = ""
    """Why the row was not run; "" where it was."""

    @property
    def wrong(self) -> dict[str, str]:
        """The features that did not pass."""
        return {name: text for name, text in self.features.items() if text.startswith("wrong: ")}


def recorded() -> dict[str, Any]:
    """What was seen last, by the row's name."""
    found: dict[str, Any] = json.loads(SEEN.read_text()) if SEEN.exists() else {}
    return found


def record(row: Row, seen: Seen) -> None:
    """Write down what a row came to, and the tables with it, where that is asked for."""
    if os.environ.get("DISTUI_WRITE"):
        write(recorded() | {row.name: asdict(seen)})


def write(everything: Mapping[str, Any]) -> None:
    """Both files anew."""
    SEEN.write_text(json.dumps(everything, indent=1, ensure_ascii=False, sort_keys=True) + "\n")
    before, begin, rest = DOCUMENT.read_text().partition(BEGIN)
    assert begin, f"{DOCUMENT} has lost its mark {BEGIN}"
    DOCUMENT.write_text(before + BEGIN + "\n\n" + text(everything) + "\n" + END + rest.partition(END)[2])


def in_document() -> str:
    """The tables that stand there."""
    return DOCUMENT.read_text().partition(BEGIN)[2].partition(END)[0].strip() + "\n"


def text(everything: Mapping[str, Any]) -> str:
    """The tables, in Markdown."""
    return "\n".join(line for kind in HEADS for line in _table(kind, everything))


def _table(kind: str, everything: Mapping[str, Any]) -> Iterator[str]:
    yield f"| {HEADS[kind]} | passed | date |"
    yield "|---|---|---|"
    for row in ROWS:
        if row.kind == kind:
            yield _line(row, Seen(**everything.get(row.name, {"date": ""})))
    yield ""


def _line(row: Row, seen: Seen) -> str:
    if not seen.features:
        passed = f"not run: {seen.missing}" if seen.missing else "not run yet"
    else:
        outcomes = {name: seen.features.get(name, "not reached") for name in COLUMNS}
        others = [f"{name} ({outcome})" for name, outcome in outcomes.items() if outcome != PASSED]
        passed = f"all but {', '.join(others)}" if others else "all"
    versions = seen.versions
    named = [f"{name} {versions[name].partition('+')[0]}" for name in row.shown if name in versions]
    names = ", ".join([*named, f"Python {versions['python']}"]) if versions else row.name.replace("-", " ")
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in (names, passed, seen.date)) + " |"
