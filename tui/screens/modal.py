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

from ...runners.formatting import spans_text
from ...runners.model import SetNccl
from ...runners.nccl_reach import refusal
from ...runners.state import RunState
from ..rows.glyphs import Row, clip, hang, key_row, row_width
from ..rows.nccl_dialog import NcclForm, begin, change, command, form_rows, note_rows
from .rows_view import RowsView

Answer = TypeVar("Answer")

LOW = 22
"""Rows of a terminal below which a dialog has no blank lines."""


def key_rows(keys: Row, width: int) -> list[Row]:
    """Keys with their words in as many rows as they need: an answer is never out of sight."""
    rows: list[Row] = []
    row: Row = ()
    for at in range(0, len(keys), 2):
        pair = keys[at : at + 2]
        if row and row_width((*row, (pair[0][0] + pair[-1][0].rstrip(), ""))) > width:
            rows.append(row)
            row = ()
        row = (*row, *pair)
    return [*rows, row]


class RowsModal(ModalScreen[Answer]):
    """A title, rows, what stands `between` them and the keys, which are always in sight; no larger than needed."""

    WIDEST: ClassVar[int] = 96

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
        self._keys_row = keys
        self._between = between
        self.view = view or RowsView(id="modal-rows")
        self.foot = RowsView(id="modal-keys")
        self.foot.can_focus = False
        self.view.ascii_only = self.foot.ascii_only = ascii_only

    def compose(self) -> ComposeResult:
        with Vertical(id="box"):
            yield Static(self._question, id="modal-title", markup=False)
            yield self.view
            yield from self._between
            yield self.foot

    def on_resize(self, event: Resize) -> None:
        self.fit_into(event.size)

    def room(self, size: Size) -> tuple[int, int]:
        """Columns and rows for what stands between title and keys, in a terminal of this size; sets the box up."""
        low = size.height < LOW
        self.set_class(low, "-low")
        width = min(self.WIDEST, size.width - (8 if size.width >= 80 else 2))
        self.query_one("#box").styles.width = width
        inner = width - (4 if low else 6)
        keys = key_rows(self._keys_row, inner)
        self.foot.set_rows(keys)
        self.foot.styles.height = len(keys)
        title = -(-max(1, cell_len(self._question)) // max(1, inner))
        return inner - 1, size.height - (2 if low else 6) - title - len(keys)

    def fit_into(self, size: Size) -> None:
        """Take what is needed of a terminal of this size."""
        width, height = self.room(size)
        rows = [part for row in self._answer_rows for part in hang(row, width)]
        self.view.set_rows(rows)
        self.view.styles.height = shown = max(1, min(len(rows), height - self.taken()))
        more = len(rows) > shown
        self.query_one("#box").border_subtitle = f"{len(rows)} lines: j k PgDn scroll" if more else ""

    def taken(self) -> int:
        """Rows of what stands between the rows and the keys."""
        return 2 * len(self._between)


class ConfirmScreen(RowsModal[str]):
    """Asks before a run is changed: Enter cancels (""), "y" does it, "a" does it another way where there is one."""

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
        ascii_only: bool = False,
        other: str = "",
        *,
        more: Sequence[Row] = (),
        save: str = "",
    ) -> None:
        """`more`: what `e` shows in place of `rows`; `other` and `save`: what `a` and `s` do."""
        self._verb, self._other, self._save, self._more = verb, other, save, more
        pairs = [("y", f" {verb}   ")]
        pairs += [("a", f" {other}   ")] if other else []
        pairs += [("s", f" {save}   ")] if save else []
        pairs += [("e", " shows all   ")] if more else []
        super().__init__(title, rows, key_row(*pairs, ("Enter", " cancel")), ascii_only)

    def action_answer(self, answer: str) -> None:
        if (answer != "a" or self._other) and (answer != "s" or self._save):
            self.dismiss(answer)

    def action_cancel(self) -> None:
        """Enter: as the question says; whoever pressed it twice hears that nothing was done."""
        self.app.notify(f"cancelled, nothing was changed: y would {self._verb}", timeout=3)
        self.dismiss("")

    def action_unfold(self) -> None:
        """The rows in full, or folded again."""
        if self._more:
            self._answer_rows, self._more = self._more, self._answer_rows
            self.fit_into(self.size)


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


class WideScreen(TextScreen):
    """Something to read that takes the width of the terminal: its rows are made for the columns that there are."""

    WIDEST: ClassVar[int] = 1000

    def __init__(self, title: str, made: Callable[[int], Sequence[Row]], ascii_only: bool = False) -> None:
        """`made` gives the rows for so many columns."""
        self._made = made
        super().__init__(title, (), ascii_only)

    def fit_into(self, size: Size) -> None:
        self._answer_rows = self._made(self.room(size)[0])
        super().fit_into(size)


_KEYS = key_row(
    ("← →", " change   "), ("space", " choose   "), ("Enter", " go on (asks again)   "), ("esc", " cancel")
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

    WIDEST: ClassVar[int] = 110
    BINDINGS: ClassVar[list[Binding]] = [  # type: ignore[assignment]
        Binding("escape,q", "dismiss", "cancel", id="nccl.cancel")
    ]

    def __init__(
        self,
        state: Callable[[], RunState],
        marked: frozenset[int],
        command_id: str,
        ascii_only: bool = False,
    ) -> None:
        """`state`: as it is when it is called."""
        self._state = state
        self.form: NcclForm = begin(state(), marked)
        self._first = self.form
        self._command_id = command_id
        self.hint = RowsView(id="modal-hint")
        self.hint.can_focus = False
        self.hint.ascii_only = ascii_only
        ranks = self.form.ranks
        who = f"{spans_text('rank', ranks)} (marked)" if ranks else "every rank"
        view = _ModalRows(id="modal-rows", cursor=True)
        title = f"NCCL_DEBUG of {who} of {state().name}"
        super().__init__(title, (), _KEYS, ascii_only, view=view, between=[self.hint])

    def fit_into(self, size: Size) -> None:
        self._width, self._height = self.room(size)
        self._draw()

    def _draw(self) -> None:
        """The choices in the rows that the sentences below leave; of those where it is low one line each."""
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
        """Hand the command over to the question, unless it would change nothing."""
        asked = command(self.form, self._command_id)
        why = refusal(self._state(), asked)
        if self.form == self._first and not why:
            why = "nothing is chosen yet: the arrows change the level, esc leaves all as it is"
        if why:
            self.app.notify(why, severity="warning")
        else:
            self.dismiss(asked)
