"""The columns that a log needs, by the lines that it has shown. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

STEP = 8
"""Columns by which the width changes."""

BESIDES = 2
"""Columns of the cursor and the scrollbar."""

RARE = 20
"""One of so many lines may be longer."""


class UsefulWidth:
    """A width that nearly all lines fit. It only grows, so that panes seldom move."""

    def __init__(self) -> None:
        self.columns = 0
        """Columns of text; 0 before the first line."""
        self._counts: Counter[int] = Counter()
        """Lines by their width in steps."""

    def add(self, widths: Iterable[int]) -> None:
        """Note the widths of new lines."""
        before = self._counts.total()
        self._counts.update(-(-(width + BESIDES) // STEP) for width in widths)
        total = self._counts.total()
        if total == before:
            return
        longer = max(1, total // RARE)
        fitting = 0
        for steps in sorted(self._counts):
            fitting += self._counts[steps]
            if fitting >= total - longer:
                self.columns = max(self.columns, steps * STEP)
                return
