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
    """The earlier launches, and the place of the displayed one among them."""

    def __init__(self, presets: PresetList, form_view: FormView) -> None:
        self._presets, self._form_view = presets, form_view
        self._recents: list[LaunchForm] = []
        self._recent = -1

    def begin(self, source: LocalSource, run: str, again: bool) -> None:
        """Fill the form from the run with this id, the last launch, or the settings.

        `again`: whether the user asked to launch that run again, and wants to know why its form cannot be shown.
        """
        if run:
            try:
                self._fill(source.form_of(run), "as the run at hand")
            except LaunchError as error:
                if again:
                    self._form_view.notify(str(error), severity="error")
            else:
                return
        self._recents = recent.read()
        defaults = launch_settings.load()
        if self._recents:
            self._recent = 0
            self._fill(self._recents[0], "as the last launch: ^r goes back further")
        elif defaults.preset or defaults.place:
            self._fill(LaunchForm(preset=defaults.preset, place=defaults.place), "as the settings say")

    def go_back(self) -> bool:
        """Fill the form from the launch before the displayed one; return False if there is none."""
        self._recents = self._recents or recent.read()
        if not self._recents:
            return False
        self._recent = (self._recent + 1) % len(self._recents)
        note = f"launch {self._recent + 1} of {len(self._recents)}: ^r goes on"
        self._fill(self._recents[self._recent], note)
        return True

    def _fill(self, form: LaunchForm, note: str) -> None:
        """Show an earlier launch, under a name that is not in use."""
        form = with_free_name(form)
        if form.preset in [entry.name for entry in self._presets.entries]:
            self._presets.go(form.preset)
        self._form_view.fill(typed_of(form))
        self._form_view.border_subtitle = note
