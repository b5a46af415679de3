"""The guide that recommends a preset for a model, by a few questions."""

from __future__ import annotations

from typing import ClassVar

from textual.binding import Binding
from textual.geometry import Size
from textual.widgets import Static

from ...presets.estimate.preset_guide import QUESTIONS, Recommendation, recommend
from ..rows.glyphs import key_row
from ..rows.guide import choice_rows, end_rows, title
from .modal import ChoiceRows, RowsModal

_ASKING = key_row(("1-4", " or "), ("Enter", " answer   "), ("backspace", " back   "), ("esc", " cancel"))
_ENDED = key_row(("Enter", " take it   "), ("backspace", " back   "), ("esc", " cancel"))


class GuideScreen(RowsModal[Recommendation | None]):
    """Asks the guide's questions; returns the accepted recommendation, or None."""

    BINDINGS: ClassVar[list[Binding]] = [  # type: ignore[assignment]
        Binding("escape,q", "dismiss", "cancel", id="guide.cancel"),
        Binding("enter", "answer", "answer"),
        Binding("backspace", "change(-1)", "back"),
        *(Binding(str(number), f"answer({number})", str(number)) for number in range(1, 5)),
    ]

    def __init__(self) -> None:
        super().__init__("", (), _ASKING, view=ChoiceRows(id="modal-rows", cursor=True))
        self._answers: list[int] = []
        self._recommended: Recommendation | None = None

    def fit_into(self, size: Size) -> None:
        self.query_one("#box").styles.width = min(84, size.width - 4)
        self._width = min(84, size.width - 4) - 8
        self._ask(0)

    def _ask(self, cursor: int) -> None:
        """Show the current question; after the last one, the recommendation."""
        at = len(self._answers)
        if at < len(QUESTIONS):
            self._recommended = None
            rows, head = choice_rows(QUESTIONS[at]), title(at)
        else:
            keys = (
                (question.key, question.choices[given].key)
                for question, given in zip(QUESTIONS, self._answers, strict=True)
            )
            self._recommended = recommended = recommend(dict(keys))
            rows, head = end_rows(recommended, self._width), f"Take {recommended.preset}"
        self.view.has_cursor = self._recommended is None
        self.query_one("#modal-title", Static).update(head)
        self.view.styles.height = min(max(4, len(rows)), max(4, self.size.height - 8))
        self.view.set_rows(rows)
        self.view.repaint()
        self.view.move_to(cursor)
        self.foot.set_rows([_ENDED if self._recommended else _ASKING])

    def action_answer(self, number: int = 0) -> None:
        """Select a choice, by its digit or the one under the cursor; at the end accept the preset."""
        if self._recommended is not None:
            if not number:
                self.dismiss(self._recommended)
            return
        given = number - 1 if number else self.view.cursor
        if given < len(QUESTIONS[len(self._answers)].choices):
            self._answers.append(given)
            self._ask(0)

    def action_change(self, step: int) -> None:
        """Answer with the choice under the cursor, or go back to the previous question and its answer."""
        if step > 0:
            self.action_answer()
        elif self._answers:
            self._ask(self._answers.pop())
