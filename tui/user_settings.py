"""The user's view settings in `settings.toml`: theme, hosts, columns, curves. Reading them is cheap and never fails.

Each change is written into the current file under a lock, so that changes and comments by other cockpits or editors
stay. A file that is invalid TOML, or that other users can write, is not changed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, MutableMapping
from pathlib import Path
from typing import Any

from ..presets import base_dirs
from ..presets.finding import PresetError
from ..presets.sanitize import quoted
from ..presets.spelling import did_you_mean
from ..runners.diagnosis import diagnosis_settings
from ..runners.launch import launch_settings
from ..runners.logs import log_settings
from ..runners.notify import channels
from ..runners.removal import retention
from ..runners.run import file_io
from ..runners.run.settings_file import SettingsError, document_of, no_section, no_toml, settings_text
from ..runners.telemetry import export_settings
from .setting_keys import KEYS, NAMES, SECTIONS, UserSettings

OF_RUNS: dict[str, Callable[[Any, Path], tuple[str, ...]]] = {
    launch_settings.SECTION: lambda table, path: launch_settings.of_table(table, path).problems,
    "notify": channels.problems_of,
    export_settings.SECTION: lambda table, path: export_settings.of_table(table, path).all_problems,
    diagnosis_settings.SECTION: lambda table, path: diagnosis_settings.of_table(table, path).problems,
    log_settings.SECTION: lambda table, path: log_settings.of_table(table, path).problems,
    retention.SECTION: lambda table, path: retention.of_table(table, path).problems,
}
"""Sections that runs and launches also read."""


def load(path: Path, environ: Mapping[str, str] = os.environ) -> tuple[UserSettings, list[str]]:
    """Return the settings, and a sentence for each unusable part of the file."""
    if not os.path.lexists(path):
        return UserSettings(), []
    try:
        return settings_of(document_of(path, environ), path)
    except SettingsError as error:
        return UserSettings(), [f"{error}; nothing of it is used"]


def settings_of(document: Mapping[str, Any], path: Path) -> tuple[UserSettings, list[str]]:
    """Return the settings of a document, and its problems. Pure."""
    chosen: dict[str, Any] = {}
    problems: list[str] = []
    for name, value in _flat(document).items():
        if name in OF_RUNS:
            problems += OF_RUNS[name](value, path)
            continue
        key = KEYS.get(name)
        if key is None:
            problems.append(f"{path}: {_unknown(name)}")
        elif not key.fits(value):
            problems.append(f"{path}: {name} must be {key.wants}")
        else:
            chosen[key.field] = tuple(value) if isinstance(value, list) else value
    return UserSettings(**chosen), problems


def _unknown(name: str) -> str:
    if name in SECTIONS:
        return f"{name} must be a section, [{name}]"
    meant = did_you_mean(name, sorted(KEYS))
    return f"there is no setting {quoted(name)}" + (f"; {meant}" if meant else "")


def _flat(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values by dotted name. A name that is no section is one value, even if it is a table."""
    flat: dict[str, Any] = {}
    for name, value in document.items():
        if name in SECTIONS and isinstance(value, Mapping):
            flat.update({f"{name}.{inner}": each for inner, each in value.items()})
        else:
            flat[name] = value
    return flat


def keep(path: Path, changes: Mapping[str, Any], environ: Mapping[str, str] = os.environ) -> None:
    """Write these fields of `UserSettings` into the file; a field with distui's own choice is removed from it.

    Raises SettingsError; the file is then unchanged.
    """
    import tomlkit  # slow to load and rarely needed
    from tomlkit.exceptions import TOMLKitError

    try:
        with base_dirs.alone(path.parent, "settings.lock"):
            document = tomlkit.parse(settings_text(path, environ) if os.path.lexists(path) else "")
            for field, value in changes.items():
                _put(document, NAMES[field], value, path)
            target = Path(os.path.realpath(path))  # keeps a symbolic link
            file_io.write_atomically(target, tomlkit.dumps(document).encode("utf-8"))
    except SettingsError as error:
        raise SettingsError(f"the choice is not saved: {error}") from None
    except (TOMLKitError, RecursionError, ValueError) as error:
        raise SettingsError(f"the choice is not saved: {no_toml(path, error)}; fix or remove it") from None
    except (OSError, PresetError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise SettingsError(f"the choice is not saved: {path} cannot be written: {why}") from None


def _put(document: MutableMapping[str, Any], name: str, value: Any, path: Path) -> None:
    """Change one value of a document, and remove a section that becomes empty. Raises SettingsError."""
    section, _, key = name.rpartition(".")
    table: Any = document
    if section:
        if section not in document and value:
            document[section] = {}
        table = document.get(section, {})
        if not isinstance(table, MutableMapping):
            raise SettingsError(no_section(path, section))
    if value:
        table[key] = list(value) if isinstance(value, tuple) else value
    elif key in table:
        del table[key]
        if section and not table:
            del document[section]
