"""The title of the log pane: the chosen ranks, stream and pattern, the size, and the state or position."""

from __future__ import annotations

from ...presets.plurals import plural
from ...runners.run import clock
from ...runners.run.formatting import size_short, time_of_day
from ..log_filter import LogFilter
from ..rows.log import chosen_title, large_size
from ..rows.run_status import launching
from .log_feed import LogFeed
from .log_pane import LogPane

SLOW_S = 0.5
"""Once a search takes longer than this many seconds, the title shows its progress."""


class LogTitle:
    """Describes what a log pane shows."""

    def __init__(self, pane: LogPane, feed: LogFeed) -> None:
        self._pane, self._feed = pane, feed
        self.search_progress = ""
        """Progress of a search for a hit or an error, or ""."""

    @property
    def text(self) -> str:
        """The title: "log · rank 3 · 1.2G · FOLLOW"."""
        is_launching, size = False, 0
        frame, feed = self._pane.frame, self._feed
        if frame is not None:
            is_launching = launching(frame.state)
            size = large_size(frame.state, feed.logs or ())
        state = feed.problem or self.search_progress or self.state
        parts = (
            "log",
            chosen_title(self._pane.selection, is_launching),
            size_short(size) if size else "",
            state,
        )
        return " · ".join(filter(None, parts))

    @property
    def state(self) -> str:
        """The matches of a filter, else the position; "reading" or "nothing written yet" if there are no lines."""
        feed = self._feed
        if isinstance(feed.logs, LogFilter):
            return self._matches(feed.logs)
        if self._pane.rows:
            return self._position
        if feed.logs is None and not feed.is_empty:
            return "reading"
        where = "" if self._pane.selection.rank is None else ", w shows where it is"
        return f"nothing written yet{where} · {self._position}"

    def _matches(self, logs: LogFilter) -> str:
        """Return the number of lines that match; a slow search also has its progress."""
        count = logs.count
        hits = f"{plural(count, 'line')} {'matches' if count == 1 else 'match'}" if count else ""
        if logs.skipped:
            hits = f"more than {hits}"
        if not logs.searching:
            return f"{hits or 'no line matches'} · {self._position}"
        if clock.monotonic() < self._feed.begun + SLOW_S:
            return hits
        return " · ".join(filter(None, (f"searching {int(logs.searched * 100)} %", hits)))

    @property
    def _position(self) -> str:
        """The end that the pane stays at, else the time of the current line and the key that leads to the end."""
        past, line = self._pane.laid_out.until, self._pane.current
        frame = self._pane.frame
        if past is not None:
            end, key = f"PAST {time_of_day(past)}", f"f returns to {time_of_day(past)}"
        elif frame is not None and frame.state.phase.ended:
            end, key = "END", "f goes to the end"
        else:
            end, key = "FOLLOW", "f follows"
        if self._pane.follow:
            return end
        here = f"AT {time_of_day(line.at)}, " if line is not None and line.at else ""
        return here + key
