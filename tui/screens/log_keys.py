"""Keys that act on the log, wherever the focus is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from msgspec.structs import replace

from ...runners.logs.search import compile_grep
from ...runners.run.opened_logs import LogError
from ..background import background
from ..lending import copy, page
from ..loaded_logs import KEPT
from ..rows.cycle import following
from ..rows.log import Selection, choices
from .cockpit import Cockpit
from .log_view import LogView
from .prompts import FilterPrompt

TIMES = {"clock": "time of day", "start": "since the attempt began", "step": "since the line above"}
"""Descriptions of the forms of times."""


class LogKeys:
    """Actions of the log."""

    def __init__(self, app: Cockpit, log: LogView) -> None:
        self._app, self._log = app, log
        self._patterns: list[str] = []
        """Earlier filters, the newest last."""

    def action_follow(self) -> None:
        self._log.set_follow(not self._log.follow)

    def action_stream(self) -> None:
        """Switch to the next stream: all, out, err, nccl, launch or service."""
        log = self._log
        if log.frame is not None:
            stream = following(choices(log.frame.state), log.selection.stream)
            log.select(replace(log.selection, stream=stream))

    def action_hit(self, step: int) -> None:
        if not self._log.selection.pattern:
            self._app.notify("no pattern yet: / sets one")
        elif not self._log.finder.to_loaded_hit(step):
            background(self._log, "hit", self._to_hit(step), exclusive=True)

    async def _to_hit(self, step: int) -> None:
        """Go to the next hit that is not loaded."""
        with self._searching("searching for a hit"):
            if not await self._log.finder.next_hit(step, self._show_share):
                self._app.notify("no line matches")

    def action_error(self, step: int) -> None:
        background(self._log, "error", self._to_error(step), exclusive=True)

    async def _to_error(self, step: int) -> None:
        """Go to the error above or below; if none is loaded, search the rest of the files."""
        with self._searching("searching for an error"):
            reached = await self._log.finder.next_error(step, self._show_share)
            self._app.notify(reached or "no error or warning in this log", timeout=2)

    @contextmanager
    def _searching(self, what: str) -> Iterator[None]:
        """Report a refusal of a search, and remove its progress from the title at the end."""
        try:
            with self._app.refusals(what):
                yield
        finally:
            self._show_progress("")

    def _show_share(self, share: float) -> None:
        self._show_progress(f"searching {int(share * 100)} %")

    def _show_progress(self, text: str) -> None:
        """Show the progress of a search in the title; "" when it is over."""
        self._log.title.search_progress = text
        self._log.name_it()

    def action_times(self) -> None:
        times = self._log.laid_out.next_times()
        self._log.change_layout()
        self._app.notify(f"times: {TIMES.get(times, 'off')}", timeout=2)

    def action_wrap(self) -> None:
        """Toggle between wrapping and cutting long lines."""
        self._log.laid_out.wrap = not self._log.laid_out.wrap
        self._log.scroll_sideways(0)
        self._log.change_layout()

    def action_fold(self) -> None:
        """Toggle between folding equal lines of many ranks and showing each."""
        laid_out = self._log.laid_out
        laid_out.fold = not laid_out.fold
        self._log.change_layout()
        shown = "shown once" if laid_out.fold else "shown for each rank"
        self._app.notify(f"identical lines of several ranks: {shown}", timeout=2)

    def action_rule(self) -> None:
        """Draw a rule with the time after the newest line, as a mark before the lines to come."""
        self._log.laid_out.draw_rule(self._app.clock())
        self._log.change_layout()

    def action_copy(self) -> None:
        copy(self._app, self._log.chosen_text())

    def action_pager(self) -> None:
        background(self._log, "pager", self._open_pager(), exclusive=True)

    async def _open_pager(self) -> None:
        """Show the lines of all attempts up to the newest, as many as the pane may hold."""
        with self._searching("reading the log"):
            lines = await self._log.feed.last_lines(KEPT)
            page(self._app, self._log.laid_out.text_of(lines))

    def release(self) -> bool:
        """Remove the filter, or else the choice of a rank, and follow again; False if there is nothing to undo."""
        log, chosen = self._log, self._log.selection
        held = log.display and not log.follow
        if chosen.pattern:
            log.select(replace(chosen, pattern=""))
        elif chosen.rank is not None:
            log.select(replace(chosen, rank=None))
        elif not held:
            return False
        if held:
            log.set_follow(True)
        return True

    # --- filter

    def action_filter(self) -> None:
        """Open the prompt for a filter, which filters while the user types."""
        log, before = self._log, self._log.selection
        hint = "regular expression; empty shows all lines"
        prompt = FilterPrompt(before.pattern, self._patterns, self._filter, lambda: log.title.state, hint)
        self._app.push_screen(prompt, lambda pattern: self._filtered(pattern, before))

    def _filter(self, pattern: str) -> str:
        """Show only the lines that match; return "" or the error in the pattern."""
        try:
            compile_grep(pattern)
        except LogError as error:
            return str(error).removeprefix("--grep ")
        self._log.select(replace(self._log.selection, pattern=pattern, only_hits=True))
        self._log.set_follow(True)
        return ""

    def _filtered(self, pattern: str | None, before: Selection) -> None:
        """Keep the filter when the prompt closes, or restore the previous selection if it was cancelled."""
        if pattern is None:
            self._log.select(before)
        elif pattern:
            self._patterns = [*(each for each in self._patterns if each != pattern), pattern]
