"""Dialogs: a question, a text, one line of input, NCCL_DEBUG, the diagnosis."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, TypeVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal, Vertical
from textual.events import Resize
from textual.screen import ModalScreen, Screen
from textual.timer import Timer
from textual.widgets import Input, Label, Static

from ...presets.clean import clean_text
from ...runners.model import Dump, SetNccl
from ...runners.state import RunState
from ...runners.wire.client import new_id
from ...runners.wire.link import LinkError
from ..rows.glyphs import Row, hang, numbers, wrap
from ..rows.log import Selection, named
from ..rows.nccl import NcclForm, begin, change, command, form_rows, note_rows
from ..widgets.boards import Diagnosis, FindingList, NcclBoard, StatementRows
from ..widgets.log_view import LogView
from ..widgets.rows_view import RowsView

if TYPE_CHECKING:
    from ..app import CockpitApp

# -----------------------------------------------------------------------------------------------------------
# Screens on top of others: a question, a text, one line of input.


Answer = TypeVar("Answer")


class _Box(Vertical):
    """The frame of a modal screen."""


class RowsModal(ModalScreen[Answer]):
    """A title, rows, and a line of keys, no larger than needed."""

    def __init__(self, title: str, rows: Sequence[Row], keys: Row, ascii_only: bool = False) -> None:
        super().__init__()
        self._question = title
        self._answer_rows = rows
        self.view = RowsView(id="modal-rows")
        self._key_row = RowsView(id="modal-keys")
        self._key_row.can_focus = False
        self.view.ascii_only = self._key_row.ascii_only = ascii_only
        self._key_row.set_rows([keys])

    def compose(self) -> ComposeResult:
        with _Box(id="box"):
            yield Static(self._question, id="modal-title", markup=False)
            yield self.view
            yield self._key_row

    def on_resize(self, event: Resize) -> None:
        width = min(96, event.size.width - 8)
        rows = [part for row in self._answer_rows for part in hang(row, width - 7)]
        self.view.set_rows(rows)
        self.view.styles.height = max(1, min(len(rows), event.size.height - 9))
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
        gap = "   " if other else "     "
        second: Row = (("a", "key"), (f" {other}{gap}", "text")) if other else ()
        keys: Row = (
            ("y", "key"),
            (f" {verb}{gap}", "text"),
            *second,
            ("Enter", "key"),
            (" cancel" if other else " cancel (default)", "text"),
        )
        super().__init__(title, rows, keys, ascii_only)

    def action_answer(self, answer: str) -> None:
        if answer != "a" or self._other:
            self.dismiss(answer)


class TypedScreen(RowsModal[str]):
    """Asks before something that cannot be undone: its name has to be typed. Returns what was typed; "" cancels."""

    BINDINGS: ClassVar[list[Binding]] = [  # type: ignore[assignment]
        Binding("escape", "cancel", "cancel", id="typed.cancel")
    ]

    def __init__(
        self, title: str, rows: Sequence[Row], name: str, verb: str, ascii_only: bool = False
    ) -> None:
        keys: Row = (("Enter", "key"), (f" {verb}     ", "text"), ("esc", "key"), (" cancel", "text"))
        super().__init__(title, rows, keys, ascii_only)
        self._name = name

    def compose(self) -> ComposeResult:
        with _Box(id="box"):
            yield Static(self._question, id="modal-title", markup=False)
            yield self.view
            with Horizontal(id="typed"):
                yield Label(f"type {self._name}:", id="typed-label", markup=False)
                yield Input(compact=True, id="typed-input")
            yield self._key_row

    def on_mount(self) -> None:
        self.view.can_focus = False
        self.query_one(Input).focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self.dismiss(event.value.strip())

    def action_cancel(self) -> None:
        self.dismiss("")


class TextScreen(RowsModal[None]):
    """Something to read: help, or what a dump brought."""

    BINDINGS: ClassVar[list[Binding]] = [  # type: ignore[assignment]
        Binding("escape,q,enter,question_mark", "close", "close", id="text.close")
    ]

    def __init__(self, title: str, rows: Sequence[Row], ascii_only: bool = False) -> None:
        keys: Row = (
            ("esc", "key"),
            (" close   ", "text"),
            ("j k PgUp PgDn g G", "key"),
            (" scroll", "text"),
        )
        super().__init__(title, rows, keys, ascii_only)

    def action_close(self) -> None:
        self.dismiss(None)


class PromptScreen(ModalScreen[str | None]):
    """One line of input at the bottom: `:` commands and `/` filters."""

    BINDINGS: ClassVar[list[Binding]] = [  # type: ignore[assignment]
        Binding("escape", "cancel", "cancel", id="prompt.cancel")
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

    def action_cancel(self) -> None:
        self.dismiss(None)


# -----------------------------------------------------------------------------------------------------------
# The NCCL_DEBUG dialog: level, for how long, live or by a restart, and subsystems with what each costs.


_KEYS: Row = (
    ("← →", "key"), (" change   ", "text"), ("space", "key"), (" choose   ", "text"), ("Enter", "key"),
    (" go on (asks once more)   ", "text"), ("esc", "key"), (" cancel", "text"),
)  # fmt: skip


class _ModalRows(RowsView):
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
        self.choices = _ModalRows(id="modal-rows", cursor=True)
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
        rows, notes = form_rows(self.form, self._width), note_rows(self.form, self._width)
        self.hint.styles.height = len(notes)
        self.choices.styles.height = max(3, min(len(rows), self._height - 9 - len(notes)))
        self.choices.set_rows(rows)
        self.hint.set_rows(notes)

    def action_change(self, step: int) -> None:
        """Change the value of the current row."""
        self.form = change(self.form, self.choices.cursor, step)
        self._draw()

    def action_apply(self) -> None:
        """Hand the command over to the confirmation."""
        self.dismiss(command(self.form, self._command_id))

    def action_cancel(self) -> None:
        self.dismiss(None)


# -----------------------------------------------------------------------------------------------------------
# What a run's screen does with findings and statements: open their lines in the log, ask where the ranks are.


_AT = re.compile(r"(?P<file>\S+):(?P<line>\d+): (?P<text>.*)", re.DOTALL)
"""Evidence that is a line of a log."""
_SPECIAL = re.compile(r"[\\.^$*+?{}\[\]|()]")
_LONGEST = 160
"""Characters of a line by which it is found again."""

PATIENCE_S = 0.5
"""How long an answer may take before somebody wonders whether the key was heard."""


def pattern_of(text: str) -> str:
    """A regular expression that finds this line; of a line of NCCL's the message alone."""
    message = text.partition(" NCCL ")[2] or text
    return _SPECIAL.sub(r"\\\g<0>", message.strip()[:_LONGEST])


class DiagnosingScreen(Screen[None]):
    """The part of the run screen that belongs to the findings and to the NCCL screen."""

    app: CockpitApp
    log_view: LogView
    diagnosis: Diagnosis
    nccl: NcclBoard
    _from: tuple[str, Selection] | None = None
    """The pane from which a line was opened, and what the log showed before."""

    # --- from a finding to the log

    @on(FindingList.Zoomed)
    def _zoom_finding(self, event: FindingList.Zoomed) -> None:
        """The line that is its evidence; else the log of its first rank."""
        for finding in event.item.findings:
            for line in finding.evidence:
                place = _AT.fullmatch(clean_text(line))
                if place is not None and named(place["file"]) is not None:
                    self.open_line(place["file"], int(place["line"]), place["text"])
                    return
        ranks = event.item.ranks
        if ranks:
            self._open_log(Selection(rank=ranks[0]))
        else:
            self.notify("this finding names no rank and no line: what is known of it stands below")

    @on(StatementRows.Opened)
    def _open_statement(self, event: StatementRows.Opened) -> None:
        if event.line is None:
            self.notify("no single line says this")
        else:
            self.open_line(event.line.file, event.line.line, event.line.text)

    def open_line(self, file: str, line: int, text: str) -> None:
        """Show a line where it stands; of a file that is not of this attempt, the line alone."""
        parsed = named(file)
        state = self.app.follower.state if self.app.follower is not None else None
        current = state is not None and parsed is not None and parsed.attempt in (None, state.attempt)
        if parsed is None or parsed.rank is None or not current:
            self._show_text(f"{file}, line {line}", wrap(clean_text(text), 80))
            return
        self._open_log(
            Selection(rank=parsed.rank, stream=parsed.stream, pattern=pattern_of(clean_text(text)))
        )

    def _open_log(self, selection: Selection) -> None:
        self._from = (self.app.view.pane, self.log_view.selection)
        self.log_view.select(selection)
        self.log_view.set_follow(True)
        self.app.change_view(pane="log")
        self.call_after_refresh(self.log_view.focus)

    def went_back(self) -> bool:
        """From a line that was opened here to where it was opened; False when none was."""
        if self._from is None or self.app.view.pane != "log":
            self._from = None
            return False
        (pane, before), self._from = self._from, None
        self.log_view.select(before)
        self.log_view.set_follow(True)
        self.show_pane(pane)
        return True

    def show_pane(self, pane: str) -> None:
        """Put a pane in front."""
        raise NotImplementedError

    # --- the NCCL screen

    def action_communicator(self, step: int) -> None:
        self.nccl.choose(step)

    # --- where the ranks are

    def action_stacks(self) -> None:
        """Ask the marked ranks, or all, for their stacks, and show equal ones together."""
        state = self.app.follower.state if self.app.follower is not None else None
        if state is None or state.phase.ended:
            self.notify("the run has ended: there are no ranks to ask")
            return
        marked = tuple(sorted(self.app.view.marked & set(state.ranks)))
        who = "the marked ranks" if marked else "every rank"
        late = self.set_timer(PATIENCE_S, lambda: self.notify(f"asking {who} for stacks", timeout=2))
        self.run_worker(self._ask_stacks(marked, late), group="stacks", exclusive=True)

    async def _ask_stacks(self, ranks: tuple[int, ...], late: Timer) -> None:
        follower = self.app.follower
        if follower is None:
            return
        try:
            done = await follower.send(Dump(new_id(), "stacks", ranks))
        except LinkError as error:
            self.notify(str(error), severity="error", markup=False)
            return
        finally:
            late.stop()
        if not done.data:
            self.notify(done.text, severity="information" if done.ok else "error", markup=False)
            return
        from ..rows.findings import stack_rows, stack_title

        self._show_text(stack_title(done.data), stack_rows(done.data))

    def _show_text(self, title: str, rows: list[Row]) -> None:

        self.app.push_screen(TextScreen(title, rows, self.app.view.ascii))
