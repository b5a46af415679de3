"""The launch screen's list of nodes that SkyPilot would take: asked for beside, never waited for."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding
from textual.message import Message

from ..actions import bindings
from ..follow import LaunchError, LaunchForm
from ..rows import glyphs
from ..rows.candidates import candidate_rows, head_row
from ..rows.cells import Row, wrap
from .rows_view import RowsView

if TYPE_CHECKING:
    from ...runners.hub.candidates import Candidate

STILL_S = 0.8
"""How long the form must be still before SkyPilot is asked: asking costs a process and seconds."""

_LEAST = 6
"""Rows of the list with its frame, however low the terminal is."""

Ask = Callable[[LaunchForm], Awaitable["list[Candidate]"]]


class Candidates(RowsView):
    """One row a kind of nodes; Enter takes its place into the form."""

    BINDINGS: ClassVar[list[Binding]] = [one for one in bindings("list") if one.id == "zoom"]

    class Taken(Message):
        """The user wants nodes there."""

        def __init__(self, infra: str) -> None:
            super().__init__()
            self.infra = infra

    def __init__(self, ask: Ask) -> None:
        super().__init__(id="candidates", cursor=True)
        self._ask = ask
        self._asked: tuple[str, str, str, str] | None = None
        self._found: list[Candidate] = []

    def look(self, form: LaunchForm) -> None:
        """Ask for these nodes, unless they were asked for last."""
        wanted = (form.place, form.nodes, form.gpus, form.cpus)
        if wanted != self._asked:
            self._asked = wanted
            self.run_worker(self._look(form), group="candidates", exclusive=True)

    def leave(self) -> None:
        """The form is for no nodes of SkyPilot's any more."""
        self._asked = None
        self.workers.cancel_group(self, "candidates")

    async def _look(self, form: LaunchForm) -> None:
        self._show([], "asking SkyPilot …", "dim")
        await asyncio.sleep(STILL_S)
        try:
            found = await self._ask(form)
        except LaunchError as error:
            self._show([], f"{glyphs.BAD} {error}", "text")
            return
        self._show(found, "SkyPilot knows no such nodes on what is enabled: `sky check` shows that", "warn")

    def _show(self, found: list[Candidate], otherwise: str, style: str) -> None:
        self._found, self.has_cursor = found, bool(found)
        words: list[Row] = wrap(otherwise, self.size.width - 1, style, first=" ")
        rows = candidate_rows(found) or words
        most = max(_LEAST, self.screen.size.height // 4)
        self.styles.height = min(len(rows) + bool(found) + 2, most)
        self.set_rows(rows, head_row() if found else None)
        self.refresh()

    def action_zoom(self) -> None:
        if self._found:
            self.post_message(self.Taken(self._found[self.cursor].infra))
