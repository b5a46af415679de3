"""docs/development/benchmarks.md: the table between two marks; the words around it are written by hand."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from . import machine
from .figures import Row, markdown

PATH = Path(__file__).parents[2] / "docs" / "development" / "benchmarks.md"
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"


def write(rows: Sequence[Row], command: str, state: str) -> None:
    """Replace what stands between the marks."""
    text = PATH.read_text()
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    day = time.strftime("%Y-%m-%d")
    about = f"{day}, `{command}`, on {machine.describe()}. State of the machine {state}."
    PATH.write_text(f"{before}{BEGIN}\n{about}\n\n{markdown(rows)}{END}{after}")
