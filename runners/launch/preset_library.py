"""The presets that the launch form lists and opens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...presets.finding import PresetError
from ...presets.load import Library, library, load
from ...presets.model import Loaded
from ...presets.sanitize import LONGEST, clean_text
from ...presets.secrets import mask_text


@dataclass(frozen=True, slots=True, kw_only=True)
class PresetEntry:
    name: str
    title: str = ""
    summary: str = ""
    """When to use it."""
    strategy: str = ""
    origin: str = ""
    """ "" (shipped), "yours", "project", or "passed over" for a file that is ignored."""
    problem: str = ""
    """One sentence if it cannot be loaded, else ""."""


def listed(presets: Library) -> list[PresetEntry]:
    """Return every preset in the order of the library, then the unreadable files, then the ignored ones."""
    broken = [name for name in presets.problems if name not in presets.definitions]
    entries = [_entry(name, presets) for name in (*presets.names, *broken)]
    for file in presets.passed_over:
        name, problem = clean_text(file.path.name), clean_text(file.note, LONGEST)
        entries.append(PresetEntry(name=name, origin="passed over", problem=problem))
    return entries


def _origin(name: str, presets: Library) -> str:
    """Return the origin of the definition with the highest priority."""
    if name in presets.problems:  # files of the user only: an unreadable project file ends the search
        return "yours"
    kind, _, _ = presets.definitions[name][-1].origin.partition(" ")  # "user /…/mine.toml"
    return {"builtin": "", "user": "yours"}.get(kind, kind)


def _entry(name: str, presets: Library) -> PresetEntry:
    origin = _origin(name, presets)
    try:
        preset = load(name, presets=presets).preset
    except PresetError as error:
        problem = clean_text(str(error), LONGEST)
        return PresetEntry(name=clean_text(name), origin=origin, problem=problem)
    title, summary = clean_text(mask_text(preset.title)), clean_text(mask_text(preset.summary), LONGEST)
    return PresetEntry(
        name=name, title=title, summary=summary, strategy=preset.strategy.kind, origin=origin
    )


class PresetLibrary:
    """The preset library, cached until the next list."""

    def __init__(self) -> None:
        self._library: Library | None = None

    def entries(self) -> list[PresetEntry]:
        """Read all presets again. An unreadable project file becomes an entry with its problem."""
        try:
            self._library = library()
        except PresetError as error:
            self._library = None
            return [PresetEntry(name="distui.toml", origin="project", problem=str(error))]
        return listed(self._library)

    def load(self, name: str, overrides: Sequence[str] = ()) -> Loaded:
        """Load one preset. Raises PresetError."""
        if self._library is None:
            self._library = library()
        return load(name, overrides, presets=self._library)
