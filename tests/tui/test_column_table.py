"""docs/cockpit.md says what each column of the rank table and of the GPU table means.

With DISTUI_WRITE=1 its table is written anew.
"""

from __future__ import annotations

import os
from pathlib import Path

from distui.tui.rows.columns import GPU_COLUMNS, RANK_COLUMNS, Column

PAGE = Path(__file__).parents[2] / "docs" / "cockpit.md"
BEGIN, END = "<!-- columns: written by the tests -->\n", "<!-- end -->"


def rows(columns: tuple[Column, ...], table: str) -> list[str]:
    """The columns of one table, with the shared ones under the ranks."""
    shown = [column for column in columns if table == "ranks" or not column.is_shared]
    tables = {column.id: "ranks, GPUs" if column.is_shared else table for column in shown}
    return [f"| `{column.title}` | {tables[column.id]} | {column.about} |" for column in shown]


def test_the_page_has_every_column() -> None:
    lines = [
        "| column | of | means |",
        "|---|---|---|",
        *rows(RANK_COLUMNS, "ranks"),
        *rows(GPU_COLUMNS, "GPUs"),
    ]
    head, _, rest = PAGE.read_text().partition(BEGIN)
    wanted = "\n".join([f"{head}{BEGIN}{lines[0]}", *lines[1:], f"{END}{rest.partition(END)[2]}"])
    if os.environ.get("DISTUI_WRITE"):
        PAGE.write_text(wanted)
    assert PAGE.read_text() == wanted, "write it anew: DISTUI_WRITE=1 pytest tests/tui/test_column_table.py"
