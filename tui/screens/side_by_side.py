"""Comparison of two runs in the cockpit: their curves and their differences."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import ClassVar

from textual.binding import Binding
from textual.geometry import Size
from textual.widgets import Static

from ...presets.sanitize import clean_text
from ...runners.comparison.account import Account
from ...runners.comparison.differences import Comparison, compare
from ...runners.comparison.loading import load
from ...runners.run.errors import RunError
from ..background import keep_running
from ..rows.compared_curves import charts
from ..rows.comparison import comparison_rows, head_rows
from ..rows.glyphs import Row, key_row, wrap
from ..rows.plot import Mode
from .modal import RowsModal

AGAIN_S = 10.0
"""Seconds between two reads of both runs while either is live."""
_KEYS = key_row(
    ("c", " curves/differences   "),
    ("x", " time/step   "),
    ("a", " all/only differences   "),
    ("esc", " close   "),
    ("j k g G", " scroll"),
)


class ComparisonScreen(RowsModal[None]):
    """Curves of both runs on one axis, or the rows of `distui diff`."""

    WIDEST: ClassVar[int] = 1000
    BINDINGS: ClassVar[list[Binding]] = [  # type: ignore[assignment]
        Binding("escape,q", "dismiss", "close", id="comparison.close"),
        Binding("c,tab", "turn", "switch between curves and differences", id="comparison.turn"),
        Binding("x", "axis", "switch between time and step", id="comparison.axis"),
        Binding("a", "everything", "switch between all rows and only differences", id="comparison.all"),
    ]

    def __init__(self, a: str, b: str, title: str) -> None:
        """Create the screen; `a` and `b` are names for `distui diff`, `title` is the label of A."""
        super().__init__(f"{clean_text(title)} and {clean_text(b)}", (), _KEYS)
        self._names = (a, b)
        self._sides: tuple[Account, Account] | None = None
        self._compared: Comparison | None = None
        self._problem = ""
        self.curves, self.by_step, self.everything = True, False, False

    def on_mount(self) -> None:
        keep_running(self, "comparison", self._read)

    async def _read(self) -> None:
        """Read both runs, repeatedly while one of them is live."""
        while self._sides is None or any(side.live for side in self._sides):
            await self._load()
            await asyncio.sleep(AGAIN_S)

    async def _load(self) -> None:
        """Load both runs in a thread: reads files, and may query other hosts."""
        try:
            self._sides = await asyncio.to_thread(lambda: asyncio.run(_both(self._names)))
            self._problem = ""
        except RunError as error:
            self._problem = str(error)
        self._compare()

    def _compare(self) -> None:
        if self._sides is not None:
            titles = " and ".join(side.title for side in self._sides)
            self.query_one("#modal-title", Static).update(clean_text(titles))
            self._compared = compare(*self._sides, everything=self.everything)
        if self.size.width:
            self.fit_into(self.size)

    def fit_into(self, size: Size) -> None:
        width, height = self.room(size)
        self._answer_rows = self._rows(width, height - self.taken())
        super().fit_into(size)

    def _rows(self, width: int, height: int) -> Sequence[Row]:
        problem: list[Row] = []
        if self._problem:
            problem = wrap(clean_text(self._problem), width, "bad")
        if self._compared is None:
            return problem or wrap("reading both …", width, "stale")
        if not self.curves:
            return [*problem, *comparison_rows(self._compared, width, self.everything)]
        mode = Mode.ASCII if self.view.ascii_only else Mode.BRAILLE
        head = [*problem, *head_rows(self._compared, width)]
        drawn = charts(self._compared.a, self._compared.b, self.by_step, mode, width, height - len(head))
        return [*head, *drawn]

    def action_turn(self) -> None:
        """Toggle between curves and differences."""
        self.curves = not self.curves
        self.view.action_end(bottom=False)
        self.fit_into(self.size)

    def action_axis(self) -> None:
        """Toggle between the time since each start and the step."""
        self.curves, self.by_step = True, not self.by_step
        self.fit_into(self.size)

    def action_everything(self) -> None:
        """Show or hide equal rows."""
        self.curves, self.everything = False, not self.everything
        self.view.action_end(bottom=False)
        self._compare()


async def _both(names: tuple[str, str]) -> tuple[Account, Account]:
    a, b = await asyncio.gather(*map(load, names))
    return a, b
