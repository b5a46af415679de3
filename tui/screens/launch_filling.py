"""Fills the launch form from a run, from an earlier launch, or from the settings."""

from __future__ import annotations

from ...runners.launch import launch_settings, recent
from ...runners.launch.launch_form import LaunchForm, with_free_name
from ...runners.run.errors import LaunchError
from ..rows.form_fields import typed_of
from ..source import LocalSource
from .launch_fields import FormView
from .launch_presets import PresetList


class FormFilling:
    """Fills the form, and steps through the earlier launches."""

    def __init__(self, presets: PresetList, form_view: FormView) -> None:
        self._presets, self._form_view = presets, form_view
        self._recents: list[LaunchForm] = []
        self._recent_index = -1
        """Index of the displayed launch in `_recents`; -1 if the form does not show one."""

    def begin(self, source: LocalSource, run: str, asked_to_rerun: bool) -> None:
        """Fill the form from the run with this id, the last launch, or the settings.

        `asked_to_rerun`: the user asked to launch that run again, so a form that cannot be shown is an error.
        """
        if run:
            try:
                self._fill(source.form_of(run), "copied from the selected run")
            except LaunchError as error:
                if asked_to_rerun:
                    self._form_view.notify(str(error), severity="error")
            else:
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
