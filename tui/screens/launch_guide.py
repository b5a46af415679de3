"""The guide: a few questions, and the advice of `distui advise` on the answers."""

from __future__ import annotations

from typing import ClassVar

from textual.binding import Binding
from textual.geometry import Size
from textual.widgets import Static

from ...presets.estimate.advice import Advice, advise
from ...presets.estimate.guide_questions import QUESTIONS, case_of
from ..rows.glyphs import key_row
from ..rows.guide import choice_rows, end_rows, title
from .modal import ChoiceRows, RowsModal

_ASKING = key_row(("1-6", " or "), ("Enter", " answer   "), ("backspace", " back   "), ("esc", " cancel"))
_NOTHING = key_row(("backspace", " back   "), ("esc", " cancel"))
_ENDED = key_row(("Enter", " take it   "), ("backspace", " back   "), ("esc", " cancel"))


class GuideScreen(RowsModal[Advice | None]):
    """Asks the guide's questions; returns the accepted advice, or None."""

    BINDINGS: ClassVar[list[Binding]] = [  # type: ignore[assignment]
        Binding("escape,q", "dismiss", "cancel", id="guide.cancel"),
        Binding("enter", "answer", "answer"),
        Binding("backspace", "change(-1)", "back"),
        *(Binding(str(number), f"answer({number})", str(number)) for number in range(1, 7)),
    ]

    def __init__(self) -> None:
        super().__init__("", (), _ASKING, view=ChoiceRows(id="modal-rows", cursor=True))
        self._answers: list[int] = []
        self._advice: Advice | None = None

    def fit_into(self, size: Size) -> None:
        self.query_one("#box").styles.width = min(84, size.width - 4)
        self._width = min(84, size.width - 4) - 8
        self._ask(0)

    def _ask(self, cursor: int) -> None:
        """Show the current question; after the last one, the recommendation."""
        at = len(self._answers)
        if at < len(QUESTIONS):
            self._advice = None
            rows, head = choice_rows(QUESTIONS[at]), title(at)
        else:
            keys = (
                (question.key, question.choices[given].key)
                for question, given in zip(QUESTIONS, self._answers, strict=True)
            )
            self._advice = advice = advise(case_of(dict(keys)))
            rows, head = end_rows(advice, self._width), "Nothing fits"
            if advice.first is not None:
                head = f"Take {advice.first.preset.name}"
        self.view.has_cursor = self._advice is None
        self.query_one("#modal-title", Static).update(head)
        self.view.styles.height = min(max(4, len(rows)), max(4, self.size.height - 8))
        self.view.set_rows(rows)
        self.view.repaint()
        self.view.move_to(cursor)
        ended = _ENDED if self._advice and self._advice.first else _NOTHING
        self.foot.set_rows([ended if self._advice else _ASKING])

    def action_answer(self, number: int = 0) -> None:
        """Select a choice, by its digit or the one under the cursor; at the end accept the advice."""
        if self._advice is not None:
            if not number and self._advice.first is not None:
                self.dismiss(self._advice)
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
