"""The table fault → seconds → right or wrong of docs/development/verification.md, from what the tests saw.

With DISTUI_WRITE=1 the tests write down what they see, and the table anew.
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
import re
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SEEN = Path(__file__).with_name("seen.json")
DOCUMENT = ROOT / "docs" / "development" / "verification.md"
BEGIN, END = "<!-- faults: written by the tests -->", "<!-- end of faults -->"


@dataclass(frozen=True, slots=True)
class Seen:
    """One row."""

    verdict: str
    """The sentence, as it was said."""
    seconds: float | None
    """From the sign of the fault to the verdict; None without a verdict."""
    wrong: str
    """What was wrong with it; "" when it was right."""


def known() -> dict[str, Any]:
    """What was seen last: `faults` and `healthy` by name, `date`, `machine`."""
    found: dict[str, Any] = json.loads(SEEN.read_text()) if SEEN.exists() else {}
    return {"faults": {}, "healthy": {}, "date": "", "machine": "", **found}


def remember(name: str, seen: Seen, healthy: bool = False) -> None:
    """Write down what a case came to, and the table with it, where that is asked for."""
    if not os.environ.get("DISTUI_WRITE"):
        return
    with Path(__file__).open() as lock:  # two tests run at once
        fcntl.flock(lock, fcntl.LOCK_EX)
        found = known()
        found["healthy" if healthy else "faults"][name] = asdict(replace(seen, verdict=plain(seen.verdict)))
        found |= {"date": time.strftime("%Y-%m-%d"), "machine": machine()}
        SEEN.write_text(json.dumps(found, indent=1, ensure_ascii=False, sort_keys=True) + "\n")
        before, begin, rest = DOCUMENT.read_text().partition(BEGIN)
        assert begin, f"{DOCUMENT} has lost its mark {BEGIN}"
        DOCUMENT.write_text(before + BEGIN + "\n\n" + text(found) + "\n" + END + rest.partition(END)[2])


def machine() -> str:
    """On what it was seen."""
    cores = os.cpu_count()
    release = ".".join(platform.release().split(".")[:2])
    return (
        f"{cores} cores, no GPU, Linux {release}, Python {platform.python_version()}, "
        f"torch {version('torch').partition('+')[0]} with gloo"
    )


def in_document() -> str:
    """The table that stands there."""
    return DOCUMENT.read_text().partition(BEGIN)[2].partition(END)[0].strip() + "\n"


def text(found: Mapping[str, Any]) -> str:
    """The table, in Markdown."""
    lines = [f"Seen on {found['date']}: {found['machine']}.", ""]
    lines += ["| fault, named right unless it says so | seconds |", "|---|---|"]
    lines += [row(name, Seen(**seen)) for name, seen in sorted(found["faults"].items())]
    lines += ["", "Healthy jobs without an alarm, unless it says so:", ""]
    for name, seen in sorted(found["healthy"].items()):
        lines.append(f"* {_marked(name, seen['wrong'])}")
    return "\n".join(lines) + "\n"


def row(name: str, seen: Seen) -> str:
    """One fault."""
    seconds = "–" if seen.seconds is None else f"{seen.seconds:.1f}"
    return f"| {_marked(name, seen.wrong)} | {seconds} |"


def _marked(name: str, wrong: str) -> str:
    return _cell(f"{name}: wrong: {wrong}" if wrong else name)


def plain(said: str) -> str:
    """A sentence without the folders of this machine and of this test."""
    said = said.replace(sys.executable, "python").replace(f"{ROOT}/", "")
    return re.sub(r"/tmp/d[tk]-\w+/", "", said)


def _cell(said: str) -> str:
    return said.replace("|", "\\|").replace("\n", " ") or "–"
