"""Fills the launch form from a run, from an earlier launch, or from the settings."""

from __future__ import annotations

from ...runners.launch import launch_settings, recent
from ...runners.launch.launch_form import LaunchForm, with_free_name
from ...runners.launch.recent import CopiedForm
from ..rows.form_fields import typed_of
from .launch_fields import FormView
from .launch_presets import PresetList


class FormFilling:
    """Fills the form, and steps through the earlier launches."""

    def __init__(self, presets: PresetList, form_view: FormView) -> None:
        self._presets, self._form_view = presets, form_view
        self._recents: list[LaunchForm] = []
        self._recent_index = -1
        """Index of the displayed launch in `_recents`; -1 if the form does not show one."""

    def begin(self, copied: CopiedForm | None) -> None:
        """Fill the form with that of a run, from the last launch, or from the settings."""
        if copied is not None:
            self._fill(copied.form, copied.note)
            return
        self._recents = recent.read()
        defaults = launch_settings.load()
        if self._recents:
            self._recent_index = 0
            self._fill(self._recents[0], "from your last launch, ^r: the one before")
        elif defaults.preset or defaults.place:
            self._fill(LaunchForm(preset=defaults.preset, place=defaults.place), "from your settings")

    def go_back(self) -> bool:
        """Fill the form from the launch before the displayed one, after the oldest from the newest.

        Return False if there is no earlier launch.
        """
        self._recents = self._recents or recent.read()
        if not self._recents:
            return False
        self._recent_index = (self._recent_index + 1) % len(self._recents)
        note = f"launch {self._recent_index + 1} of {len(self._recents)}, ^r: the one before"
        self._fill(self._recents[self._recent_index], note)
        return True

    def _fill(self, form: LaunchForm, note: str) -> None:
        """Show a launch in the form, under a name that is not in use, and `note` below it."""
        form = with_free_name(form)
        if form.preset in [entry.name for entry in self._presets.entries]:
            self._presets.go(form.preset)
        self._form_view.fill(typed_of(form))
        self._form_view.border_subtitle = note
