"""The tables of docs/compatibility.md are those that the matrix saw, and the package claims no other Python."""

from __future__ import annotations

import tomllib
from pathlib import Path

from matrix import rows, table

ROOT = Path(__file__).parents[1]


def test_the_tables_are_what_was_seen() -> None:
    assert table.in_document() == table.text(table.recorded()).strip() + "\n"
    assert set(table.recorded()) <= {row.name for row in rows.ROWS}


def test_the_classifiers_name_the_pythons_that_ran() -> None:
    seen = table.recorded()
    ran = [row.python for row in rows.ROWS if row.holds_distui and not seen[row.name]["missing"]]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    classifiers = [each.partition(":: Python :: ")[2] for each in project["classifiers"]]
    assert list(filter(None, classifiers)) == ran
