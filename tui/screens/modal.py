"""Dialogs: a question, a text, one line of input, NCCL_DEBUG."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar, TypeVar

from rich.cells import cell_len
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal, Vertical
from textual.events import Resize
from textual.geometry import Size
from textual.screen import ModalScreen
from textual.widget import Widget
from textual.widgets import Input, Label, Static

from ...runners.run.commands import SetNccl
from ...runners.run.formatting import spans_text
from ...runners.run.nccl_reach import refusal
from ...runners.run.state import RunState
from ..rows.glyphs import Row, clip, hang, key_row, row_width
from ..rows.nccl_dialog import NcclForm, begin, change, command, form_rows, note_rows
from .rows_view import RowsView, StillRows

Answer = TypeVar("Answer")

LOW = 22
"""Minimum terminal rows for dialogs with blank lines."""


def key_rows(keys: Row, width: int) -> list[Row]:
    """Wrap keys with their words to as many rows as needed, so that every key is visible."""
    rows: list[Row] = []
    row: Row = ()
    for at in range(0, len(keys), 2):
        pair = keys[at : at + 2]
        if row and row_width((*row, (pair[0][0] + pair[-1][0].rstrip(), ""))) > width:
            rows.append(row)
            row = ()
        row = (*row, *pair)
    return [*rows, row]


class ChoiceRows(RowsView):
    """Rows whose left and right keys change a value of the screen instead of scrolling."""

    BINDINGS: ClassVar[list[Binding]] = [
        Binding("right,l", "screen.change(1)", "next value"),
        Binding("left,h", "screen.change(-1)", "previous value"),
    ]


class RowsModal(ModalScreen[Answer]):
    """A title, rows, the widgets `between`, and the keys, which are always visible; no larger than needed."""

    WIDEST: ClassVar[int] = 96
    MARGIN: ClassVar[int] = 8
    """Columns that stay free next to the box, if the terminal has 80 or more."""

    def __init__(
        self,
        title: str,
        rows: Sequence[Row],
        keys: Row,
        *,
        view: RowsView | None = None,
        between: Sequence[Widget] = (),
    ) -> None:
        super().__init__()
        self._question = title
        self._answer_rows = rows
        self._keys_row = keys
        self._between = between
        self.view = view or RowsView(id="modal-rows")
        self.foot = StillRows(id="modal-keys")

    def compose(self) -> ComposeResult:
        with Vertical(id="box") as box:
            box.styles.width = self._box_width(self.app.size)  # a second width would paint the box twice
            yield Static(self._question, id="modal-title", markup=False)
            yield self.view
            yield from self._between
            yield self.foot

    def on_mount(self) -> None:
        self.fit_into(self.app.size)

    def on_resize(self, event: Resize) -> None:
        self.fit_into(event.size)

    def _box_width(self, size: Size) -> int:
        """Return the columns of the box in a terminal of this size."""
        margin = self.MARGIN if size.width >= 80 else min(self.MARGIN, 2)
        return min(self.WIDEST, size.width - margin)

    def room(self, size: Size) -> tuple[int, int]:
        """Return the columns and rows between title and keys in a terminal of this size, and set the box's width."""
        low = size.height < LOW
        self.set_class(low, "-low")
        width = self._box_width(size)
        self.query_one("#box").styles.width = width
        inner = width - (4 if low else 6)
        keys = key_rows(self._keys_row, inner)
        self.foot.set_rows(keys)
        self.foot.styles.height = len(keys)
        title = -(-max(1, cell_len(self._question)) // max(1, inner))
        return inner - 1, size.height - (2 if low else 6) - title - len(keys)

    def fit_into(self, size: Size) -> None:
        """Size the dialog for a terminal of this size."""
        width, height = self.room(size)
        rows = [part for row in self._answer_rows for part in hang(row, width)]
        self.view.set_rows(rows)
        self.view.styles.height = shown = max(1, min(len(rows), height - self.taken()))
        more = len(rows) > shown
        self.query_one("#box").border_subtitle = f"{len(rows)} lines: j k PgDn scroll" if more else ""

    def taken(self) -> int:
        """Return the rows of the widgets between the rows and the keys."""
        return 2 * len(self._between)


class ConfirmScreen(RowsModal[str]):
    """Asks before a run is changed.

    Enter returns "" (cancel), "y" confirms, "a" and "s" select alternatives if they exist.
    """

    BINDINGS: ClassVar[list[Binding]] = [  # type: ignore[assignment]
        Binding("y", "answer('y')", "do it", id="confirm.yes"),
        Binding("a", "answer('a')", "do it the other way", id="confirm.other"),
        Binding("s", "answer('s')", "save first", id="confirm.save"),
        Binding("e", "unfold", "everything", id="confirm.all"),
        Binding("enter", "cancel", "cancel", id="confirm.no"),
        Binding("escape,n,q", "answer('')", "cancel", id="confirm.cancel"),
    ]

    def __init__(
        self,
        title: str,
        rows: Sequence[Row],
        verb: str,
        other: str = "",
        *,
        more: Sequence[Row] = (),
        save: str = "",
    ) -> None:
        """Create the question.

        `more` are the rows that `e` shows instead of `rows`; `other` and `save` name the actions of `a` and `s`.
        """
        self._verb, self._other, self._save, self._more = verb, other, save, more
        keys = {"y": verb, "a": other, "s": save, "e": "shows all" if more else ""}
        pairs = [(key, f" {words}   ") for key, words in keys.items() if words]
        super().__init__(title, rows, key_row(*pairs, ("Enter", " cancel")))

    def action_answer(self, answer: str) -> None:
        if (answer != "a" or self._other) and (answer != "s" or self._save):
            self.dismiss(answer)

    def action_cancel(self) -> None:
        """Cancel on Enter, and notify a user who pressed Enter twice that nothing was done."""
        self.app.notify(f"cancelled, nothing was changed: y would {self._verb}", timeout=3)
        self.dismiss("")

    def action_unfold(self) -> None:
        """Toggle between all rows and the folded ones."""
        if self._more:
            self._answer_rows, self._more = self._more, self._answer_rows
            self.fit_into(self.size)


class TypedScreen(RowsModal[str | None]):
    """Asks before an irreversible action: the user must type its name. Returns the typed text."""

    BINDINGS: ClassVar[list[Binding]] = [  # type: ignore[assignment]
        Binding("escape", "dismiss", "cancel", id="typed.cancel")
    ]

    def __init__(self, title: str, rows: Sequence[Row], name: str, verb: str) -> None:
        keys = key_row(("Enter", f" {verb}     "), ("esc", " cancel"))
        field = Horizontal(
            Label(f"type {name}:", id="typed-label", markup=False),
            Input(compact=True, id="typed-input"),
            id="typed",
        )
        super().__init__(title, rows, keys, between=[field])

    def on_mount(self) -> None:
        self.view.can_focus = False
        self.query_one(Input).focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self.dismiss(event.value.strip())


class TextScreen(RowsModal[None]):
    """A text to read: help, or the result of a dump."""

    BINDINGS: ClassVar[list[Binding]] = [  # type: ignore[assignment]
        Binding("escape,q,enter,question_mark", "dismiss", "close", id="text.close")
    ]

    def __init__(self, title: str, rows: Sequence[Row]) -> None:
        keys = key_row(("esc", " close   "), ("j k PgUp PgDn g G", " scroll"))
        super().__init__(title, rows, keys)


class WideScreen(TextScreen):
    """A text that fills the width of the terminal, with rows built for that width."""

    WIDEST: ClassVar[int] = 1000
    MARGIN: ClassVar[int] = 0

    def __init__(self, title: str, made: Callable[[int], Sequence[Row]]) -> None:
        """Create the screen; `made` returns the rows for a number of columns."""
        self._made = made
        super().__init__(title, ())

    def fit_into(self, size: Size) -> None:
        self._answer_rows = self._made(self.room(size)[0])
        super().fit_into(size)


_KEYS = key_row(
    ("← →", " change   "), ("space", " choose   "), ("Enter", " go on (asks again)   "), ("esc", " cancel")
)


class NcclScreen(RowsModal[SetNccl | None]):
    """Asks for an NCCL_DEBUG change; returns the command to confirm, or None."""

    WIDEST: ClassVar[int] = 110
    BINDINGS: ClassVar[list[Binding]] = [  # type: ignore[assignment]
        Binding("escape,q", "dismiss", "cancel", id="nccl.cancel"),
        Binding("space", "change(1)", "next value"),
        Binding("enter", "apply", "go on"),
    ]

    def __init__(
        self,
        state: Callable[[], RunState],
        marked: frozenset[int],
        command_id: str,
    ) -> None:
        """Create the dialog; `state` returns the current state."""
        self._state = state
        self.form: NcclForm = begin(state(), marked)
        self._first = self.form
        self._command_id = command_id
        self.hint = StillRows(id="modal-hint")
        ranks = self.form.ranks
        who = f"{spans_text('rank', ranks)} (marked)" if ranks else "every rank"
        view = ChoiceRows(id="modal-rows", cursor=True)
        title = f"NCCL_DEBUG of {who} of {state().name}"
        super().__init__(title, (), _KEYS, view=view, between=[self.hint])

    def fit_into(self, size: Size) -> None:
        self._width, self._height = self.room(size)
        self._draw()

    def _draw(self) -> None:
        """Draw the choices in the rows that the notes below leave; on a low terminal each note is cut to one line."""
        rows, notes = form_rows(self.form, self._width - 1), note_rows(self.form, self._width)
        low = self.has_class("-low")
        if low:
            notes = [clip(row, self._width) for row in note_rows(self.form, 10_000)]
        self.hint.styles.height = len(notes)
        self.view.styles.height = max(3, min(len(rows), self._height - len(notes) - (not low)))
        self.view.set_rows(rows)
        self.hint.set_rows(notes)

    def action_change(self, step: int) -> None:
        self.form = change(self.form, self.view.cursor, step)
        self._draw()

    def action_apply(self) -> None:
        """Return the command to the caller for confirmation, unless it would change nothing."""
        asked = command(self.form, self._command_id)
        why = refusal(self._state(), asked)
        if not why and self.form == self._first and self._first.is_current:
            why = "nothing is chosen yet: the arrows change the level, esc leaves all as it is"
        if why:
            self.app.notify(why, severity="warning")
        else:
            self.dismiss(asked)
