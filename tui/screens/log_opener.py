"""Opens the log from other panes: the log of a rank, or the line that a finding or a fact of NCCL is based on."""

from __future__ import annotations

import re
from collections.abc import Callable

from msgspec.structs import replace

from ...presets.sanitize import clean_text
from ...runners.run.formatting import spans_text
from ..open_run import OpenRun
from ..rows.findings import Item
from ..rows.glyphs import wrap
from ..rows.log import Selection, named
from .cockpit import Cockpit
from .log_view import LogLead, LogView
from .modal import TextScreen

_AT = re.compile(r"(?P<file>\S+):(?P<line>\d+): (?P<text>.*)", re.DOTALL)
"""Evidence that is a line of a log."""
_SPECIAL = re.compile(r"[\\.^$*+?{}\[\]|()]")
_LONGEST = 160
"""Maximum characters of a line in the pattern that searches for it."""


def pattern_of(text: str) -> str:
    """Return a regular expression that finds this line; for a line of NCCL only its message."""
    message = text.partition(" NCCL ")[2] or text
    return _SPECIAL.sub(r"\\\g<0>", message.strip()[:_LONGEST])


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
        """Open the log line that is the finding's evidence, or else the log of its first rank."""
        for finding in item.findings:
            for line in finding.evidence:
                place = _AT.fullmatch(clean_text(line))
                if place is not None and named(place["file"]) is not None:
                    self.open_line(place["file"], int(place["line"]), place["text"])
                    return
        if item.ranks:
            self._open(Selection(rank=item.ranks[0]))
        else:
            self._app.notify("this finding names no rank and no line")

    def open_line(self, file: str, line: int, text: str) -> None:
        """Show a line in its log; if its file is not of this attempt, show only the line."""
        parsed = named(file)
        if parsed is None or parsed.rank is None or parsed.attempt not in (None, self._run.state.attempt):
            rows = wrap(clean_text(text), 80)
            self._app.push_screen(TextScreen(f"{file}, line {line}", rows))
            return
        pattern = pattern_of(clean_text(text))
        self._open(Selection(rank=parsed.rank, stream=parsed.stream, pattern=pattern))

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
