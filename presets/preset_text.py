"""Write presets: their list, one with its origins, and files for the user to edit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypedDict

from . import model
from .load import Definition, Library, check_name, load, parse_override
from .model import STRATEGY_OPTIONS, Loaded
from .sanitize import clean_whole
from .secrets import holds_secret, mask
from .text_formats import parse_toml, toml_escaped, toml_literal, toml_pair

DEFAULT = "default"
"""Origin of a value that no file sets."""


def list_text(loaded: list[Loaded]) -> str:
    """Return name, title and summary of each preset. Ends with a newline."""
    width = max((len(entry.preset.name) for entry in loaded), default=0)
    lines = []
    for preset in (entry.preset for entry in loaded):
        lines.append(f"{preset.name:<{width}}  {preset.title}".rstrip())
        if preset.summary:
            lines.append(f"{'':<{width}}  {preset.summary}")
    return clean_whole("\n".join(lines)) + "\n" if lines else ""


class ListedPreset(TypedDict):
    name: str
    title: str
    summary: str
    strategy: str


class ShownPreset(TypedDict):
    """`presets show`: values and origins by field path."""

    name: str
    values: dict[str, Any]
    origins: dict[str, str]


def list_dict(loaded: list[Loaded]) -> list[ListedPreset]:
    """Return the list for `--json`."""
    return [
        {"name": p.name, "title": p.title, "summary": p.summary, "strategy": p.strategy.kind}
        for p in (entry.preset for entry in loaded)
    ]


def show_text(loaded: Loaded) -> str:
    """Return the whole preset as TOML that loads again. Each value has its origin, and secrets are masked."""
    strategy, lines = loaded.preset.strategy, [f"# preset {loaded.preset.name}"]
    for table, values in _grouped(loaded):
        lines += ["", f"[{table}]"] if table else []
        # A line break in a file name would end the comment.
        lines += [f"{toml_pair(key, value)}  # {toml_escaped(origin)}" for key, value, origin in values]
        if table == "strategy":
            names = STRATEGY_OPTIONS[strategy.kind]
            lines += [f"# {key} is left to torch" for key in names if getattr(strategy, key) is None]
    return "\n".join(lines) + "\n"


def show_dict(loaded: Loaded) -> ShownPreset:
    """Return values and origins by field path for `--json`."""
    values = {
        f"{table}.{key}" if table else key: list(value) if isinstance(value, tuple) else value
        for table, rows in _grouped(loaded)
        for key, value, _ in rows
    }
    origins = {path: loaded.origins.get(path, DEFAULT) for path in values}
    return {"name": loaded.preset.name, "values": values, "origins": origins}


def new_text(name: str, base: Loaded) -> str:
    """Return an editable preset file `name`, based on `base`.

    Values of --set are written; the other values of `base` are comments.
    """
    lines = [
        f"# Preset {name}: everything of {base.preset.name} but what is written here without a # in front.",
        f"base = {toml_literal(base.preset.name)}",
        f"title = {toml_literal(base.preset.title if _is_set(base, 'title') else name)}",
        f"summary = {toml_literal(base.preset.summary if _is_set(base, 'summary') else '')}",
    ]
    values = model.flat(base.preset)
    for table, rows in _grouped(base):
        lines += ["", f"[{table}]"] if table else []
        for key, value, _ in rows:
            path = f"{table}.{key}" if table else key
            if path in ("title", "summary"):
                continue
            lines.append(
                _own_line(path, key, values[path]) if _is_set(base, path) else f"# {toml_pair(key, value)}"
            )
    return "\n".join(lines) + "\n"


def _is_set(loaded: Loaded, path: str) -> bool:
    """Return True if --set gives the value."""
    return loaded.origins.get(path, "").startswith("--set ")


def _grouped(loaded: Loaded) -> Iterator[tuple[str, list[tuple[str, model.Value, str]]]]:
    """Return the tables with their (key, value, origin). The table "" has the top-level values."""
    tables: dict[str, list[tuple[str, model.Value, str]]] = {"": []}
    for path, value in model.flat(loaded.preset).items():
        table, _, key = path.rpartition(".") if path in model.fields() else path.partition(".")
        if value is not None:
            shown = mask(key, value) if table in model.FREE and isinstance(value, str) else value
            tables.setdefault(table, []).append((key, shown, loaded.origins.get(path, DEFAULT)))
    return iter(tables.items())


def saved_text(name: str, base: str, overrides: Sequence[str], library: Library, summary: str = "") -> str:
    """Return the file of a preset `name` that is `base` with `overrides` ("mesh.tp=2"). Ends with a newline.

    Values of variables named like secrets are left out, and a comment says so. Raises PresetError.
    """
    loaded = load(base, overrides, presets=library)
    values = model.flat(loaded.preset)
    title = f"{loaded.preset.title}, as {name}" if loaded.preset.title else name
    lines = [
        f"# Preset {check_name(name)}: {base} with these changes.",
        f"base = {toml_literal(base)}",
        f"title = {toml_literal(title)}",
        f"summary = {toml_literal(summary or loaded.preset.summary)}",
    ]
    tables: dict[str, list[str]] = {}
    for path in dict.fromkeys(parse_override(override)[0] for override in overrides):
        if path in ("title", "summary"):
            continue
        if "." not in path:
            lines.append(_own_line(path, path, values[path]))
        else:
            table, _, key = path.partition(".")
            tables.setdefault(table, []).append(_own_line(path, key, values[path]))
    for table, rows in tables.items():
        lines += ["", f"[{table}]", *rows]
    return "\n".join(lines) + "\n"


def check_saved(name: str, text: str, library: Library) -> None:
    """Raise PresetError if a new file of the user would not load, above all if its bases form a circle."""
    below = tuple(item for item in library.definitions.get(name, ()) if not item.origin.startswith("user "))
    where = f"{name}.toml"
    saved = Definition(name=name, origin=f"user {where}", where=where, table=parse_toml(text, where))
    load(name, presets=Library(definitions={**library.definitions, name: (*below, saved)}))


def _own_line(path: str, key: str, value: model.Value | None) -> str:
    if path.startswith(("env.", "nccl.")) and holds_secret(key, "" if value is None else str(value)):
        return f"# {key} is a secret: it is taken from your environment"
    return toml_pair(key, "" if value is None else value)
