"""A preset of the user's own as text: another preset's name, and what differs from it. Pure."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence

from . import model
from .finding import PresetError
from .load import Definition, Library, check_name, load
from .render import _literal, _pair
from .secrets import holds_secret


def saved_text(name: str, base: str, overrides: Sequence[str], library: Library, summary: str = "") -> str:
    """The file of a preset `name` that is `base` with `overrides` ("mesh.tp=2"). Ends with a newline.

    Values of variables named like secrets are left out, and a comment says so. Raises PresetError.
    """
    loaded = load(base, overrides, presets=library)
    values = model.flat(loaded.preset)
    title = f"{loaded.preset.title}, as {name}" if loaded.preset.title else name
    lines = [
        f"# Preset {check_name(name)}: {base} with what stands here.",
        f"base = {_literal(base)}",
        f"title = {_literal(title)}",
        f"summary = {_literal(summary or loaded.preset.summary)}",
    ]
    tables: dict[str, list[str]] = {}
    for path in dict.fromkeys(_path(override) for override in overrides):
        if path in ("title", "summary"):
            continue
        if "." not in path:
            lines.append(_line(path, path, values[path]))
        else:
            table, _, key = path.partition(".")
            tables.setdefault(table, []).append(_line(path, key, values[path]))
    for table, rows in tables.items():
        lines += ["", f"[{table}]", *rows]
    return "\n".join(lines) + "\n"


def check_saved(name: str, base: str, text: str, library: Library) -> None:
    """Raises PresetError where the saved file would not load: above all where names go in a circle."""
    below = tuple(item for item in library.definitions.get(name, ()) if not item.origin.startswith("user "))
    if name == base and not below:
        raise PresetError(f"{name} cannot build on itself: choose another name.")
    saved = Definition(
        name=name, origin=f"user {name}.toml", where=f"{name}.toml", table=tomllib.loads(text)
    )
    after = {**library.definitions, name: (*below, saved)}
    load(name, presets=Library(definitions=after))


def _path(override: str) -> str:
    """Path of the value that an override changes, as schema.flat has it."""
    path = override.partition("=")[0].strip().removeprefix("preset.")
    table, _, inner = path.partition(".")
    return f"{table}.{inner.partition('.')[0]}" if table in model.NESTED else path


def _line(path: str, key: str, value: model.Value | None) -> str:
    if path.startswith(("env.", "nccl.")) and holds_secret(key, "" if value is None else str(value)):
        return f"# {key} is a secret: it is taken from your environment"
    return _pair(key, "" if value is None else value)
