"""The NCCL_DEBUG dialog: level, for how long, live or by a restart, and subsystems with what each costs."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.events import Resize
from textual.screen import ModalScreen
from textual.widgets import Static

from ...runners.model import SetNccl
from ...runners.state import RunState
from ..rows.cells import Row, numbers
from ..rows.nccl import NcclForm, begin, change, command, form_rows, note_rows
from ..widgets.rows_view import RowsView

_KEYS: Row = (
    ("← →", "key"), (" change   ", "text"), ("space", "key"), (" choose   ", "text"), ("Enter", "key"),
    (" go on (asks once more)   ", "text"), ("esc", "key"), (" cancel", "text"),
)  # fmt: skip


class _Choices(RowsView):
    """The form's rows; the keys that change a value go to the screen."""

    BINDINGS: ClassVar[list[Binding]] = [
        Binding("right,l,space", "screen.change(1)", "next value"),
        Binding("left,h", "screen.change(-1)", "previous value"),
        Binding("enter", "screen.apply", "go on"),
    ]


class NcclScreen(ModalScreen[SetNccl | None]):
    """Returns the command to confirm, or None."""

    BINDINGS: ClassVar[list[Binding]] = [  # type: ignore[assignment]
        Binding("escape,q", "cancel", "cancel", id="nccl.cancel")
    ]

    def __init__(
        self, state: RunState, marked: frozenset[int], command_id: str, ascii_only: bool = False
    ) -> None:
        super().__init__()
        self.form: NcclForm = begin(state, marked)
        self._command_id = command_id
        self.choices = _Choices(id="modal-rows", cursor=True)
        self.foot = RowsView(id="modal-keys")
        self.foot.can_focus = False
        self.hint = RowsView(id="modal-hint")
        self.hint.can_focus = False
        self.choices.ascii_only = self.foot.ascii_only = self.hint.ascii_only = ascii_only

    def compose(self) -> ComposeResult:
        ranks = self.form.ranks
        who = f"ranks {numbers(ranks)} (marked)" if ranks else "every rank"
        with Vertical(id="box"):
            yield Static(f"NCCL_DEBUG of {who}", id="modal-title", markup=False)
            yield self.choices
            yield self.hint
            yield self.foot

    def on_mount(self) -> None:
        self.foot.set_rows([_KEYS])
        self.choices.focus()

    def on_resize(self, event: Resize) -> None:
        width = min(110, event.size.width - 4)
        self.query_one("#box").styles.width = width
        self._width, self._height = width - 8, event.size.height * 9 // 10
        self._draw()

    def _draw(self) -> None:
        """The choices in the rows that the sentences below leave."""
        rows, said = form_rows(self.form, self._width), note_rows(self.form, self._width)
        self.hint.styles.height = len(said)
        self.choices.styles.height = max(3, min(len(rows), self._height - 9 - len(said)))
        self.choices.set_rows(rows)
        self.hint.set_rows(said)

    def action_change(self, step: int) -> None:
        """Change the value of the current row."""
        self.form = change(self.form, self.choices.cursor, step)
        self._draw()

    def action_apply(self) -> None:
        """Hand the command over to the confirmation."""
        self.dismiss(command(self.form, self._command_id))

    def action_cancel(self) -> None:
        self.dismiss(None)
