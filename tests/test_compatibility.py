"""The tables of docs/compatibility.md are those that the matrix saw."""

from __future__ import annotations

from matrix import rows, table


def test_the_tables_are_what_was_seen() -> None:
    assert table.in_document() == table.text(table.recorded()).strip() + "\n"
    assert set(table.recorded()) <= {row.name for row in rows.ROWS}
