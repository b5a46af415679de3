"""Presets by name: builtin < user < project < --set, and where each value came from."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

from . import schema
from .errors import PresetError
from .model import Loaded

__all__ = ["Definition", "Library", "Loaded", "PresetError", "check_name", "library", "load", "user_dir"]

PROJECT_FILE = "distui.toml"
"""Looked for in the working directory and every directory above it."""

BUILTIN = (
    "single", "accumulate", "ddp", "ddp-mesh", "zero1", "fsdp2", "fsdp2-zero2", "fsdp2-offload", "hsdp",
    "fsdp1", "fsdp1-grad-op", "fsdp1-no-shard", "fsdp1-hybrid", "fsdp1-hybrid-zero2", "fsdp1-offload",
    "ds-zero1", "ds-zero2", "ds-zero3", "ds-zero3-cpu", "ds-zero3-nvme",
    "tp", "tp-sp", "fsdp2-tp", "pp-gpipe", "pp-1f1b", "3d", "moe", "context",
)  # fmt: skip
"""The presets that ship, in the order in which they are listed."""

MOST_BYTES = 1 << 20
"""More than anybody writes by hand: a larger file is something else."""

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
"""How a preset may be called: it is a file name and a TOML key."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Definition:
    """One place that says something about one preset."""

    name: str
    origin: str
    """For a person: "builtin ddp.toml", "user /…/mine.toml", "project /…/distui.toml"."""
    where: str
    """For a sentence: the file, and the table in it."""
    table: Mapping[str, Any]
    """What TOML made of it."""

    @property
    def base(self) -> str | None:
        """The preset it builds on, when it says so. Raises PresetError."""
        base = self.table.get("base")
        if base is not None and not isinstance(base, str):
            raise PresetError(f"{self.where}: base takes the name of a preset, not {schema.show(base)}.")
        return base


@dataclass(frozen=True, kw_only=True, slots=True)
class Library:
    """Every preset that can be seen from a directory."""

    definitions: Mapping[str, tuple[Definition, ...]]
    """By name, the builtin one first, the one that decides last."""
    problems: Mapping[str, str] = field(default_factory=dict)
    """User presets whose file cannot be read, by name, with the sentence that says why."""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.definitions)


def user_dir(env: Mapping[str, str]) -> Path:
    """Where the user's presets lie, by XDG_CONFIG_HOME and HOME of `env`."""
    config = env.get("XDG_CONFIG_HOME", "")
    home = Path(config) if config.startswith("/") else Path(env.get("HOME") or Path.home()) / ".config"
    return home / "distui" / "presets"


def library(cwd: Path | None = None, env: Mapping[str, str] | None = None) -> Library:
    """What is there. Raises PresetError when the project file cannot be read."""
    problems: dict[str, str] = {}
    found: dict[str, tuple[Definition, ...]] = {}
    sources = (
        _builtin(),
        _user(user_dir(os.environ if env is None else env), problems),
        _project(cwd or Path.cwd()),
    )
    for source in sources:
        for definition in source:
            found[definition.name] = (*found.get(definition.name, ()), definition)
    return Library(definitions=found, problems=problems)


def load(
    name: str,
    overrides: Sequence[str] = (),
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    shelf: Library | None = None,
) -> Loaded:
    """The preset `name` with `overrides` ("strategy.kind=ddp") on top. Raises PresetError.

    `shelf` is the library to look in; None reads the one seen from `cwd` with the environment `env`.
    """
    shelf = library(cwd, env) if shelf is None else shelf
    layer = _Layer()
    for definition in _chain(shelf, name, len(shelf.definitions.get(name, ())), ()):
        layer.put(dict(_flatten(definition)), definition.origin, definition.where)
    for override in overrides:
        path, value = _override(override)
        layer.put({path: value}, f"--set {path}", "--set")
    schema.belongs(layer.values, layer.origins)
    return Loaded(preset=schema.build(name, layer.values), origins=dict(layer.origins))


def check_name(name: str) -> str:
    """`name`, when a preset may be called so. Raises PresetError."""
    if not NAME.fullmatch(name):
        raise PresetError(f"{name!r} is no name for a preset: take letters, digits, dots, _ and -.")
    return name


class _Layer:
    """Values by path, the later put over the earlier."""

    def __init__(self) -> None:
        self.values: dict[str, schema.Value] = {}
        self.origins: dict[str, str] = {}

    def put(self, raw: Mapping[str, object], origin: str, where: str) -> None:
        if "strategy.kind" in raw:
            self._forget_options(schema.accept("strategy.kind", raw["strategy.kind"], where))
        for path, value in raw.items():
            accepted = schema.accept(path, value, where)
            nested = path.partition(".")[0] in schema.NESTED and path in self.values
            self.values[path] = schema.merged(self.values[path], accepted) if nested else accepted
            self.origins[path] = origin

    def _forget_options(self, kind: schema.Value) -> None:
        """Options of the strategy before, which no one asked for in the new one."""
        others = schema.options_of(None) - schema.options_of(str(kind))
        for path in others & self.values.keys():
            del self.values[path], self.origins[path]


def _chain(shelf: Library, name: str, depth: int, above: tuple[str, ...]) -> list[Definition]:
    """The definitions of `name` below `depth`, with those of its bases before each."""
    if name in shelf.problems:
        raise PresetError(shelf.problems[name])
    if name not in shelf.definitions:
        asked = f", which {above[-1]} builds on" if above else ""
        hint = schema.nearest(name, shelf.definitions)
        hint = "; `distui presets` lists them." if hint == "." else hint
        raise PresetError(f"There is no preset {name!r}{asked}{hint}")
    if not depth:
        return []
    definition = shelf.definitions[name][depth - 1]
    base = definition.base
    if base is None or base == name:
        if base == name and depth == 1:
            raise PresetError(f"{definition.where}: base = {name!r} names this preset itself.")
        return [*_chain(shelf, name, depth - 1, above), definition]
    if base in (name, *above):
        raise PresetError(f"{definition.where}: base goes in a circle: {' → '.join((*above, name, base))}.")
    return [*_chain(shelf, base, len(shelf.definitions.get(base, ())), (*above, name)), definition]


def _flatten(definition: Definition) -> Iterator[tuple[str, object]]:
    for key, value in definition.table.items():
        if key == "base":
            continue
        if key in schema.tables():
            if not isinstance(value, dict):
                raise PresetError(f"{definition.where}: {key} is a table: write [{key}], not {key} = ….")
            yield from ((f"{key}.{inner}", part) for inner, part in value.items())
        elif key in schema.fields():
            yield key, value
        else:
            raise PresetError(f"{definition.where}: {_unknown_key(key)}")


def _unknown_key(key: str) -> str:
    home = next((path.split(".")[0] for path in schema.fields() if path.endswith(f".{key}")), None)
    if home:
        return f"{key} stands in the table [{home}], not before the first one."
    known = ("base", *schema.tables(), *(path for path in schema.fields() if "." not in path))
    return f"{key} is not a key of a preset{schema.nearest(key, known)}"


def _override(text: str) -> tuple[str, object]:
    """Path and value of one --set."""
    path, equals, raw = text.partition("=")
    path = path.strip().removeprefix("preset.")
    if not equals or not path:
        raise PresetError(
            f"--set {text}: write it as FIELD.PATH=VALUE, as in --set topology.nproc_per_node=2."
        )
    hint = schema.fields().get(path)
    table, _, inner = path.partition(".")
    if table in schema.NESTED and inner:
        return _nested(table, inner, raw)
    if hint is None:
        return path, raw
    try:
        parsed = tomllib.loads(f"value = {raw}")
    except tomllib.TOMLDecodeError:
        return path, raw
    value = parsed["value"] if len(parsed) == 1 else raw
    fitting = tuple(value) if isinstance(value, list) else value
    return path, value if schema.fits(hint, fitting) or not schema.fits(hint, raw) else raw


def _nested(table: str, inner: str, raw: str) -> tuple[str, object]:
    """--set deepspeed.zero_optimization.stage=2: the value inside its tables, the first key in the path."""
    first, *deeper = inner.split(".")
    try:
        value: object = tomllib.loads(f"value = {raw}")["value"]
    except tomllib.TOMLDecodeError:
        value = raw
    for key in reversed(deeper):
        value = {key: value}
    return f"{table}.{first}", value


def _builtin() -> Iterator[Definition]:
    folder = resources.files(__package__).joinpath("builtin")
    for name in BUILTIN:
        where = f"builtin {name}.toml"
        table = _read(folder.joinpath(f"{name}.toml").read_bytes(), where)
        yield Definition(name=name, origin=where, where=where, table=table)


def _user(folder: Path, problems: dict[str, str]) -> Iterator[Definition]:
    """A file that cannot be read spoils only the preset of its name."""
    for file in sorted(folder.glob("*.toml")):
        try:
            name = check_name(file.stem)
            table = _read_file(file)
        except PresetError as error:
            problems[file.stem] = str(error)
            continue
        yield Definition(name=name, origin=f"user {file}", where=str(file), table=table)


def _project(cwd: Path) -> Iterator[Definition]:
    file = next((at / PROJECT_FILE for at in (cwd, *cwd.parents) if (at / PROJECT_FILE).is_file()), None)
    if file is None:
        return
    document = _read_file(file)
    for key in document:
        if key != "preset":
            raise PresetError(f"{file}: {key} means nothing here: presets stand in tables [preset.NAME].")
    presets = document.get("preset", {})
    if not isinstance(presets, dict):
        raise PresetError(f"{file}: preset is a table: write [preset.NAME].")
    for name, table in presets.items():
        if not isinstance(table, dict):
            raise PresetError(f"{file}: preset.{name} is a table: write [preset.{name}].")
        where = f"{file} [preset.{name}]"
        yield Definition(name=check_name(name), origin=f"project {file}", where=where, table=table)


def _read_file(file: Path) -> dict[str, Any]:
    try:
        size = file.stat().st_size
        if size > MOST_BYTES:
            raise PresetError(f"{file} has {size} bytes: a file of presets has at most {MOST_BYTES}.")
        return _read(file.read_bytes(), str(file))
    except OSError as error:
        raise PresetError(f"{file} cannot be read: {error.strerror or error}.") from None


def _read(data: bytes, where: str) -> dict[str, Any]:
    """The TOML document `data` of the file `where`. Raises PresetError."""
    try:
        return tomllib.loads(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise PresetError(f"{where} line {line}: not UTF-8 text, which TOML must be.") from None
    except tomllib.TOMLDecodeError as error:
        found = re.search(r" \(at line (\d+), column (\d+)\)$", str(error))
        line = int(found[1]) if found else data.count(b"\n") + 1
        reason = re.sub(r" \(at .*\)$", "", str(error))
        raise PresetError(f"{where} line {line}: not valid TOML ({reason}).") from None
