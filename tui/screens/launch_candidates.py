"""The nodes that SkyPilot would take, next to the launch form."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding
from textual.message import Message

from ...runners.launch.launch_form import LaunchForm
from ...runners.run.errors import LaunchError
from ..background import background, stop
from ..keys import bindings
from ..rows import glyphs
from ..rows.candidates import candidate_rows, head_row
from ..rows.glyphs import Row, wrap
from .cockpit import Cockpit
from .rows_view import RowsView

if TYPE_CHECKING:
    from ...runners.hub.sky_process import Candidate

STILL_S = 0.8
"""Seconds without a change of the form before SkyPilot is queried, which costs a process and seconds."""

_LEAST = 6
"""Minimum rows of the list with its frame."""


class Candidates(RowsView):
    """One row per kind of nodes; Enter copies its place into the form."""

    app: Cockpit
    BINDINGS: ClassVar[list[Binding]] = [binding for binding in bindings("list") if binding.id == "zoom"]

    @dataclass
    class Taken(Message):
        """The user wants nodes there."""

        infra: str

    def __init__(self) -> None:
        super().__init__(id="candidates", cursor=True)
        self._asked: tuple[str, str, str, str] | None = None
        self._candidates: list[Candidate] = []

    def request(self, form: LaunchForm) -> None:
        """Request these nodes, unless they were the last request."""
        wanted = (form.place, form.option("nnodes"), form.option("gpus"), form.option("cpus"))
        if wanted != self._asked:
            self._asked = wanted
            background(self, "candidates", self._fetch(form), exclusive=True)

    def leave(self) -> None:
        """Forget the last request, since the form no longer uses SkyPilot."""
        self._asked = None
        stop(self, "candidates")

    async def _fetch(self, form: LaunchForm) -> None:
        self._show([], "asking SkyPilot …", "dim")
        await asyncio.sleep(STILL_S)
        try:
            nodes = await self.app.source.candidates(form)
        except LaunchError as error:
            self._show([], f"{glyphs.BAD} {error}", "text")
            return
        self._show(nodes, "SkyPilot knows no such nodes on what is enabled: `sky check` shows that", "warn")

    def _show(self, nodes: list[Candidate], otherwise: str, style: str) -> None:
        self._candidates, self.has_cursor = nodes, bool(nodes)
        words: list[Row] = wrap(otherwise, self.size.width - 1, style, first=" ")
        rows = candidate_rows(nodes) or words
        most = max(_LEAST, self.screen.size.height // 4)
        self.styles.height = min(len(rows) + bool(nodes) + 2, most)
        self.set_rows(rows, head_row() if nodes else None)
        self.refresh()

    def action_zoom(self) -> None:
        if self._candidates:
            self.post_message(self.Taken(self._candidates[self.cursor].infra))
