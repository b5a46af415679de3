"""Path and text of the user's `settings.toml`, and secrets that it refers to: for the cockpit and for runs."""

from __future__ import annotations

import os
import stat
import tomllib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from ...presets import base_dirs, trusted_files
from ...presets.finding import PresetError
from ...presets.sanitize import quoted
from ...presets.spelling import did_you_mean

S = TypeVar("S")

Lookup = Callable[[str], str | None]
"""Return the value of an environment variable; None if unset."""


class SettingsError(Exception):
    """The file is not usable, or a choice was not saved; the text is one sentence."""


class SecretError(Exception):
    """A resource in the settings is not usable now; the text is the end of a sentence, without secrets."""


def settings_path(environ: Mapping[str, str] = os.environ) -> Path:
    """Return `${XDG_CONFIG_HOME:-~/.config}/distui/settings.toml`."""
    return base_dirs.base("XDG_CONFIG_HOME", environ) / "distui" / "settings.toml"


def settings_text(path: Path, environ: Mapping[str, str]) -> str:
    """Read the file. Raises SettingsError, also if it does not exist."""
    try:
        trusted = {entry.path: entry.sha256 for entry in trusted_files.entries(environ)}
    except PresetError:
        trusted = {}
    try:
        return trusted_files.read(path, trusted).decode("utf-8-sig")  # editors on Windows write a BOM
    except trusted_files.PassedOver as error:
        raise SettingsError(str(error).rstrip(".")) from None
    except trusted_files.NoFile as error:
        raise SettingsError(f"{path}: {error}") from None
    except UnicodeDecodeError:
        raise SettingsError(f"{path} is not UTF-8") from None
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error.strerror or error}") from None


def document_of(path: Path, environ: Mapping[str, str]) -> dict[str, Any]:
    """Read and parse the file. Raises SettingsError, also if it does not exist."""
    text = settings_text(path, environ)
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise SettingsError(no_toml(path, error)) from None


def no_toml(path: Path, error: Exception) -> str:
    """Message for a parse error; a number with thousands of digits is a ValueError but no TOMLDecodeError."""
    return f"{path} is not TOML that can be read ({str(error).partition(';')[0] or type(error).__name__})"


def section_of(name: str, environ: Mapping[str, str] = os.environ) -> Any:
    """Content of a section; {} if it is missing. Raises SettingsError."""
    path = settings_path(environ)
    return document_of(path, environ).get(name, {}) if os.path.lexists(path) else {}


def loaded(
    section: str, meant: Callable[[Any, Path], S], unusable: Callable[[str], S], environ: Mapping[str, str]
) -> S:
    """Parse a section of this user's settings; if the file is not usable, return `unusable(why)`. Never fails."""
    try:
        return meant(section_of(section, environ), settings_path(environ))
    except SettingsError as error:
        return unusable(str(error))


def no_section(path: Path, section: str) -> str:
    """Return the message for a plain value in place of a section."""
    return f"{path}: {section} must be a section, [{section}]"


def unknown_keys(
    path: Path, section: str, names: Iterable[str], keys: tuple[str, ...], known: str
) -> list[str]:
    """Return a sentence for each unknown name in a section. `known`: a sentence that lists the known keys."""
    return [
        f"{path}: there is no setting {quoted(f'{section}.{name}')}; {did_you_mean(name, keys) or known}"
        for name in names
        if name not in keys
    ]


# --- secrets, and their destinations ---


def is_address(url: str) -> bool:
    """Whether HTTP requests to this URL are possible."""
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
    return good and url.isascii() and not any(char <= " " or char == "\x7f" for char in url)


def secret_of(file: str, variable: str, lookup: Lookup, folder: Path) -> str:
    """Value of a variable or content of a file, "" without both; `folder`: of the settings. Raises SecretError."""
    if variable:
        value = lookup(variable)
        if not value:
            raise SecretError(
                f"the variable {variable} is not set where the run was launched: a file lasts longer"
            )
        return value.strip()
    return _of_file(folder / Path(file).expanduser()) if file else ""


def _of_file(path: Path) -> str:
    try:
        if others_read(path):
            raise SecretError(f"others can read {path}, which holds a secret: `chmod 600` it")
        text = trusted_files.content(path).decode("utf-8").strip()
    except trusted_files.NoFile as error:
        raise SecretError(f"{path}: {error}") from None
    except OSError as error:
        raise SecretError(f"{path} cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise SecretError(f"{path} is not UTF-8") from None
    if not text:
        raise SecretError(f"{path} is empty: write the secret into it")
    return text


def others_read(path: Path) -> bool:
    """Whether other users can read the file."""
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return False  # the later read reports the error
    return bool(stat.S_IMODE(mode) & 0o044)
