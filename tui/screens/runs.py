"""The list of runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding
from textual.message import Message
from textual.screen import Screen
from textual.widgets import Static

from ..keys import bindings
from ..rows.runs import EMPTY, RunEntry, head_row, run_row
from .panes import KeyFooter
from .rows_view import RowsView

REFRESH_S = 1.0
"""How often the list is read again while it is shown."""


class RunList(RowsView):
    """One row a run."""

    BINDINGS: ClassVar[list[Binding]] = [binding for binding in bindings("list") if binding.id == "zoom"]

    class Opened(Message):
        """The user wants to see a run."""

        def __init__(self, run: str) -> None:
            super().__init__()
            self.run = run

    def __init__(self) -> None:
        super().__init__(id="run-list", cursor=True)
        self._runs: list[RunEntry] = []

    def show(self, runs: list[RunEntry]) -> None:
        """Show these; the cursor stays on its run."""
        current = self._runs[self.cursor].id if self.cursor < len(self._runs) else None
        self._runs = runs
        self.has_cursor = bool(runs)
        if runs:
            self.set_rows([run_row(run) for run in runs], head_row())
            ids = [run.id for run in runs]
            self.cursor = ids.index(current) if current in ids else self.cursor
        else:
            self.set_rows(EMPTY)

    def action_zoom(self) -> None:
        if self._runs:
            self.post_message(self.Opened(self._runs[self.cursor].id))


class RunsScreen(Screen[None]):
    """All runs that are known here."""

    def __init__(self, runs: Callable[[], list[RunEntry]], ascii_only: bool = False) -> None:
        super().__init__()
        self._runs = runs
        self.list = RunList()
        self.list.ascii_only = ascii_only

    def compose(self) -> ComposeResult:
        yield Static(" distui · runs", id="title", markup=False)
        yield self.list
        yield KeyFooter(id="footer")

    def on_mount(self) -> None:
        self.list.show(self._runs())
        self.set_interval(REFRESH_S, self._refresh)
        self.list.focus()

    async def _refresh(self) -> None:
        if self.is_active:
            self.list.show(await asyncio.to_thread(self._runs))
