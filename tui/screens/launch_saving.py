"""Saves the launch form as a preset of the user."""

from __future__ import annotations

import asyncio

from ...presets.secrets import holds_secret
from ...runners.launch.launch_form import LaunchForm
from ..background import background
from ..rows import glyphs
from ..rows.form_fields import FURTHER, NAMED, OPTION, SET
from ..rows.glyphs import Row
from .cockpit import Cockpit
from .launch_fields import FormView
from .launch_presets import PresetList
from .modal import ConfirmScreen
from .prompts import WordsPrompt

_ENV = f"{OPTION}env"
_KEPT = ("nproc", f"{OPTION}nnodes", _ENV, "nccl_debug", FURTHER.name)
"""Fields of the form whose values a saved preset contains."""


def _held(name: str, text: str) -> bool:
    """Whether a saved preset contains a field's text: secrets stay in the form."""
    if name in (_ENV, FURTHER.name) or name.startswith(f"{SET}env."):
        pairs = (word.partition("=") for word in (f"{name}={text}", *text.split()))
        return not any(holds_secret(variable, value) for variable, _, value in pairs)
    return name.startswith((SET, NAMED)) or name in _KEPT


class PresetSaving:
    """Asks for a name, and again before it overwrites a preset."""

    def __init__(self, app: Cockpit, presets: PresetList, form_view: FormView) -> None:
        self._app, self._presets, self._form_view = app, presets, form_view

    def ask(self, form: LaunchForm) -> None:
        """Ask for the name of a new preset."""
        about = f"Enter saves {form.preset} with your changes as a preset of your own, esc cancels"
        self._app.push_screen(
            WordsPrompt("save as", "a name", about), lambda name: self._start(form, (name or "").strip())
        )

    def _start(self, form: LaunchForm, name: str, replace: bool = False) -> None:
        if name:
            background(self._form_view, "save", self._save(form, name, replace), exclusive=True)

    async def _save(self, form: LaunchForm, name: str, replace: bool) -> None:
        app = self._app
        try:
            with app.refusals():
                path = await asyncio.to_thread(app.source.save, name, form, replace)
                typed = self._form_view.typed.items()
                self._form_view.forget([field for field, text in typed if _held(field, text)])
                self._presets.set_entries(app.source.presets(), name)
                app.notify(f"saved as {path}")
        except FileExistsError as error:
            rows: list[Row] = [((f"{glyphs.WARN} {error} exists, and will be overwritten.", "text"),)]
            question = ConfirmScreen(f"Replace the preset {name}?", rows, "replace")
            app.push_screen(question, lambda yes: self._start(form, name, replace=True) if yes else None)
