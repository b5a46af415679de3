"""The NCCL_DEBUG dialog: level, subsystems with what each costs, for how long, live or by a restart."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal, Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, Label, RadioButton, RadioSet, SelectionList, Static

from ...presets.nccl import LEVELS, subsystems
from ...runners.model import SetNccl
from ...runners.state import RunState
from ..rows.cells import numbers
from ..rows.nccl import ways


class NcclScreen(ModalScreen[SetNccl | None]):
    """Returns the command to confirm, or None."""

    BINDINGS: ClassVar[list[Binding]] = [  # type: ignore[assignment]
        Binding("a", "apply", "apply", id="nccl.apply"),
        Binding("escape,q", "cancel", "cancel", id="nccl.cancel"),
    ]

    def __init__(self, state: RunState, marked: frozenset[int], command_id: str) -> None:
        super().__init__()
        self._state = state
        self._marked = tuple(sorted(marked & set(state.ranks)))
        self._command_id = command_id
        self._ways = ways(state)

    def compose(self) -> ComposeResult:
        versions = {rank.nccl_version for rank in self._state.ranks.values() if rank.nccl_version}
        names = subsystems(versions.pop() if len(versions) == 1 else None)
        now = {rank.nccl_debug for rank in self._state.ranks.values()}
        level = now.pop() if len(now) == 1 else None
        who = f"ranks {numbers(self._marked)} (marked)" if self._marked else "every rank (space marks some)"
        with Vertical(id="box"):
            yield Static(f"NCCL_DEBUG for {who}", id="modal-title", markup=False)
            with RadioSet(id="nccl-level", compact=True):
                for name in LEVELS:
                    yield RadioButton(name, value=name == (level or "WARN"))
            yield Label("subsystems (none: NCCL's own choice)", classes="field")
            yield SelectionList[str](
                *((f"{one.name:<10} {one.text}", one.name) for one in names), id="nccl-subsys", compact=True
            )
            with Horizontal(classes="row"):
                yield Label("seconds", classes="field")
                yield Input(placeholder="for ever", compact=True, id="nccl-seconds", type="number")
            yield Static(self._ways.text, id="nccl-ways", markup=False)
            with RadioSet(id="nccl-how", compact=True):
                yield RadioButton("live", value=self._ways.live, disabled=not self._ways.live)
                yield RadioButton("restart the worker group", value=not self._ways.live)
            yield Static(
                "a apply (asks once more)     esc cancel     tab next field", id="modal-hint", markup=False
            )

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self.action_apply()

    def action_apply(self) -> None:
        """Make the command, or say what is wrong with the number."""
        text = self.query_one("#nccl-seconds", Input).value.strip()
        seconds = _positive(text)
        if text and seconds is None:
            self.notify(f"{text!r} is not a number of seconds above 0", severity="error")
            return
        level = max(0, self.query_one("#nccl-level", RadioSet).pressed_index)
        chosen = self.query_one("#nccl-subsys", SelectionList).selected
        self.dismiss(
            SetNccl(
                id=self._command_id,
                level=LEVELS[level],
                subsys=",".join(chosen),
                ranks=self._marked,
                seconds=seconds,
                restart=self.query_one("#nccl-how", RadioSet).pressed_index == 1,
            )
        )

    def action_cancel(self) -> None:
        self.dismiss(None)


def _positive(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 < value < 1e7 else None
