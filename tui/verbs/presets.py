"""presets: list, show, new."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

from ...presets.load import Definition, Library, check_name, library, load, user_dir
from ...presets.nccl_presets import known
from ...presets.show import entries, list_dict, list_text, new_text, show_dict, show_text
from ...runners.errors import RunError

if TYPE_CHECKING:
    from ...presets.imports.values import Imported


def presets(options: argparse.Namespace) -> int:
    """Dispatch the forms."""
    if options.action is None:
        return _list(options.json)
    if options.action == "nccl":
        return _nccl(options.json)
    if options.name is None:
        raise RunError(f"presets {options.action}: which one? `distui presets` lists them")
    return _show(options) if options.action == "show" else _new(options)


def _list(as_json: bool) -> int:
    loaded, problems = entries(library())
    sys.stdout.write(json.dumps(list_dict(loaded)) + "\n" if as_json else list_text(loaded))
    for problem in problems:
        sys.stderr.write(f"distui: {problem}\n")
    return 1 if problems else 0


def _show(options: argparse.Namespace) -> int:
    loaded = load(options.name, options.set)
    sys.stdout.write(json.dumps(show_dict(loaded)) + "\n" if options.json else show_text(loaded))
    return 0


def _new(options: argparse.Namespace) -> int:
    """Write a preset of the user's own that starts from another one, a file or a run; never over an existing file."""
    name = check_name(options.name)
    path = user_dir(os.environ) / f"{name}.toml"
    if path.exists():
        raise _exists(path)
    text = new_text(name, load(options.base)) if options.source is None else _imported(name, options.source)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _put(path, text)
    except FileExistsError:
        raise _exists(path) from None
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror}") from None
    sys.stdout.write(json.dumps({"path": str(path)}) + "\n" if options.json else f"{path}\n")
    return 0


def _exists(path: Path) -> RunError:
    return RunError(f"{path} exists already: edit it, or choose another name")


def _put(path: Path, text: str) -> None:
    """A new file, whole or not at all. Raises FileExistsError and OSError."""
    whole = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        whole.write_text(text, encoding="utf-8")
        os.link(whole, path)
    finally:
        whole.unlink(missing_ok=True)


def _imported(name: str, source: str) -> str:
    """The text of a preset from another program's file, or from a run. Raises RunError and PresetError."""
    from ...presets.imports.values import text

    file = Path(source)
    found = _from_file(file) if file.exists() or "/" in source else _from_run(source)
    for note in found.notes:
        sys.stderr.write(f"distui: {note}\n")
    made = text(name, source, found)
    _check(name, made)
    return made


def _check(name: str, made: str) -> None:
    """Whether it will load. Raises PresetError."""
    shelf = library()
    whole = Definition(name=name, origin=name, where=f"{name}.toml", table=tomllib.loads(made))
    load(name, shelf=Library(definitions={**shelf.definitions, name: (whole,)}))


def _from_file(file: Path) -> Imported:
    from ...presets.imports import documents
    from ...presets.lint.nodes import MOST_BYTES
    from .lint import documents as yaml

    try:
        with file.open("rb") as opened:
            data = opened.read(MOST_BYTES + 1)
    except OSError as error:
        raise RunError(f"--from {file}: it cannot be read ({error.strerror})") from None
    found, problems = documents.imported(str(file), data, yaml)
    for problem in problems:
        sys.stderr.write(f"distui: {problem.severity} {problem.id} {problem.where}: {problem.text}\n")
    return found


def _from_run(source: str) -> Imported:
    """What a run was launched with, and what its restarts changed. Raises NoSuchRunError and RunError."""
    from ...presets.imports import running
    from ...runners import daemon, registry

    entry = registry.resolve(source)
    changes = [attempt.env_diff for attempt in entry.state().attempts]
    return running.imported(daemon.load(entry), changes, f"run {entry.record.name}", library().names)


def _nccl(as_json: bool) -> int:
    """Settings of NCCL by name."""
    found = known().values()
    if as_json:
        rows = [
            {"name": one.name, "when": one.when, "live": one.live, "env": dict(one.env)} for one in found
        ]
        sys.stdout.write(json.dumps(rows) + "\n")
        return 0
    for one in found:
        pairs = " ".join(f"{name}={shlex.quote(value)}" for name, value in one.env.items())
        sys.stdout.write(f"{one.name}\n    {one.when}\n    {pairs}\n")
    return 0
