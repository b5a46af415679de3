"""The user's choices of this cockpit: changed by keys, and written for later cockpits."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace
from textual.app import App

from ..runners.run.settings_file import SettingsError
from .background import after, background
from .user_settings import keep, load

KEEP_AFTER_S = 0.5
"""Seconds from a choice to its writing, so that held keys cause one write."""


class Choices:
    """The settings of the user. A file that cannot be written limits a choice to this cockpit."""

    def __init__(self, app: App[None], path: Path, is_kept: bool = True) -> None:
        """`is_kept`: whether choices are written for later cockpits."""
        self._app, self._path, self._is_kept = app, path, is_kept
        self.settings, self.problems = load(path)
        self._unkept: dict[str, object] = {}
        """Choices that are not written yet."""

    def choose(self, **fields: object) -> None:
        """Change settings, and write them soon."""
        self.settings = replace(self.settings, **fields)
        if not self._unkept:
            background(self._app, "settings", after(KEEP_AFTER_S, self._keep))
        self._unkept |= fields

    def _keep(self) -> None:
        try:
            self.write()
        except SettingsError as error:
            self._app.notify(str(error), severity="warning", timeout=20)

    def write(self) -> None:
        """Write the choices that are not written yet. Raises SettingsError."""
        fields, self._unkept = self._unkept, {}
        if fields and self._is_kept:
            keep(self._path, fields)
