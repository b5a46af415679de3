"""Messages in separate rows above the footer, so that they cover nothing; they go after some seconds or with a key."""

from __future__ import annotations

from collections.abc import Callable

from ...presets.sanitize import clean_text
from ...runners.run import clock
from ..background import after, background
from ..rows import glyphs
from ..rows.glyphs import Row, labelled
from .rows_view import StillRows

SEEN_S = {"bad": 4.0}
"""Minimum seconds that a message stays although keys are pressed, by its style; SEEN of the others."""
SEEN = 1.5
_STYLES = {"error": "bad", "warning": "warn", "information": "accent"}


class Flash(StillRows):
    """Shows the newest messages, each for some seconds."""

    MOST = 3

    def __init__(self, changed: Callable[[], None]) -> None:
        """Create the row; `changed` is called if its rows change."""
        super().__init__(id="flash")
        self._changed = changed
        self._said: list[tuple[str, str]] = []
        self._at: dict[tuple[str, str], float] = {}
        """When each message came, by the monotonic clock."""

    def say(self, text: str, severity: str, seconds: float | None) -> None:
        """Show a sentence for some seconds, longer if it is long or an error. A new error replaces the previous one."""
        item = (clean_text(text), _STYLES.get(severity, _STYLES["information"]))
        self._said = [
            each for each in self._said if each != item and (severity, each[1]) != ("error", "bad")
        ]
        self._said.append(item)
        self._at[item] = clock.monotonic()
        del self._said[: -self.MOST]
        least = max(3.0, len(text) / 12) * (1.5 if severity == "error" else 1.0)
        background(self, "message", after(max(least, seconds or 0.0), lambda: self._forget(item)))
        self._changed()

    def clear(self) -> None:
        if self._said:
            self._said.clear()
            self._at.clear()
            self._changed()

    def key_pressed(self) -> None:
        """Remove the messages that have been seen."""
        now = clock.monotonic()
        for item in list(self._said):
            if now - self._at.get(item, now) >= SEEN_S.get(item[1], SEEN):
                self._forget(item)

    def _forget(self, item: tuple[str, str]) -> None:
        if item in self._said:
            self._said.remove(item)
            self._at.pop(item, None)
            self._changed()

    def wanted(self, width: int) -> int:
        """Set the rows, and return how many they fill."""
        rows: list[Row] = []
        for text, style in reversed(self._said):  # newest first, older ones if they fit
            glyph = {"bad": glyphs.BAD, "warn": glyphs.WARN}.get(style, "»")
            mine = labelled((f" {glyph} ", style), text, width - 1)
            if rows and len(mine) + len(rows) > self.MOST:
                break
            rows = mine + rows
        if rows != self.rows:
            self.set_rows(rows[: self.MOST])
        return min(len(rows), self.MOST)
