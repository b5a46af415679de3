"""What presets and plans can refuse; imported by every verb, so that nothing else is in here."""

from __future__ import annotations


class PresetError(Exception):
    """A preset cannot be read or found; the text is one sentence that says where and what to do."""


class PlanError(Exception):
    """No plan can be made; the text is one sentence that says what was wrong and what to do."""
