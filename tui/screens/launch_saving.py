"""Saves the launch form as a preset of the user."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ...presets.secrets import holds_secret
from ..background import background
from ..rows import glyphs
from ..rows.form_fields import NAMED, SET
from ..rows.glyphs import Row
from .modal import ConfirmScreen
from .prompts import WordsPrompt

if TYPE_CHECKING:
    from .launch import LaunchScreen

_KEPT = ("nproc", "nodes", "env", "nccl", "further")
"""Fields of the form whose values a saved preset contains."""


def _held(name: str, text: str) -> bool:
    """Whether a saved preset contains a field's text: secrets stay in the form."""
    if name in ("env", "further") or name.startswith(f"{SET}env."):
        pairs = (word.partition("=") for word in (f"{name}={text}", *text.split()))
        return not any(holds_secret(variable, value) for variable, _, value in pairs)
    return name.startswith((SET, NAMED)) or name in _KEPT


class PresetSaving:
    """Asks for a name, and again before it overwrites a preset."""

    def __init__(self, screen: LaunchScreen) -> None:
        self._screen = screen

    def ask(self) -> None:
        """Ask for the name of a new preset."""
        screen = self._screen
        entry = screen.presets.current
        if entry is None or screen.loaded is None:
            screen.notify("there is no preset to build on: choose one first", severity="error")
            return
        about = f"a preset of your own: {entry.name} with what was changed"
        screen.app.push_screen(WordsPrompt("save as", "a name", about), self._named)

    def _named(self, name: str | None) -> None:
        if name and name.strip():
            self._start(name.strip(), replace=False)

    def _start(self, name: str, replace: bool) -> None:
        background(self._screen, "save", self._save(name, replace), exclusive=True)

    async def _save(self, name: str, replace: bool) -> None:
        screen = self._screen
        app, form_view = screen.app, screen.form_view
        try:
            with app.refusals():
                path = await asyncio.to_thread(app.source.save, name, screen.form, replace)
                typed = form_view.typed.items()
                form_view.forget([field for field, text in typed if _held(field, text)])
                screen.presets.set_entries(app.source.presets(), name)
                screen.notify(f"saved as {path}")
        except FileExistsError as error:
            rows: list[Row] = [((f"{glyphs.WARN} {error} exists, and will be overwritten.", "text"),)]
            question = ConfirmScreen(f"Replace the preset {name}?", rows, "replace", app.view.ascii)
            app.push_screen(question, lambda yes: self._start(name, replace=True) if yes else None)
