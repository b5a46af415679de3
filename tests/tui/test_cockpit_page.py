"""docs/cockpit.md has every key, and says what each column of the rank table and of the GPU table means.

With DISTUI_WRITE=1 its tables are written anew.
"""

from __future__ import annotations

import os
from pathlib import Path

from distui.tui.keys import ACTIONS, PANES, SCOPES, Action, key_text
from distui.tui.rows.columns import GPU_COLUMNS, RANK_COLUMNS, Column

PAGE = Path(__file__).parents[2] / "docs" / "cockpit.md"
END = "<!-- end -->"


def check(name: str, lines: list[str]) -> None:
    """Compare a table of the page, or write it anew."""
    begin = f"<!-- {name}: written by the tests -->\n"
    head, _, rest = PAGE.read_text().partition(begin)
    wanted = "\n".join([f"{head}{begin}{lines[0]}", *lines[1:], f"{END}{rest.partition(END)[2]}"])
    if os.environ.get("DISTUI_WRITE"):
        PAGE.write_text(wanted)
    assert PAGE.read_text() == wanted, "write it anew: DISTUI_WRITE=1 pytest tests/tui/test_cockpit_page.py"


def rows(columns: tuple[Column, ...], table: str) -> list[str]:
    """The columns of one table, with the shared ones under the ranks."""
    shown = [column for column in columns if table == "ranks" or not column.is_shared]
    tables = {column.id: "ranks, GPUs" if column.is_shared else table for column in shown}
    return [f"| `{column.title}` | {tables[column.id]} | {column.about} |" for column in shown]


def test_the_page_has_every_column() -> None:
    head = ["| column | of | means |", "|---|---|---|"]
    check("columns", [*head, *rows(RANK_COLUMNS, "ranks"), *rows(GPU_COLUMNS, "GPUs")])


def row_of(action: Action) -> str:
    keys = " ".join(f"`{key}`" for key in key_text(action.key).split())
    where = ", ".join(PANES[pane] for pane in action.panes) or SCOPES[action.scope]
    return f"| {where} | {keys} | {action.text} | `{action.id}` |"


def test_the_page_has_every_key() -> None:
    head = ["| where | key | does | id |", "|---|---|---|---|"]
    check(
        "keys",
        [*head, *(row_of(action) for scope in SCOPES for action in ACTIONS if action.scope == scope)],
    )
