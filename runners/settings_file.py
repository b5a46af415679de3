"""Where the user's own `settings.toml` lies, and its text: for the cockpit, and for what a run itself reads of it."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ..presets import trusted_files
from ..presets.finding import PresetError, did_you_mean
from ..presets.sanitize import quoted


class SettingsError(Exception):
    """The file cannot be used, or a choice was not written; the text is one sentence."""


def settings_path(environ: Mapping[str, str] = os.environ) -> Path:
    """`${XDG_CONFIG_HOME:-~/.config}/distui/settings.toml`."""
    return trusted_files.base("XDG_CONFIG_HOME", environ) / "distui" / "settings.toml"


def settings_text(path: Path, environ: Mapping[str, str]) -> str:
    """What stands in it. Raises SettingsError, also where there is no such file."""
    try:
        trusted = {entry.path: entry.sha256 for entry in trusted_files.entries(environ)}
    except PresetError:
        trusted = {}
    try:
        return trusted_files.read(path, trusted).decode("utf-8")
    except trusted_files.PassedOver as error:
        raise SettingsError(str(error).rstrip(".")) from None
    except trusted_files.NoFile as error:
        raise SettingsError(f"{path}: {error}") from None
    except UnicodeDecodeError:
        raise SettingsError(f"{path} is not UTF-8") from None
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error.strerror or error}") from None


def section_of(name: str, environ: Mapping[str, str] = os.environ) -> Any:
    """What stands under that name; {} where nothing does. Raises SettingsError."""
    path = settings_path(environ)
    if not os.path.lexists(path):
        return {}
    try:
        return tomllib.loads(settings_text(path, environ)).get(name, {})
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        why = str(error) or type(error).__name__
        raise SettingsError(f"{path} is not TOML that can be read ({why})") from None


def no_section(path: Path, section: str) -> str:
    """What is wrong where a section's name holds a plain value."""
    return f"{path}: {section} has to be a section, [{section}]"


def strangers(
    path: Path, section: str, names: Iterable[str], keys: tuple[str, ...], there: str
) -> list[str]:
    """A sentence for each name of a section that is none of its keys; `there`: which it has."""
    return [
        f"{path}: there is no setting {quoted(f'{section}.{name}')}; {did_you_mean(name, keys) or there}"
        for name in names
        if name not in keys
    ]
