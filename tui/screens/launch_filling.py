"""Fills the launch form from a run, from an earlier launch, or from the settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...runners.launch import launch_settings, recent
from ...runners.launch.launch_form import LaunchForm, with_free_name
from ...runners.run.errors import LaunchError
from ..rows.form_fields import typed_of

if TYPE_CHECKING:
    from .launch import LaunchScreen


class FormFilling:
    """The sources of the form's values, and the place in the earlier launches."""

    def __init__(self, screen: LaunchScreen, run: str, again: bool) -> None:
        """`run`: id of a run, or ""; `again`: whether the user asked to launch that run again."""
        self._screen, self._run, self._again = screen, run, again
        self._recents: list[LaunchForm] = []
        self._recent = -1

    def begin(self) -> None:
        """Fill the form from the given run, the last launch, or the settings."""
        if self._run and self._fill_from_run():
            return
        self._recents = recent.read()
        defaults = launch_settings.load()
        if self._recents:
            self._recent = 0
            self._fill(self._recents[0], "as the last launch: ^r goes back further")
        elif defaults.preset or defaults.place:
            self._fill(LaunchForm(preset=defaults.preset, place=defaults.place), "as the settings say")

    def _fill_from_run(self) -> bool:
        """Fill the form from the run; return False if that is impossible."""
        try:
            self._fill(self._screen.app.source.form_of(self._run), "as the run at hand")
        except LaunchError as error:
            if self._again:
                self._screen.notify(str(error), severity="error")
            return False
        return True

    def go_back(self) -> bool:
        """Fill the form from the launch before the displayed one; return False if there is none."""
        self._recents = self._recents or recent.read()
        if not self._recents:
            self._screen.notify("no launch of before is remembered")
            return False
        self._recent = (self._recent + 1) % len(self._recents)
        note = f"launch {self._recent + 1} of {len(self._recents)}: ^r goes on"
        self._fill(self._recents[self._recent], note)
        return True

    def _fill(self, form: LaunchForm, note: str) -> None:
        """Show an earlier launch, under a name that is not in use."""
        form, screen = with_free_name(form), self._screen
        if form.preset in [entry.name for entry in screen.presets.entries]:
            screen.presets.go(form.preset)
        screen.form_view.fill(typed_of(form))
        screen.form_view.border_subtitle = note
