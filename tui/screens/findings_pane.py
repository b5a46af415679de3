"""The findings of a run as cards, and the data that they are based on."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from textual.binding import Binding
from textual.events import Click
from textual.message import Message
from textual.signal import Signal

from ...presets.plurals import plural
from ...runners.diagnosis.remedy_commands import command_of
from ..keys import bindings
from ..lending import copy
from ..rows.attempts import end_rows
from ..rows.finding_card import Card, card
from ..rows.findings import Item, alarms, coverage_rows, items, no_findings
from ..rows.frame import Frame
from ..rows.glyphs import Row
from ..rows.pane_filters import FINDINGS, filter_note
from ..rows.remedy import remedy_text
from .panes import Pane


class FindingCards(Pane):
    """One card per finding, or per kind of findings; the cursor moves from card to card."""

    BINDINGS: ClassVar[list[Binding]] = bindings("findings")  # type: ignore[assignment]

    @dataclass
    class Zoomed(Message):
        """The user wants the log of a finding."""

        item: Item

    def __init__(self, frames: Signal[Frame]) -> None:
        super().__init__(frames, id="findings", cursor=True)
        self.keys: Mapping[str, str] = {}
        """The user's own keys by action id."""
        self._cards: list[Card] = []
        self._tops: list[int] = []
        """Index of each card's first row."""
        self._unfolded: set[str] = set()
        """Keys of the items whose evidence is shown."""

    # --- content

    def build(self, frame: Frame, width: int) -> Sequence[Row]:
        key = self.current.key if self.current is not None else ""
        known = items(frame.state.findings.values())
        found = FINDINGS.fitting(known, frame.view.finding_filter)
        room = max(20, width - 2)
        self._cards = [card(frame, item, room, item.key in self._unfolded, self.keys) for item in found]
        note = filter_note(frame, "findings", len(found), len(known))
        self.entitle(f"findings · {plural(len(alarms(frame.state)), 'alarm')}{note}")
        rows: list[Row] = []
        self._tops = []
        for each in self._cards:
            self._tops.append(len(rows))
            rows += [*each.rows, ()]
        if known and not found:
            rows += [(("no finding matches: esc removes the filter", "dim"),), ()]
        elif not found:
            rows += [((no_findings(frame.state), "text"),), ()]
        self._keep_cursor(key)
        return [*rows, *_below(frame, room, bool(known))]

    def _keep_cursor(self, key: str) -> None:
        """Leave the cursor on its finding while cards come, go and change their height."""
        keys = [each.item.key for each in self._cards]
        if key in keys:
            self.cursor = self._tops[keys.index(key)]
        elif self._cards:
            self.cursor = self._tops[self._card_at(self.cursor)]

    def _card_at(self, row: int) -> int:
        """Return the index of the card with a row; rows below the cards belong to the last one."""
        return max(0, bisect_right(self._tops, row) - 1)

    @property
    def current(self) -> Item | None:
        return self._cards[self._card_at(self.cursor)].item if self._cards else None

    # --- moving

    def action_cursor(self, by: int) -> None:
        """Move to the next card, or scroll in a card that is higher than the pane."""
        if not self._cards:
            self.scroll_relative(y=by, animate=False, immediate=True)
            return
        at = self._card_at(self.cursor)
        top = self.scroll_offset.y
        below = by > 0 and self._end(at) > top + self.shown
        above = by < 0 and self._tops[at] < top
        if below or above or not 0 <= at + by < len(self._cards):
            self.scroll_relative(y=by, animate=False, immediate=True)
        else:
            self._show_card(at + by)

    def action_page(self, by: int) -> None:
        self.move_to(self.cursor + by * max(1, self.shown - 1))

    def move_to(self, index: int) -> None:
        if self._cards:
            self._show_card(self._card_at(index))

    def _show_card(self, at: int) -> None:
        """Move the cursor to a card, and scroll to all of its rows if they fit."""
        top = self._tops[at]
        super().move_to(top)
        end = self._end(at)
        if end > self.scroll_offset.y + self.shown:
            self._scroll_row(min(top, end - self.shown))

    def _end(self, at: int) -> int:
        """Return the row after a card; after the last one the end of the pane."""
        return self._tops[at + 1] - 1 if at + 1 < len(self._tops) else len(self.rows)

    # --- acting

    def on_click(self, event: Click) -> None:
        """Press the key that was clicked; elsewhere select the card."""
        super().on_click(event)
        inside = event.get_content_offset(self)
        if inside is None or not self._cards:
            return
        at = self._card_at(self.cursor)
        shown = self._cards[at]
        if inside.y + self.scroll_offset.y != self._tops[at] + shown.keys_at:
            return
        for span in shown.spans:
            if span.first <= inside.x - 1 < span.after:  # the cursor has the first column
                self.call_later(self.run_action, span.action)

    def action_zoom(self) -> None:
        if self.current is not None:
            self.post_message(self.Zoomed(self.current))

    def action_unfold(self) -> None:
        """Show the evidence of a finding, or fold it."""
        if self.current is not None:
            self._unfolded ^= {self.current.key}
            self.again()

    def action_copy(self) -> None:
        """Copy the command of the remedy; its sentence if it has none, or that of the finding."""
        if self.current is not None:
            finding = self.current.first
            copy(self.app, command_of(finding.remedy) or remedy_text(finding) or finding.text)


def _below(frame: Frame, width: int, found: bool) -> list[Row]:
    """Return the rows below the cards: the data of verdicts, or how a run without findings ended."""
    if found or not frame.state.phase.ended:
        return coverage_rows(frame.state)
    hint = f"its logs may show more: distui diagnose {frame.state.name}"
    return [*end_rows(frame, width), (), ((f" {hint}", "dim"),)]
