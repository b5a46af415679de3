"""trust: configuration files that count although other users can write them."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

from msgspec import Struct

from ...presets import trusted_files as trusted
from ...presets.load import PROJECT_FILE
from ...presets.text_formats import parse_toml
from ...runners.run.errors import RunError
from ..terminal import answer
from .presets import Written


class Trusted(Struct, frozen=True):
    """`trust PATH`."""

    path: str
    sha256: str
    since: float
    sets: list[str]


class TrustedFile(Struct, frozen=True):
    """A row of `trust --list`."""

    path: str
    sha256: str
    since: float
    state: str


def trust(options: argparse.Namespace) -> int:
    """Dispatch the forms. Raises RunError and PresetError."""
    if options.list:
        if options.path is not None:
            raise RunError("--list takes no PATH")
        return _list_trusted(options.json)
    path = _path(options.path)
    try:
        return _remove(path, options.json) if options.remove else _add(path, options.json)
    except OSError as error:
        raise RunError(f"cannot write {trusted.file_of(os.environ)}: {error.strerror or error}") from None


def _path(word: str | None) -> Path:
    """Return the path of the file to trust. Raises RunError."""
    if word is None:
        here = Path.cwd()
        near = (at / PROJECT_FILE for at in (here, *here.parents) if os.path.lexists(at / PROJECT_FILE))
        nearest = next(near, None)
        if nearest is None:
            raise RunError(
                f"there is no {PROJECT_FILE} here or above: name the file, as in distui trust PATH"
            )
        return nearest
    path = Path(word).expanduser()
    return path / PROJECT_FILE if path.is_dir() else path


def _add(path: Path, as_json: bool) -> int:
    try:
        data = trusted.content(path)
    except (OSError, trusted.NoFile) as error:
        why = (error.strerror or error) if isinstance(error, OSError) else error
        raise RunError(f"file {path} cannot be read: {why}") from None
    document = parse_toml(data, str(path))
    added = trusted.add(os.environ, path, data)
    settings = _sets(document)
    about = Trusted(added.path, added.sha256, added.since, settings)
    lines = [f"{added.path} is trusted as it is now (sha256 {added.sha256[:12]}…); it sets"]
    lines += [f"  {setting}" for setting in settings] or ["  nothing"]
    answer(as_json, about, lines)
    return 0


def _sets(document: dict[str, Any]) -> list[str]:
    """Return every value of a document, by its path in it."""
    settings = []
    for key, value in document.items():
        if isinstance(value, dict):
            settings += [f"{key}.{setting}" for setting in _sets(value)]
        else:
            settings.append(f"{key} = {json.dumps(value, ensure_ascii=False, default=str)}")
    return settings


def _remove(path: Path, as_json: bool) -> int:
    if not trusted.remove(os.environ, path):
        raise RunError(f"{trusted.name_of(path)} is not trusted: `distui trust --list` shows what is")
    name = trusted.name_of(path)
    answer(as_json, Written(name), [f"{name} is trusted no longer"])
    return 0


def _list_trusted(as_json: bool) -> int:
    entries = trusted.entries(os.environ)
    rows = [TrustedFile(entry.path, entry.sha256, entry.since, _state(entry)) for entry in entries]
    if rows or as_json:
        answer(as_json, rows, [f"{row.state:<9} {row.path}" for row in rows])
    return 0


def _state(entry: trusted.Trusted) -> str:
    """Return "as it was", "changed" or "gone"; "unreadable" if the file cannot be compared."""
    try:
        digest = trusted.digest(trusted.content(Path(entry.path)))
    except FileNotFoundError:
        return "gone"
    except (OSError, trusted.NoFile):
        return "unreadable"
    return "as it was" if digest == entry.sha256 else "changed"
