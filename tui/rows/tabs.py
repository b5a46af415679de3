"""The row of tabs: the panes of a run with their keys, and the screens outside a run. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from msgspec import Struct, field

from . import glyphs
from .glyphs import Row, row_width


class Tab(Struct, frozen=True):
    pane: str
    """Name of the pane in `ViewOptions.pane`."""
    id: str
    """Id of its action in `keys.py`."""
    key: str
    title: str


TABS: tuple[Tab, ...] = (
    Tab("overview", "pane.overview", "1", "Overview"),
    Tab("ranks", "pane.ranks", "2", "Ranks"),
    Tab("log", "pane.log", "3", "Logs"),
    Tab("curves", "pane.curves", "4", "Curves"),
    Tab("nccl", "pane.nccl", "5", "NCCL"),
    Tab("findings", "diagnose", "6", "Findings"),
    Tab("events", "pane.events", "7", "Events"),
)
"""Ordered by their keys."""

PLACES = (("runs", "R", "Runs"), ("launch", "^n", "New run"), ("help", "?", "Help"))
"""Action id, key and word of the places at the right end."""


class ClickArea(Struct, frozen=True):
    """Columns of a row that react to a click, the last one excluded."""

    first: int
    after: int
    action: str
    """Textual action, with its namespace."""


class ClickableRow(Struct):
    """A row that is built from left to right."""

    cells: list[tuple[str, str]] = field(default_factory=list)
    spans: list[ClickArea] = field(default_factory=list)
    width: int = 0

    def add(self, *cells: tuple[str, str], action: str = "") -> None:
        """Append cells, which form one click area if they have an action."""
        start = self.width
        self.cells += cells
        self.width += row_width(cells)
        if action:
            self.spans.append(ClickArea(start, self.width, action))


_FORMS = ((" ", True, 3), ("", True, 3), ("", True, 1), ("", True, 0), ("", False, 0))
"""Wide to narrow: extra blanks between tabs, whether all tabs have names, and how many places have names."""


def tab_row(
    pane: str,
    alarms: int,
    width: int,
    keys: Mapping[str, str] | None = None,
    severe: bool = False,
    hidden: Collection[str] = (),
) -> tuple[Row, list[ClickArea]]:
    """Return the row in `width` columns, and its click areas.

    The current pane is in brackets. On a narrow terminal the names of the places are dropped first, then those of the
    other panes; the keys stay. `alarms` is the number of findings, `severe` whether one of them is an error. `keys` maps
    action ids to the user's own keys. `hidden` are action ids of places that are disabled.
    """
    for gap, named, places in _FORMS:
        row = _tabs(
            pane, alarms, gap, named, keys or {}, (glyphs.BAD, "bad") if severe else (glyphs.WARN, "warn")
        )
        ends = _places(places, keys or {}, hidden)
        room = width - row.width - ends.width
        if room >= 1:
            break
    row.add((" " * max(1, room), "text"))
    moved = [ClickArea(each.first + row.width, each.after + row.width, each.action) for each in ends.spans]
    return (*row.cells, *ends.cells), row.spans + moved


def _tabs(
    pane: str, alarms: int, gap: str, named: bool, keys: Mapping[str, str], mark: tuple[str, str]
) -> ClickableRow:
    row = ClickableRow()
    before = False
    for tab in TABS:
        current = tab.pane == pane
        row.add((_opening(gap, current, before, first=not row.width), "tab"))
        style = "tab" if current else "text"
        name = f" {tab.title}" if named or current else ""
        count = f" {mark[0]}{alarms}" if tab.pane == "findings" and alarms else ""
        key = (keys.get(tab.id, tab.key), "tab" if current else "key")
        row.add(key, (name, style), (count, mark[1]), action=f"screen.pane('{tab.pane}')")
        before = current
    row.add(("]" if before else " ", "tab"))
    return row


def _opening(gap: str, current: bool, after_current: bool, first: bool) -> str:
    """Return the text before a tab. Without a gap, one column separates two tabs: a bracket takes it."""
    if first:
        return "[" if current else " "
    if current:
        return f" {gap}[" if gap else "["
    closing = "]" if after_current else " "
    return f"{closing}{gap} " if gap else closing


def _places(named: int, keys: Mapping[str, str], hidden: Collection[str]) -> ClickableRow:
    row = ClickableRow()
    shown = [place for place in PLACES if place[0] not in hidden]
    for at, (id, key, word) in enumerate(shown):
        text = f" {word}" if at < named else ""
        row.add((keys.get(id, key), "key"), (text, "dim"), action=f"app.{id}")
        row.add(("  " if named > 1 and at < len(shown) - 1 else " ", "text"))
    return row
