"""Rows of panes straight to the terminal.

Textual paints by widget, through a message and a timer for each and a composition of all that overlaps: most of
what a cockpit costs that changes thirty rows a second. Rows of a pane that nothing can stand in front of need none
of it: where they are is known, and what they look like is what Textual would have written. Everything else, and
every doubt, is left to Textual.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from textual.geometry import Region

if TYPE_CHECKING:
    from .app import CockpitApp
    from .widgets.rows_view import RowsView


class Brush:
    """Collects lines of panes and writes them in one piece."""

    def __init__(self, app: CockpitApp) -> None:
        self._app = app
        self._lines: dict[RowsView, set[int]] = {}

    def take(self, pane: RowsView, lines: Iterable[int]) -> bool:
        """These lines of the pane, counted from its top, are to be painted; False when Textual has to do it."""
        if not self._reaches(pane):
            return False
        self._lines.setdefault(pane, set()).update(lines)
        if not self._app.pacer.held:
            self.flush()
        return True

    @property
    def wet(self) -> bool:
        """Whether something is still to be written."""
        return bool(self._lines)

    def flush(self, after: str = "") -> None:
        """Write what was collected, and `after` it."""
        if not self._lines:
            return
        taken, self._lines = self._lines, {}
        pieces: list[str] = []
        for pane, lines in taken.items():
            if self._reaches(pane):
                pieces += self._sequences(pane, sorted(lines))
            else:
                pane.leave_to_textual(lines)
        x, y = self._app.cursor_position
        self._app.write("".join([*pieces, f"\x1b[{y + 1};{x + 1}H", after]))

    def _sequences(self, pane: RowsView, lines: list[int]) -> list[str]:
        left, top = pane.content_region.offset
        console = self._app.console
        return [
            f"\x1b[{top + y + 1};{left + 1}H{strip.render(console)}"
            for y, strip in zip(lines, pane.drawn(lines), strict=True)
        ]

    def _reaches(self, pane: RowsView) -> bool:
        """Whether the terminal is ours, and no dialog, notification or change of the layout is in the way."""
        app = self._app
        if not (app.pacer.active and app.is_running and app.return_code is None):
            return False
        # Private names of Textual's: a version that has others is a doubt, too.
        if getattr(app, "_batch_count", 1) or getattr(app, "_notifications", True):
            return False
        if app.screen is not pane.screen or not pane.display or pane.retitled:
            return False
        region: Region = pane.region
        return bool(region) and app.screen.region.contains_region(region)
