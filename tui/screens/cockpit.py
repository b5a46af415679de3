"""The cockpit's app, as its screens and panes see it: the run, the view, messages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from msgspec.structs import replace

from ...presets.sanitize import as_message
from ...runners.run.errors import RunError
from ...runners.run.model import CommandDone
from ...runners.run.wire.client import LinkError
from ..background import after, background, stop
from ..choices import Choices
from ..open_run import OpenRun
from ..paint import PacedApp
from ..permissions import Permissions
from ..rows.frame import ViewOptions
from ..rows.typed_commands import CommandError
from ..source import LocalSource
from .flash import Flash

PATIENCE_S = 0.5
"""Seconds before the cockpit reports that it is waiting."""


class Cockpit(PacedApp):
    """Shows one run, and messages above the footer."""

    source: LocalSource
    choices: Choices
    permissions: Permissions
    view: ViewOptions
    clock: Callable[[], float]
    current: OpenRun | None = None
    """The run on the screen."""
    keys: Mapping[str, str] = {}
    """The user's own keys, as text, by action id."""
    typed_lines: Sequence[str] = ()
    """The lines that the user typed after `:`, the newest last."""

    def open_run(self, run: str) -> None:
        """Show this run instead of the current one."""
        raise NotImplementedError

    def return_to_list(self) -> None:
        """Show the list of runs if the run on the screen was opened from it."""
        raise NotImplementedError

    def rerun(self, run: str, name: str) -> None:
        """Ask whether to start an ended run again, with what differs from its launch."""
        raise NotImplementedError

    def open_form(self, run: str) -> None:
        """Open the launch form, filled from this run; if no form can hold its launch, show why."""
        raise NotImplementedError

    def publish(self) -> None:
        """Send a frame of the run to every pane."""
        if self.current is None:
            return
        permissions = self.permissions
        if permissions.readonly != self.view.readonly:
            self.view = replace(self.view, readonly=permissions.readonly)
        with self.pacer.together():
            self.current.frames.publish(self.current.frame(self.view))

    def change_view(self, **changes: object) -> None:
        self.view = replace(self.view, **changes)
        self.publish()

    # --- messages

    def notify(self, message: str, **options: Any) -> None:
        """Show a message above the footer if the screen has a place for it, else as a toast."""
        text = as_message(message)
        if flash := self._flash():
            flash.say(text, options.get("severity", "information"), options.get("timeout"))
        else:
            super().notify(text, **options | {"markup": False})  # names and paths may contain brackets

    def clear_messages(self) -> None:
        """Remove the messages on the screen."""
        if flash := self._flash():
            flash.clear()
        self.clear_notifications()

    def key_pressed(self) -> None:
        """Remove the messages that have been seen."""
        if flash := self._flash():
            flash.key_pressed()

    def report(self, done: CommandDone) -> None:
        """Show the result of a command."""
        self.notify(done.text, severity="information" if done.ok else "error")

    @contextmanager
    def refusals(self, late: str = "") -> Iterator[None]:
        """Show an error of the block as a message. `late` is shown if the block takes longer than PATIENCE_S."""
        if late:
            background(self, "patience", after(PATIENCE_S, partial(self.notify, late, timeout=2)))
        try:
            yield
        except (CommandError, LinkError, RunError) as error:
            self.notify(str(error), severity="error")
        finally:
            if late:
                stop(self, "patience")

    def _flash(self) -> Flash | None:
        return next(iter(self.screen.query(Flash)), None) if self.screen_stack else None

    def _refresh_notifications(self) -> None:
        """Move toasts of another screen to the run's own rows, where Textual would cover the run with them."""
        if flash := self._flash():
            for notice in self._notifications:
                flash.say(notice.message, notice.severity, notice.time_left)
            self._notifications.clear()
        super()._refresh_notifications()
