"""The decision guide: one question at a time, then a preset with the reasons."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.events import Resize
from textual.screen import ModalScreen
from textual.widgets import Static

from ...presets.guide import QUESTIONS, Recommendation, recommend
from ..rows.cells import Row
from ..rows.guide import choice_rows, end_rows, title
from ..widgets.rows_view import RowsView

_ASKING: Row = (
    ("1-4", "key"), (" or ", "text"), ("Enter", "key"), (" answer   ", "text"), ("backspace", "key"),
    (" back   ", "text"), ("esc", "key"), (" cancel", "text"),
)  # fmt: skip
_ENDED: Row = (
    ("Enter", "key"), (" take it   ", "text"), ("backspace", "key"), (" back   ", "text"), ("esc", "key"),
    (" cancel", "text"),
)  # fmt: skip


class _Choices(RowsView):
    """The choices; keys that answer go to the screen."""

    BINDINGS: ClassVar[list[Binding]] = [
        Binding("enter,right,l", "screen.answer", "answer"),
        Binding("backspace,left,h", "screen.before", "back"),
        *(Binding(str(number), f"screen.answer({number})", str(number)) for number in range(1, 5)),
    ]


class GuideScreen(ModalScreen[Recommendation | None]):
    """Returns what was recommended and taken, or None."""

    BINDINGS: ClassVar[list[Binding]] = [  # type: ignore[assignment]
        Binding("escape,q", "cancel", "cancel", id="guide.cancel")
    ]

    def __init__(self, ascii_only: bool = False) -> None:
        super().__init__()
        self._answers: list[int] = []
        self._found: Recommendation | None = None
        self.choices = _Choices(id="modal-rows", cursor=True)
        self.foot = RowsView(id="modal-keys")
        self.foot.can_focus = False
        self.choices.ascii_only = self.foot.ascii_only = ascii_only

    def compose(self) -> ComposeResult:
        with Vertical(id="box"):
            yield Static("", id="modal-title", markup=False)
            yield self.choices
            yield self.foot

    def on_mount(self) -> None:
        self.choices.focus()

    def on_resize(self, event: Resize) -> None:
        self.query_one("#box").styles.width = min(84, event.size.width - 4)
        self._width = min(84, event.size.width - 4) - 8
        self._ask(0)

    def _ask(self, cursor: int) -> None:
        """The question at hand; after the last one, where the answers led."""
        at = len(self._answers)
        if at < len(QUESTIONS):
            self._found = None
            rows, head = choice_rows(QUESTIONS[at]), title(at)
        else:
            keys = (
                (one.key, one.choices[given].key)
                for one, given in zip(QUESTIONS, self._answers, strict=True)
            )
            self._found = found = recommend(dict(keys))
            rows, head = end_rows(found, self._width), f"Take {found.preset}"
        self.choices.has_cursor = self._found is None
        self.query_one("#modal-title", Static).update(head)
        self.choices.styles.height = min(max(4, len(rows)), max(4, self.size.height - 8))
        self.choices.set_rows(rows)
        self.choices.repaint()
        self.choices.move_to(cursor)
        self.foot.set_rows([_ENDED if self._found else _ASKING])

    def action_answer(self, number: int = 0) -> None:
        """Take a choice, by its digit or the one at hand; at the end the preset."""
        if self._found is not None:
            if not number:
                self.dismiss(self._found)
            return
        given = number - 1 if number else self.choices.cursor
        if given < len(QUESTIONS[len(self._answers)].choices):
            self._answers.append(given)
            self._ask(0)

    def action_before(self) -> None:
        """Back to the question before, with its answer at hand."""
        if self._answers:
            self._ask(self._answers.pop())

    def action_cancel(self) -> None:
        self.dismiss(None)
