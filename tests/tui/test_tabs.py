"""The row of tabs: whole at every width, its digits and clicks where its words are."""

from __future__ import annotations

from each import for_each

from distui.tui.keys import ACTIONS, key_text
from distui.tui.rows.glyphs import row_width
from distui.tui.rows.tabs import TABS, tab_row


def text_of(pane: str, alarms: int, width: int) -> str:
    return "".join(text for text, _ in tab_row(pane, alarms, width)[0])


@for_each("width", [60, 80, 99, 100, 120, 200])
@for_each("alarms", [0, 3, 12])
def test_it_fits_and_every_digit_is_there(width: int, alarms: int) -> None:
    for tab in TABS:
        row, spans = tab_row(tab.pane, alarms, width)
        shown = text_of(tab.pane, alarms, width)
        assert row_width(row) <= width
        assert f"[{tab.key} {tab.title}" in shown
        assert shown.count("[") == shown.count("]") == 1
        assert [shown[span.first] for span in spans] == [*"1234567", "R", "^", "?"]
        assert (f"▲{alarms}" in shown) is bool(alarms)


@for_each("pane", [tab.pane for tab in TABS])
def test_all_names_are_there_from_80_columns(pane: str) -> None:
    shown = text_of(pane, 2, 80)
    assert all(tab.title in shown for tab in TABS)
    assert "Runs" in shown


def test_the_tabs_do_not_move_when_another_is_chosen() -> None:
    for width in (60, 80, 120):
        starts = {tuple(span.first for span in tab_row(tab.pane, 0, width)[1]) for tab in TABS}
        assert len(starts) == 1 or width == 60


def test_its_keys_are_those_of_the_table_or_the_users_own() -> None:
    keys = {action.id: action.key.partition(",")[0] for action in ACTIONS}
    assert [key_text(keys[tab.id]) for tab in TABS] == [tab.key for tab in TABS]
    assert "F4 Curves" in "".join(t for t, _ in tab_row("log", 0, 120, {"pane.curves": "F4"})[0])


def test_the_mark_of_the_findings_is_that_of_the_worst() -> None:
    assert "✖2" in "".join(text for text, _ in tab_row("log", 2, 120, severe=True)[0])
    assert "▲2" in "".join(text for text, _ in tab_row("log", 2, 120)[0])


def test_places_that_are_disabled_are_not_offered() -> None:
    row, spans = tab_row("log", 0, 120, hidden=("runs", "launch"))
    text = "".join(text for text, _ in row)
    assert text.rstrip().endswith("? Help")
    assert not [place for place in ("Runs", "New run") if place in text]
    assert [span.action for span in spans if span.action.startswith("app.")] == ["app.help"]
