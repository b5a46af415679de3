"""The line that guides through the simulated demo."""

from __future__ import annotations

from collections.abc import Sequence

from ..rows.demo_guide import guide_row
from ..rows.frame import Frame
from ..rows.glyphs import Row
from .panes import Pane


class GuideLine(Pane):
    """One row above the footer; it has no room in any other run."""

    can_focus = False

    def build(self, frame: Frame, width: int) -> Sequence[Row]:
        return [guide_row(frame.state, frame.view.pane, width)]
