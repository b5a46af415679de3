"""Saving the launch form's preset as one of the user's own: its name, and the question before a file is replaced."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ...presets.secrets import is_secret
from ...runners.errors import RunError
from ..follow import LaunchError
from ..rows import glyphs
from ..rows.cells import Row
from ..rows.fields import NAMED, SET
from .modal import ConfirmScreen, PromptScreen

if TYPE_CHECKING:
    from .launch import LaunchScreen

_KEPT = ("nproc", "nodes", "env", "nccl", "further")
"""Fields of the form that a saved preset holds from then on."""


def _held(name: str, text: str) -> bool:
    """Whether a saved preset holds what was typed into a field: secrets stay in the form."""
    if name in ("env", "further") or name.startswith(f"{SET}env."):
        return not any(is_secret(word.partition("=")[0]) for word in (name, *text.split()))
    return name.startswith((SET, NAMED)) or name in _KEPT


class Saving:
    """One saving, from the question for a name to the list with the new preset in it."""

    def __init__(self, screen: LaunchScreen) -> None:
        self._screen = screen

    def ask(self) -> None:
        """Ask for a name."""
        screen = self._screen
        entry = screen.shelf.current
        if entry is None or screen.loaded is None:
            screen.notify("there is no preset to build on: choose one first", severity="error")
            return
        hint = f"name of a preset of your own: {entry.name} with what was changed"
        screen.app.push_screen(PromptScreen("save as ", hint=hint), self._named)

    def _named(self, name: str | None) -> None:
        if name and name.strip():
            self._start(name.strip(), False)

    def _start(self, name: str, replace: bool) -> None:
        self._screen.run_worker(self._save(name, replace), group="save", exclusive=True)

    async def _save(self, name: str, replace: bool) -> None:
        screen = self._screen
        try:
            path = await asyncio.to_thread(screen.app.source.save, name, screen.form, replace)
        except FileExistsError as error:
            self._ask_replace(name, str(error))
            return
        except (LaunchError, RunError) as error:
            screen.notify(str(error), severity="error", markup=False)
            return
        screen.form_view.forget(
            [name for name, text in screen.form_view.typed.items() if _held(name, text)]
        )
        screen.shelf.set_entries(screen.app.source.presets(), name)
        screen.notify(f"saved as {path}", markup=False)

    def _ask_replace(self, name: str, path: str) -> None:
        rows: list[Row] = [((f"{glyphs.WARN} {path} exists, and what it says is lost.", "text"),)]
        question = ConfirmScreen(
            f"Replace the preset {name}?", rows, "replace", self._screen.app.view.ascii
        )

        def answered(yes: str | None) -> None:
            if yes:
                self._start(name, True)

        self._screen.app.push_screen(question, answered)
