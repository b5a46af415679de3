"""Opens the log from other panes: the log of a rank, or the line that something is based on."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from ...presets.sanitize import clean_text
from ...runners.run.formatting import spans_text
from ...runners.run.state import Attempt, RunState
from ..background import background
from ..evidence_line import Source, find_line, source_of_failure, source_of_findings, source_of_line
from ..open_run import OpenRun
from ..rows.findings import Item
from ..rows.glyphs import wrap
from ..rows.log import Selection
from .cockpit import Cockpit
from .log_view import LogLead, LogView
from .modal import TextScreen


class LogOpener:
    """Shows a part of the log, and remembers where the user came from."""

    def __init__(
        self, app: Cockpit, run: OpenRun, log: LogView, lead: LogLead, show_pane: Callable[[str], None]
    ) -> None:
        """Create it; `show_pane` shows a pane and gives it the focus."""
        self._app, self._run, self._log, self._lead, self._show_pane = app, run, log, lead, show_pane
        self._before: tuple[str, Selection] | None = None
        """The pane and the selection to restore."""

    def open_rank(self, rank: int) -> None:
        """Show the log of one rank on the whole screen."""
        ranks = self._run.state.ranks
        if rank not in ranks:
            self._app.notify(f"no rank {rank}: there are {spans_text('rank', ranks)}", severity="error")
            return
        self._lead.chosen()
        self._open(replace(self._log.selection, rank=rank))

    def zoom_rank(self, rank: int) -> None:
        """Show the log of one rank where the log is visible, else on the whole screen."""
        self._lead.chosen()
        self._select(replace(self._log.selection, rank=rank))
        if not self._log.display:
            self._app.change_view(pane="log")
        self._log.call_after_refresh(self._log.focus)

    def zoom_line(self) -> None:
        """Show the log on the whole screen; there, show the log of the rank that wrote the line."""
        if self._app.view.pane != "log":
            self._before = None
            self._show_pane("log")
        elif not self._log.to_own_log():
            self._app.notify("only one rank's log: esc shows all ranks", timeout=2)
        self._log.call_after_refresh(self._log.focus)

    def open_finding(self, item: Item) -> None:
        """Open the log line that the findings are based on, or else the log of their first rank."""
        source = source_of_findings(self._state, item.findings, item.ranks)
        if source is None:
            self._app.notify("this finding names no rank and no line of a log")
            return
        background(self._log, "line", self._open_source(source), exclusive=True)

    def open_failure(self, attempt: Attempt) -> None:
        """Open the log line that raised in an attempt."""
        source = source_of_failure(self._state, attempt)
        if source is not None:
            background(self._log, "line", self._open_source(source), exclusive=True)

    def open_line(self, file: str, line: int, text: str) -> None:
        """Show a line in its log; if the log pane has no such file, show only the line."""
        source = source_of_line(self._state, file, text)
        if source is None:
            self._app.push_screen(TextScreen(f"{file}, line {line}", wrap(clean_text(text), 80)))
            return
        background(self._log, "line", self._open_source(source), exclusive=True)

    @property
    def _state(self) -> RunState:
        """The shown state, which may be of the past."""
        frame = self._log.frame
        return self._run.state if frame is None else frame.state

    async def _open_source(self, source: Source) -> None:
        """Show the line in its log, between the lines of all its neighbours."""
        line = None
        with self._app.refusals("reading the log"):
            line = await find_line(self._run.follower.read_log, self._state, source)
        self._lead.chosen()
        self._open(source.selection)
        if line is not None:
            self._log.feed.go_to_line(line)
        elif source.at:
            self._log.go_to_time(source.at)
        if line is None and source.pattern:
            self._app.notify("the line is not in the log any more")

    def _open(self, selection: Selection) -> None:
        self._before = (self._app.view.pane, self._log.selection)
        self._select(selection)
        self._show_pane("log")

    def _select(self, selection: Selection) -> None:
        self._log.select(selection)
        self._log.set_follow(True)

    def forget(self) -> None:
        """Forget where the user came from."""
        self._before = None

    def go_back(self) -> bool:
        """Return to the pane where the user opened the log; False if there is none."""
        before, self._before = self._before, None
        if before is None or self._app.view.pane != "log":
            return False
        pane, selection = before
        self._select(selection)
        self._show_pane(pane)
        return True
