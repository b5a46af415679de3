"""The question that starts an ended run again, with what differs from its launch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.binding import Binding

from ...presets.sanitize import clean_text
from ...runners.run.errors import LaunchError
from ..background import background
from ..rows.glyphs import Row, key_row
from ..rows.rerun import changes_rows, refused_rows
from .cockpit import Cockpit
from .modal import RowsModal
from .starting import start_and_open

PLANNING: Row = (("planning the launch, to compare it with the run …", "dim"),)


class RerunScreen(RowsModal[str]):
    """Shows what `distui rerun` would change. Returns "y" to start, "e" to edit first, or ""."""

    app: Cockpit
    BINDINGS: ClassVar[list[Binding]] = [  # type: ignore[assignment]
        Binding("y", "dismiss('y')", "start", id="rerun.yes"),
        Binding("e", "dismiss('e')", "edit", id="rerun.edit"),
        Binding("enter,escape,n,q", "dismiss('')", "cancel", id="rerun.cancel"),
    ]

    def __init__(self, run: str, name: str) -> None:
        keys = key_row(("y", " start   "), ("e", " edit in the launch form   "), ("Enter", " cancel"))
        super().__init__(clean_text(f"Run {name} again?"), [PLANNING], keys)
        self._run = run

    def on_mount(self) -> None:
        background(self, "compare", self._compare())

    async def _compare(self) -> None:
        try:
            changes = await self.app.source.rerun_changes(self._run)
        except LaunchError as error:
            self._show(refused_rows(str(error)))
        else:
            self._show(changes_rows(changes))

    def _show(self, rows: Sequence[Row]) -> None:
        self._answer_rows = rows
        self.fit_into(self.size)


def ask_rerun(app: Cockpit, run: str, name: str) -> None:
    """Ask whether to start an ended run again, and do what the user answers."""

    def answered(answer: str | None) -> None:
        if answer == "y":
            background(app, "launch", start_and_open(app, app.source.rerun(run)), exclusive=True)
        elif answer == "e":
            app.open_form(run)

    app.push_screen(RerunScreen(run, name), answered)
