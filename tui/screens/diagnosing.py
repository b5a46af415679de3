"""What a run's screen does with findings and statements: open their lines in the log, ask where the ranks are."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from textual import on
from textual.screen import Screen
from textual.timer import Timer

from ...runners.logs.clean import clean_text
from ...runners.model import Dump
from ...runners.wire.client import new_id
from ...runners.wire.link import LinkError
from ..rows.cells import Row, wrap
from ..rows.log import Selection, named
from ..widgets.diagnosis import Diagnosis, FindingList
from ..widgets.log_view import LogView
from ..widgets.nccl_board import NcclBoard, Said

if TYPE_CHECKING:
    from ..app import CockpitApp

_AT = re.compile(r"(?P<file>\S+):(?P<line>\d+): (?P<text>.*)", re.DOTALL)
"""Evidence that is a line of a log."""
_SPECIAL = re.compile(r"[\\.^$*+?{}\[\]|()]")
_LONGEST = 160
"""Characters of a line by which it is found again."""

PATIENCE_S = 0.5
"""How long an answer may take before somebody wonders whether the key was heard."""


def pattern_of(text: str) -> str:
    """A regular expression that finds this line; of a line of NCCL's the message alone."""
    message = text.partition(" NCCL ")[2] or text
    return _SPECIAL.sub(r"\\\g<0>", message.strip()[:_LONGEST])


class DiagnosingScreen(Screen[None]):
    """The part of the run screen that belongs to the findings and to the NCCL screen."""

    app: CockpitApp
    log_view: LogView
    diagnosis: Diagnosis
    nccl: NcclBoard
    _from: tuple[str, Selection] | None = None
    """The pane from which a line was opened, and what the log showed before."""

    # --- from a finding to the log

    @on(FindingList.Zoomed)
    def _zoom_finding(self, event: FindingList.Zoomed) -> None:
        """The line that is its evidence; else the log of its first rank."""
        for one in event.item.findings:
            for line in one.evidence:
                found = _AT.fullmatch(clean_text(line))
                if found is not None and named(found["file"]) is not None:
                    self.open_line(found["file"], int(found["line"]), found["text"])
                    return
        ranks = event.item.ranks
        if ranks:
            self._open_log(Selection(rank=ranks[0]))
        else:
            self.notify("this finding names no rank and no line: what is known of it stands below")

    @on(Said.Opened)
    def _open_statement(self, event: Said.Opened) -> None:
        if event.line is None:
            self.notify("no single line says this")
        else:
            self.open_line(event.line.file, event.line.line, event.line.text)

    def open_line(self, file: str, line: int, text: str) -> None:
        """Show a line where it stands; of a file that is not of this attempt, the line alone."""
        known = named(file)
        state = self.app.follower.state if self.app.follower is not None else None
        current = state is not None and known is not None and known.attempt in (None, state.attempt)
        if known is None or known.rank is None or not current:
            self._show_text(f"{file}, line {line}", wrap(clean_text(text), 80))
            return
        self._open_log(
            Selection(rank=known.rank, stream=known.stream, pattern=pattern_of(clean_text(text)))
        )

    def _open_log(self, selection: Selection) -> None:
        self._from = (self.app.view.pane, self.log_view.selection)
        self.log_view.select(selection)
        self.log_view.set_follow(True)
        self.app.look(pane="log")
        self.call_after_refresh(self.log_view.focus)

    def went_back(self) -> bool:
        """From a line that was opened here to where it was opened; False when none was."""
        if self._from is None or self.app.view.pane != "log":
            self._from = None
            return False
        (pane, before), self._from = self._from, None
        self.log_view.select(before)
        self.log_view.set_follow(True)
        self.show_pane(pane)
        return True

    def show_pane(self, pane: str) -> None:
        """Put a pane in front."""
        raise NotImplementedError

    # --- the NCCL screen

    def action_communicator(self, step: int) -> None:
        self.nccl.choose(step)

    # --- where the ranks are

    def action_stacks(self) -> None:
        """Ask the marked ranks, or all, for their stacks, and show equal ones together."""
        state = self.app.follower.state if self.app.follower is not None else None
        if state is None or state.phase.ended:
            self.notify("the run has ended: there are no ranks to ask")
            return
        marked = tuple(sorted(self.app.view.marked & set(state.ranks)))
        who = "the marked ranks" if marked else "every rank"
        late = self.set_timer(PATIENCE_S, lambda: self.notify(f"asking {who} for stacks", timeout=2))
        self.run_worker(self._ask_stacks(marked, late), group="stacks", exclusive=True)

    async def _ask_stacks(self, ranks: tuple[int, ...], late: Timer) -> None:
        follower = self.app.follower
        if follower is None:
            return
        try:
            done = await follower.send(Dump(new_id(), "stacks", ranks))
        except LinkError as error:
            self.notify(str(error), severity="error", markup=False)
            return
        finally:
            late.stop()
        if not done.data:
            self.notify(done.text, severity="information" if done.ok else "error", markup=False)
            return
        from ..rows.stacks import stack_rows, stack_title

        self._show_text(stack_title(done.data), stack_rows(done.data))

    def _show_text(self, title: str, rows: list[Row]) -> None:
        from .modal import TextScreen

        self.app.push_screen(TextScreen(title, rows, self.app.view.ascii))
