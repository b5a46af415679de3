"""A Textual application without distui: eight panes whose numbers all change once a second, twice, under keys 1 and 2.

What the cockpit costs is compared with it, because no cockpit of Textual can cost less.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from textual.app import App, ComposeResult
from textual.containers import Grid
from textual.widgets import ContentSwitcher, Static

PANES = 8
ROWS = {40: 4, 60: 6}
"""Lines of a pane by the terminal's height."""
TITLE = "bare {}"
"""Text in each pane of a page; the cockpit's benchmark waits for it."""


class BareApp(App[None]):
    """Two pages of panes."""

    CSS = "Grid { grid-size: 2 4; } Static { border: round; }"
    BINDINGS = [("1", "page('1')"), ("2", "page('2')"), ("q", "quit")]

    def __init__(self) -> None:
        super().__init__()
        self.second = 0

    def compose(self) -> ComposeResult:
        """Return both pages; the first is shown."""
        with ContentSwitcher(initial="page-1"):
            for page in "12":
                yield Grid(
                    *(Static(self.text(page, pane), markup=False) for pane in range(PANES)),
                    id=f"page-{page}",
                )

    def text(self, page: str, pane: int) -> str:
        """Return the lines of a pane now."""
        rows = ROWS.get(self.size.height, 4)
        values = (f"value {row} {(self.second * 7 + pane * 13 + row * 29) % 1000:4}" for row in range(rows))
        return "\n".join([TITLE.format(page), *values])

    def on_mount(self) -> None:
        """Change the shown panes once a second."""
        self.set_interval(1.0, self.tick)

    def shown(self) -> Iterator[tuple[str, int, Static]]:
        """Yield page, number and widget of each pane that is shown."""
        page = self.query_one(ContentSwitcher).visible_content
        if page is not None and page.id is not None:
            for pane, widget in enumerate(page.query(Static)):
                yield page.id[-1], pane, widget

    def tick(self) -> None:
        """Write new numbers into the shown panes."""
        self.second += 1
        for page, pane, widget in self.shown():
            widget.update(self.text(page, pane))

    def action_page(self, page: str) -> None:
        """Show a page."""
        self.query_one(ContentSwitcher).current = f"page-{page}"


if __name__ == "__main__":
    sys.exit(BareApp().run())
