"""Dialogs: a question, a text, one line of input, NCCL_DEBUG."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, TypeVar

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal, Vertical
from textual.events import Resize
from textual.geometry import Size
from textual.screen import ModalScreen
from textual.widget import Widget
from textual.widgets import Input, Label, Static

from ...runners.formatting import spans_text
from ...runners.model import SetNccl
from ...runners.state import RunState
from ..rows.confirm import NcclForm, begin, change, command, form_rows, note_rows
from ..rows.glyphs import Row, hang, key_row
from .rows_view import RowsView

Answer = TypeVar("Answer")


class RowsModal(ModalScreen[Answer]):
    """A title, rows, what stands `between` them and a line of keys; no larger than needed."""

    def __init__(
        self,
        title: str,
        rows: Sequence[Row],
        keys: Row,
        ascii_only: bool = False,
        *,
        view: RowsView | None = None,
        between: Sequence[Widget] = (),
    ) -> None:
        super().__init__()
        self._question = title
        self._answer_rows = rows
        self._between = between
        self.view = view or RowsView(id="modal-rows")
        self.foot = RowsView(id="modal-keys")
        self.foot.can_focus = False
        self.view.ascii_only = self.foot.ascii_only = ascii_only
        self.foot.set_rows([keys])

    def compose(self) -> ComposeResult:
        with Vertical(id="box"):
            yield Static(self._question, id="modal-title", markup=False)
            yield self.view
            yield from self._between
            yield self.foot

    def on_resize(self, event: Resize) -> None:
        self.fit_into(event.size)

    def fit_into(self, size: Size) -> None:
        """Take what is needed of a terminal of this size."""
        width = min(96, size.width - 8)
        rows = [part for row in self._answer_rows for part in hang(row, width - 7)]
        self.view.set_rows(rows)
        self.view.styles.height = max(1, min(len(rows), size.height - 9))
        self.query_one("#box").styles.width = width


class ConfirmScreen(RowsModal[str]):
    """Asks before a run is changed: Enter cancels (""), "y" does it, "a" does it another way where there is one."""

    BINDINGS: ClassVar[list[Binding]] = [  # type: ignore[assignment]
        Binding("y", "answer('y')", "do it", id="confirm.yes"),
        Binding("a", "answer('a')", "do it the other way", id="confirm.other"),
        Binding("enter,escape,n,q", "answer('')", "cancel", id="confirm.no"),
    ]

    def __init__(
        self, title: str, rows: Sequence[Row], verb: str, ascii_only: bool = False, other: str = ""
    ) -> None:
        self._other = other
        if other:
            keys = key_row(("y", f" {verb}   "), ("a", f" {other}   "), ("Enter", " cancel"))
        else:
            keys = key_row(("y", f" {verb}     "), ("Enter", " cancel (default)"))
        super().__init__(title, rows, keys, ascii_only)

    def action_answer(self, answer: str) -> None:
        if answer != "a" or self._other:
            self.dismiss(answer)


class TypedScreen(RowsModal[str | None]):
    """Asks before something that cannot be undone: its name has to be typed. Returns what was typed."""

    BINDINGS: ClassVar[list[Binding]] = [  # type: ignore[assignment]
        Binding("escape", "dismiss", "cancel", id="typed.cancel")
    ]

    def __init__(
        self, title: str, rows: Sequence[Row], name: str, verb: str, ascii_only: bool = False
    ) -> None:
        keys = key_row(("Enter", f" {verb}     "), ("esc", " cancel"))
        field = Horizontal(
            Label(f"type {name}:", id="typed-label", markup=False),
            Input(compact=True, id="typed-input"),
            id="typed",
        )
        super().__init__(title, rows, keys, ascii_only, between=[field])

    def on_mount(self) -> None:
        self.view.can_focus = False
        self.query_one(Input).focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self.dismiss(event.value.strip())


class TextScreen(RowsModal[None]):
    """Something to read: help, or what a dump brought."""

    BINDINGS: ClassVar[list[Binding]] = [  # type: ignore[assignment]
        Binding("escape,q,enter,question_mark", "dismiss", "close", id="text.close")
    ]

    def __init__(self, title: str, rows: Sequence[Row], ascii_only: bool = False) -> None:
        keys = key_row(("esc", " close   "), ("j k PgUp PgDn g G", " scroll"))
        super().__init__(title, rows, keys, ascii_only)


class PromptScreen(ModalScreen[str | None]):
    """One line of input at the bottom: `:` commands and `/` filters."""

    BINDINGS: ClassVar[list[Binding]] = [  # type: ignore[assignment]
        Binding("escape", "dismiss", "cancel", id="prompt.cancel")
    ]

    def __init__(self, sign: str, value: str = "", hint: str = "") -> None:
        super().__init__()
        self._sign, self._value, self._hint = sign, value, hint

    def compose(self) -> ComposeResult:
        with Vertical(id="prompt"):
            yield Label(self._sign, id="prompt-sign", markup=False)
            yield Input(self._value, placeholder=self._hint, compact=True, id="prompt-input")

    def on_mount(self) -> None:
        self.query_one(Input).focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self.dismiss(event.value)


_KEYS = key_row(
    ("← →", " change   "),
    ("space", " choose   "),
    ("Enter", " go on (asks again)   "),
    ("esc", " cancel"),
)


class _ModalRows(RowsView):
    """The form's rows; the keys that change a value go to the screen."""

    BINDINGS: ClassVar[list[Binding]] = [
        Binding("right,l,space", "screen.change(1)", "next value"),
        Binding("left,h", "screen.change(-1)", "previous value"),
        Binding("enter", "screen.apply", "go on"),
    ]


class NcclScreen(RowsModal[SetNccl | None]):
    """Returns the command to confirm, or None."""

    BINDINGS: ClassVar[list[Binding]] = [  # type: ignore[assignment]
        Binding("escape,q", "dismiss", "cancel", id="nccl.cancel")
    ]

    def __init__(
        self, state: RunState, marked: frozenset[int], command_id: str, ascii_only: bool = False
    ) -> None:
        self.form: NcclForm = begin(state, marked)
        self._command_id = command_id
        self.hint = RowsView(id="modal-hint")
        self.hint.can_focus = False
        self.hint.ascii_only = ascii_only
        ranks = self.form.ranks
        who = f"{spans_text('rank', ranks)} (marked)" if ranks else "every rank"
        view = _ModalRows(id="modal-rows", cursor=True)
        super().__init__(f"NCCL_DEBUG of {who}", (), _KEYS, ascii_only, view=view, between=[self.hint])

    def fit_into(self, size: Size) -> None:
        width = min(110, size.width - 4)
        self.query_one("#box").styles.width = width
        self._width, self._height = width - 8, size.height * 9 // 10
        self._draw()

    def _draw(self) -> None:
        """The choices in the rows that the sentences below leave."""
        rows, notes = form_rows(self.form, self._width), note_rows(self.form, self._width)
        self.hint.styles.height = len(notes)
        self.view.styles.height = max(3, min(len(rows), self._height - 9 - len(notes)))
        self.view.set_rows(rows)
        self.hint.set_rows(notes)

    def action_change(self, step: int) -> None:
        """Change the value of the current row."""
        self.form = change(self.form, self.view.cursor, step)
        self._draw()

    def action_apply(self) -> None:
        """Hand the command over to the confirmation."""
        self.dismiss(command(self.form, self._command_id))
