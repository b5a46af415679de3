"""What a log pane has loaded: found in, marked, and given away as text."""

from __future__ import annotations

import re
from collections.abc import Callable

from textual.signal import Signal

from ...runners.logs.level import Level
from ..rows.frame import Frame
from ..rows.log import LogLine, Selection
from .log_tail import LogTail
from .panes import Pane


class Lines(Pane):
    """Loaded lines with a cursor and marks."""

    def __init__(self, frames: Signal[Frame], *, id: str) -> None:
        super().__init__(frames, id=id, cursor=True)
        self.selection = Selection()
        self._tail: LogTail | None = None
        self._marks: set[int] = set()
        self._lines: list[LogLine] = []

    def set_follow(self, on: bool) -> None:
        """Follow the end, or hold still."""
        raise NotImplementedError

    def _number(self, index: int) -> int:
        """A line's number that does not change when lines in front of it go."""
        return index + (self._tail.dropped if self._tail is not None else 0)

    def _hits(self) -> re.Pattern[str] | None:
        return re.compile(self.selection.pattern) if self.selection.pattern else None

    def to_hit(self, step: int) -> bool:
        """Move to the next (1) or previous (-1) hit; False when there is none."""
        hits = self._hits()
        if hits is None:
            return False
        return self._to(lambda line: bool(hits.search(line.text)), step)

    def to_error(self) -> bool:
        """Move to the next error or warning, from the top again after the last."""
        return self._to(lambda line: line.level >= Level.WARN, 1)

    def _to(self, wanted: Callable[[LogLine], bool], step: int) -> bool:
        count = len(self._lines)
        for offset in range(1, count + 1):
            at = (self.cursor + offset * step) % count
            if wanted(self._lines[at]):
                self.set_follow(False)
                self.move_to(at)
                return True
        return False

    def chosen_text(self) -> str:
        """The marked lines, or the one under the cursor."""
        marked = [line.text for at, line in enumerate(self._lines) if self._number(at) in self._marks]
        if marked:
            return "\n".join(marked)
        return self._lines[self.cursor].text if 0 <= self.cursor < len(self._lines) else ""

    def whole_text(self) -> str:
        """Everything that is loaded."""
        several = self._tail is not None and len(self._tail.files) > 1
        return "".join(f"{line.label + '  ' if several else ''}{line.text}\n" for line in self._lines)
