"""The findings of a run: the list, and below it one finding in full."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.message import Message
from textual.signal import Signal

from ...presets.plurals import plural
from ..keys import bindings
from ..rows.attempts import end_rows
from ..rows.findings import Item, coverage_rows, detail_rows, item_row, items, no_findings
from ..rows.frame import Frame
from ..rows.glyphs import Row
from .panes import Pane


class FindingList(Pane):
    """One row per finding, or per kind of findings."""

    BINDINGS: ClassVar[list[Binding]] = bindings("findings")  # type: ignore[assignment]

    class FindingMoved(Message):
        """The cursor is on another finding."""

    @dataclass
    class Zoomed(Message):
        """The user wants the log of a finding."""

        item: Item

    def __init__(self, frames: Signal[Frame]) -> None:
        super().__init__(frames, id="findings", cursor=True)
        self._items: list[Item] = []

    def build(self, frame: Frame, width: int) -> Sequence[Row]:
        key = self.current.key if self.current is not None else ""
        self._items = items(frame.state.findings.values())
        keys = [item.key for item in self._items]
        if key in keys:
            self.cursor = keys.index(key)
        self.entitle(_title(frame, self._items))
        if not self._items:
            return [((no_findings(frame.state), "text"),)]
        return [item_row(frame, item, width - 2) for item in self._items]

    @property
    def current(self) -> Item | None:
        return self._items[self.cursor] if 0 <= self.cursor < len(self._items) else None

    def cursor_moved(self) -> None:
        self.post_message(self.FindingMoved())

    def action_zoom(self) -> None:
        if self.current is not None:
            self.post_message(self.Zoomed(self.current))


def _title(frame: Frame, listed: Sequence[Item]) -> str:
    alarms = sum(item.first.alarm for item in listed)
    parts = ["findings", plural(alarms, "alarm") if alarms else "no alarm"]
    if not frame.state.phase.ended:
        parts.append("w: where each rank is")
    return " · ".join(parts)


class FindingDetail(Pane):
    """One finding in full, and the data that verdicts are based on."""

    def __init__(self, frames: Signal[Frame], findings: FindingList) -> None:
        super().__init__(frames, id="finding")
        self._findings = findings

    def build(self, frame: Frame, width: int) -> Sequence[Row]:
        item = self._findings.current
        covered = coverage_rows(frame.state)
        if item is None and frame.state.phase.ended:
            self.entitle("what happened")
            hint = f"its logs may show more: distui diagnose {frame.state.name}"
            return [*end_rows(frame, width - 1), (), ((f" {hint}", "dim"),)]
        if item is None:
            self.entitle("data")
            return covered
        self.entitle("evidence")
        return [*detail_rows(frame, item, max(20, width - 2)), (), *covered]


class Diagnosis(Vertical):
    """List and detail; the list takes at most half of the height, and no more than it needs."""

    def __init__(self, frames: Signal[Frame]) -> None:
        super().__init__(id="diagnosis")
        self._frames = frames
        self.list = FindingList(frames)
        self.detail = FindingDetail(frames, self.list)

    def compose(self) -> ComposeResult:
        yield self.list
        yield self.detail

    def on_mount(self) -> None:
        self._frames.subscribe(self, self._share, immediate=True)

    def _share(self, frame: Frame) -> None:
        """Set the height of the list."""
        if not self.display:
            return
        frames = self.list.gutter.height
        wanted = max(1, len(items(frame.state.findings.values()))) + frames
        height = max(2 + frames, min(wanted, self.size.height // 2))
        if self.list.styles.height is None or self.list.styles.height.value != height:
            self.list.styles.height = height
            self.call_after_refresh(self.again)

    def again(self) -> None:
        self.list.again()
        self.detail.again()

    def on_resize(self) -> None:
        if self.list.frame is not None:
            self._share(self.list.frame)

    def on_finding_list_finding_moved(self) -> None:
        self.detail._scroll_row(0)
        self.detail.again()
