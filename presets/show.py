"""Presets as text: the list, one whole preset, and the start of a new one."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from . import schema
from .errors import PresetError
from .load import Library, load
from .model import STRATEGY_OPTIONS, Loaded
from .secrets import mask

DEFAULT = "default"
"""Origin of a value that no file sets."""


def entries(shelf: Library) -> tuple[list[Loaded], list[str]]:
    """Every preset of `shelf` that can be loaded, and a sentence for each that cannot."""
    loaded, problems = [], list(shelf.problems.values())
    for name in shelf.names:
        if name in shelf.problems:
            continue
        try:
            loaded.append(load(name, shelf=shelf))
        except PresetError as error:
            problems.append(str(error))
    return loaded, problems


def list_text(loaded: list[Loaded]) -> str:
    """Name, title and summary of each. Ends with a newline."""
    width = max((len(entry.preset.name) for entry in loaded), default=0)
    lines = []
    for preset in (entry.preset for entry in loaded):
        lines.append(f"{preset.name:<{width}}  {preset.title}".rstrip())
        if preset.summary:
            lines.append(f"{'':<{width}}  {preset.summary}")
    return "\n".join(lines) + "\n" if lines else ""


def list_dict(loaded: list[Loaded]) -> list[dict[str, str]]:
    """The same for `--json`."""
    return [
        {"name": p.name, "title": p.title, "summary": p.summary, "strategy": p.strategy.kind}
        for p in (entry.preset for entry in loaded)
    ]


def show_text(loaded: Loaded) -> str:
    """The whole preset as TOML that loads again, each value with its origin; secrets are masked."""
    lines = [f"# preset {loaded.preset.name}"]
    for table, values in _grouped(loaded):
        lines += ["", f"[{table}]"] if table else []
        for key, value, origin in values:
            lines.append(_line(key, value, origin))
        if table == "strategy":
            lines += [f"# {key} is left to torch" for key in _unset(loaded)]
    return "\n".join(lines) + "\n"


def show_dict(loaded: Loaded) -> dict[str, Any]:
    """The same for `--json`: `values` and `origins` by field path."""
    values = {
        f"{table}.{key}" if table else key: list(value) if isinstance(value, tuple) else value
        for table, rows in _grouped(loaded)
        for key, value, _ in rows
    }
    origins = {path: loaded.origins.get(path, DEFAULT) for path in values}
    return {"name": loaded.preset.name, "values": values, "origins": origins}


def new_text(name: str, base: Loaded) -> str:
    """A preset file `name` to edit: it builds on `base`, whose values stand there as comments."""
    lines = [
        f"# Preset {name}: everything of {base.preset.name} but what is written here without a # in front.",
        f"base = {_literal(base.preset.name)}",
        f"title = {_literal(name)}",
        f"summary = {_literal('')}",
    ]
    for table, values in _grouped(base):
        lines += ["", f"[{table}]"] if table else []
        lines += [f"# {_pair(key, value)}" for key, value, _ in values if key not in ("title", "summary")]
    return "\n".join(lines) + "\n"


def _grouped(loaded: Loaded) -> Iterator[tuple[str, list[tuple[str, schema.Value, str]]]]:
    """Tables with their (key, value, origin); the first is "", for what stands before any table."""
    tables: dict[str, list[tuple[str, schema.Value, str]]] = {"": []}
    for path, value in schema.flat(loaded.preset).items():
        table, _, key = path.rpartition(".") if path in schema.fields() else path.partition(".")
        if value is not None:
            shown = mask(key, value) if table in schema.FREE and isinstance(value, str) else value
            tables.setdefault(table, []).append((key, shown, loaded.origins.get(path, DEFAULT)))
    return iter(tables.items())


def _unset(loaded: Loaded) -> list[str]:
    strategy = loaded.preset.strategy
    return [name for name in STRATEGY_OPTIONS[strategy.kind] if getattr(strategy, name) is None]


def _line(key: str, value: schema.Value, origin: str) -> str:
    # A line break in the name of a file would end the comment.
    return f"{_pair(key, value)}  # {_escaped(origin)}"


def _pair(key: str, value: schema.Value) -> str:
    bare = re.fullmatch(r"[A-Za-z0-9_-]+", key)
    return f"{key if bare else _literal(key)} = {_literal(value)}"


def _literal(value: schema.Value) -> str:
    """A value as TOML writes it (TOML 1.0, basic strings)."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f'"{_escaped(value)}"'
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(_literal, value))}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(_pair(key, part) for key, part in value.items())}}}"
    return repr(value)


def _escaped(text: str) -> str:
    """`text` inside a basic string. JSON's escapes are TOML's, but for DEL, which JSON lets through."""
    return json.dumps(text, ensure_ascii=False)[1:-1].replace("\x7f", "\\u007f")
