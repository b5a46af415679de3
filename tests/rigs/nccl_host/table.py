"""The table of docs/development/verification.md: scenarios, and the first cause that each is told as."""

from __future__ import annotations

from pathlib import Path

from .build import VERSIONS
from .scenarios import SCENARIOS
from .verdicts import of_folder

ROOT = Path(__file__).resolve().parents[3]
CORPUS = ROOT / "tests" / "corpus" / "nccl_host"
DOCUMENT = ROOT / "docs" / "development" / "verification.md"
BEGIN, END = "<!-- nccl: written by the rig -->", "<!-- end of nccl -->"


def text() -> str:
    """The table, in Markdown, from the verdicts on the corpus."""
    lines = [f"With NCCL {', '.join(VERSIONS)}:", "", "| scenario | first cause |", "|---|---|"]
    for scenario in SCENARIOS:
        cells = []
        for version in VERSIONS:
            told = of_folder(CORPUS / version / scenario.name)
            ranks = f" ({', '.join(map(str, told.ranks))})" if told.ranks and scenario.named else ""
            cells.append(f"{told.first or ('failed' if told.failed else 'healthy')}{ranks}")
        lines.append(f"| {scenario.what} | {' / '.join(dict.fromkeys(cells))} |")
    return "\n".join(lines) + "\n"


def in_document() -> str:
    """The table that stands there."""
    return DOCUMENT.read_text().partition(BEGIN)[2].partition(END)[0].strip() + "\n"


def write() -> None:
    """Write it anew."""
    before, begin, rest = DOCUMENT.read_text().partition(BEGIN)
    if not begin:
        raise SystemExit(f"{DOCUMENT} has lost its mark {BEGIN}")
    DOCUMENT.write_text(before + BEGIN + "\n\n" + text() + "\n" + END + rest.partition(END)[2])
