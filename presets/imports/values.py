"""What an import found, and the preset file that it makes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .. import schema
from ..errors import PresetError
from ..secrets import is_secret
from ..show import _escaped, _pair


@dataclass(slots=True)
class Imported:
    """A preset's values by field path, as they are found."""

    values: dict[str, Any] = field(default_factory=dict)
    """ "strategy.kind", "env.OMP_NUM_THREADS", "deepspeed.gradient_clipping"; a nested table as mappings."""
    notes: list[str] = field(default_factory=list)
    """What the user should know, a sentence each: it stands in the file, too."""
    base: str = ""
    """The preset that it builds on; "" for none."""

    def put(self, path: str, value: object) -> None:
        """Say one value; None is nothing to say."""
        if value is not None:
            self.values[path] = value

    def keep(self, table: str, rest: Mapping[str, Any]) -> None:
        """Keep the other program's own keys; null, which TOML has not, is each program's word for its default."""
        for key, value in rest.items():
            kept = _without_null(value)
            if kept is not None and kept != {}:
                path = f"{table}.{key}"
                self.values[path] = schema.merged(self.values.get(path, {}), kept)

    def variables(self, table: str, found: Mapping[str, Any]) -> None:
        """Environment variables; secrets are left out, and named."""
        for name, value in found.items():
            if is_secret(str(name)):
                self.notes.append(
                    f"{name} is left out: a preset is no place for a secret; pass it with --env."
                )
            elif value is not None:
                self.values[f"{table}.{name}"] = str(int(value)) if isinstance(value, bool) else str(value)


def text(name: str, source: str, found: Imported) -> str:
    """The preset file `name`. Every value is checked as when it is loaded. Raises PresetError."""
    lines = [f"# Imported from {_escaped(source)}."]
    lines += [f"# {_escaped(note)}" for note in found.notes]
    if found.base:
        lines.append(_pair("base", found.base))
    lines += [_pair("title", name), _pair("summary", f"From {source}.")]
    tables: dict[str, list[str]] = {table: [] for table in schema.tables()}
    for path, value in found.values.items():
        accepted = schema.accept(path, value, source)
        table, _, key = path.partition(".")
        if table not in tables or not key:
            raise PresetError(f"{source}: {path} is not a field of a preset.")
        tables[table].append(_pair(key, accepted))
    for table, pairs in tables.items():
        if pairs:
            lines += ["", f"[{table}]", *pairs]
    return "\n".join(lines) + "\n"


def _without_null(value: Any) -> Any:
    if isinstance(value, Mapping):
        kept = {str(key): _without_null(part) for key, part in value.items()}
        return {key: part for key, part in kept.items() if part is not None}
    if isinstance(value, list):
        return [part for part in map(_without_null, value) if part is not None]
    return value


def table_of(document: Mapping[str, Any], key: str) -> dict[str, Any]:
    """A table of a document as a copy; empty where there is none."""
    found = document.get(key)
    return dict(found) if isinstance(found, Mapping) else {}


def whole(value: object) -> int | None:
    """A whole number, also one that is written as a text."""
    if isinstance(value, str) and value.strip().isdecimal():
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def truth(value: object) -> bool | None:
    """True or false, also as the texts that YAML's writers make of them; None for anything else."""
    if isinstance(value, bool):
        return value
    known = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
    return known.get(str(value).strip().lower())
