"""Load presets by name (builtin < user < project < --set), with the origin of each value, and write them as text."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

from . import base_dirs, model, trusted_files
from .finding import PresetError
from .model import Loaded
from .sanitize import sentence
from .spelling import nearest_or_all
from .text_formats import DEEPEST, parse_toml

PROJECT_FILE = "distui.toml"
"""Searched in the working directory and every directory above it."""

BUILTIN = (
    "single",
    "accumulate",
    "ddp",
    "ddp-mesh",
    "zero1",
    "fsdp2",
    "fsdp2-zero2",
    "fsdp2-offload",
    "hsdp",
    "fsdp1",
    "fsdp1-grad-op",
    "fsdp1-no-shard",
    "fsdp1-hybrid",
    "fsdp1-hybrid-zero2",
    "fsdp1-offload",
    "ds-zero1",
    "ds-zero2",
    "ds-zero3",
    "ds-zero3-cpu",
    "ds-zero3-nvme",
    "tp",
    "tp-sp",
    "fsdp2-tp",
    "pp-gpipe",
    "pp-1f1b",
    "3d",
    "moe",
    "context",
)
"""The shipped presets, in the order of the list."""

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
"""Valid names of a preset, which is a file name and a TOML key."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Definition:
    """One place that defines one preset."""

    name: str
    origin: str
    """Shown to users: "builtin ddp.toml", "user /…/mine.toml", "project /…/distui.toml"."""
    where: str
    """Shown in sentences: the file, and the table in it."""
    table: Mapping[str, Any]
    """The parsed TOML table."""

    @property
    def base(self) -> str | None:
        """Return the preset that this one builds on, or None. Raises PresetError."""
        base = self.table.get("base")
        if base is not None and not isinstance(base, str):
            raise PresetError(f"{self.where}: base is {model.show(base)}: write the name of a preset")
        return base


@dataclass(frozen=True, slots=True)
class PassedOverFile:
    """A file or folder that was found and ignored."""

    path: Path
    note: str
    """One sentence with the path and the reason."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Library:
    """Every preset that is visible from a directory."""

    definitions: Mapping[str, tuple[Definition, ...]]
    """Definitions by name: the builtin one first, the one with the highest priority last."""
    problems: Mapping[str, str] = field(default_factory=dict)
    """Unreadable user presets: name → one sentence with the reason."""
    passed_over: tuple[PassedOverFile, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.definitions)

    @property
    def notes(self) -> tuple[str, ...]:
        """One sentence per file that was found and ignored."""
        return tuple(file.note for file in self.passed_over)


def user_dir(env: Mapping[str, str]) -> Path:
    """Return the folder of the user's presets, by XDG_CONFIG_HOME and HOME of `env`."""
    return base_dirs.config_dir(env) / "presets"


def library(cwd: Path | None = None, env: Mapping[str, str] | None = None) -> Library:
    """Find all presets. Raises PresetError if the project file belongs to the user and is unreadable."""
    env = os.environ if env is None else env
    definitions = dict(builtin_library().definitions)
    search = _Search.begin(env)
    for source in (search.user_presets(user_dir(env)), search.project_presets(cwd or Path.cwd())):
        for definition in source:
            definitions[definition.name] = (*definitions.get(definition.name, ()), definition)
    return Library(definitions=definitions, problems=search.problems, passed_over=tuple(search.passed_over))


def load(
    name: str,
    overrides: Sequence[str] = (),
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    presets: Library | None = None,
) -> Loaded:
    """Load the preset `name`, changed by `overrides` ("strategy.kind=ddp"). Raises PresetError.

    `presets` is the library to search. None reads the library of `cwd` with the environment `env`.
    """
    presets = library(cwd, env) if presets is None else presets
    merged = _Merged()
    chain = _chain(presets, name, len(presets.definitions.get(name, ())), ())
    for definition in chain:
        merged.add_layer(dict(_flatten(definition)), definition.origin, definition.where)
    for override in overrides:
        path, value = parse_override(override)
        merged.add_layer({path: value}, f"--set {path}", "--set")
    model.belongs(merged.values, merged.origins)
    sources = tuple(dict.fromkeys(link.origin for link in chain if not link.origin.startswith("builtin ")))
    return Loaded(
        preset=model.build(name, merged.values),
        origins=dict(merged.origins),
        sources=sources,
        notes=presets.notes,
    )


def check_name(name: str) -> str:
    """Return `name` if it is a valid preset name. Raises PresetError."""
    if not NAME.fullmatch(name):
        raise PresetError(f"{name!r} is not a valid preset name: use letters, digits, dots, _ and -")
    return name


class _Merged:
    """Values by path. Later values replace earlier ones."""

    def __init__(self) -> None:
        self.values: dict[str, model.Value] = {}
        self.origins: dict[str, str] = {}

    def add_layer(self, raw: Mapping[str, object], origin: str, where: str) -> None:
        if "strategy.kind" in raw:
            self._forget_options(model.accept("strategy.kind", raw["strategy.kind"], where))
        for path, value in raw.items():
            accepted = model.accept(path, value, where)
            nested = path.partition(".")[0] in model.NESTED and path in self.values
            self.values[path] = model.merged(self.values[path], accepted) if nested else accepted
            self.origins[path] = origin

    def _forget_options(self, kind: model.Value) -> None:
        """Delete options of the previous strategy, which were not set for the new one."""
        others = model.options_of(None) - model.options_of(str(kind))
        for path in others & self.values.keys():
            del self.values[path], self.origins[path]


def _chain(presets: Library, name: str, depth: int, above: tuple[str, ...]) -> list[Definition]:
    """Return the lowest `depth` definitions of `name` and those that they build on, in the order of application.

    Without a base, or with its own name as base, a definition builds on the next lower one of that name; with another
    base, on that preset instead. `above`: names that led here, to find circles.
    """
    if name in presets.problems:
        raise PresetError(presets.problems[name])
    if name not in presets.definitions:
        raise _missing(presets, name, above)
    if not depth:
        return []
    definition = presets.definitions[name][depth - 1]
    base = definition.base
    if base is None or base == name:
        if base == name and depth == 1:
            raise PresetError(
                f"{definition.where}: base = {name!r} is this preset itself: name another preset"
            )
        return [*_chain(presets, name, depth - 1, above), definition]
    if base in (name, *above):
        raise PresetError(f"{definition.where}: base is circular: {' → '.join((*above, name, base))}")
    return [*_chain(presets, base, len(presets.definitions.get(base, ())), (*above, name)), definition]


def _missing(presets: Library, name: str, above: tuple[str, ...]) -> PresetError:
    used_by = f", which {above[-1]} builds on" if above else ""
    hint = nearest_or_all(name, presets.definitions) or "; `distui presets` lists them"
    text = f"There is no preset {name!r}{used_by}{hint}"
    if not presets.passed_over:
        return PresetError(text)
    return PresetError(" ".join((sentence(text), *presets.notes)))  # an ignored file may define it


def _flatten(definition: Definition) -> Iterator[tuple[str, object]]:
    for key, value in definition.table.items():
        if key == "base":
            continue
        if key in model.tables():
            if not isinstance(value, dict):
                raise PresetError(f"{definition.where}: {key} is a table: write [{key}], not {key} = …")
            yield from ((f"{key}.{inner}", part) for inner, part in value.items())
        elif key in model.fields():
            yield key, value
        else:
            raise PresetError(f"{definition.where}: {_unknown_key(key)}")


def _unknown_key(key: str) -> str:
    home = next((path.split(".")[0] for path in model.fields() if path.endswith(f".{key}")), None)
    if home:
        return f"{key} belongs in the table [{home}], not above the first table"
    keys = ("base", *model.tables(), *(path for path in model.fields() if "." not in path))
    return f"{key} is not a key of a preset{nearest_or_all(key, keys)}"


def parse_override(text: str) -> tuple[str, object]:
    """Return path and value of one --set. The path of a nested table ends with its first key."""
    path, equals, raw = text.partition("=")
    path = path.strip().removeprefix("preset.")
    if not equals or not path:
        raise PresetError(
            f"--set {text}: write it as FIELD.PATH=VALUE, as in --set topology.nproc_per_node=2"
        )
    hint = model.fields().get(path)
    table, _, inner = path.partition(".")
    if table in model.NESTED and inner:
        return _nested(table, inner, raw)
    if hint is None:
        return path, raw
    value = _toml_value(raw, path)
    fits = model.fits(hint, tuple(value) if isinstance(value, list) else value)
    if not fits and model.fits(hint, raw):  # a text that looks like another type, such as 2024
        return path, raw
    return path, value


def _toml_value(raw: str, path: str) -> object:
    """Return the value of a --set, or its text if it is not TOML."""
    try:
        parsed = parse_toml(f"value = {raw}", f"--set {path}")
    except PresetError:
        return raw
    return parsed["value"] if len(parsed) == 1 else raw


def _nested(table: str, inner: str, raw: str) -> tuple[str, object]:
    """Nest the value of --set deepspeed.zero_optimization.stage=2. The path keeps the first key."""
    first, *deeper = inner.split(".")
    if table == "hosts":  # the name of a host may have dots, that of a variable has none
        first, *deeper = inner.rsplit(".", 1)
    if len(deeper) > DEEPEST:
        raise PresetError(f"--set {table}.{first}: nested more than {DEEPEST} deep")
    value = _toml_value(raw, f"{table}.{first}")
    for key in reversed(deeper):
        value = {key: value}
    return f"{table}.{first}", value


@functools.cache
def builtin_library() -> Library:
    """Return the shipped presets."""
    folder = resources.files(__package__).joinpath("builtin")
    definitions: dict[str, tuple[Definition, ...]] = {}
    for name in BUILTIN:
        where = f"builtin {name}.toml"
        table = parse_toml(folder.joinpath(f"{name}.toml").read_bytes(), where)
        definitions[name] = (Definition(name=name, origin=where, where=where, table=table),)
    return Library(definitions=definitions)


class _NothingThere(PresetError):
    """The path of a file is a broken link or not a regular file."""


@dataclass(slots=True)
class _Search:
    trusted: Mapping[str, str]
    problems: dict[str, str] = field(default_factory=dict)
    passed_over: list[PassedOverFile] = field(default_factory=list)

    @classmethod
    def begin(cls, env: Mapping[str, str]) -> _Search:
        """Create a search with the user's trusted files. If that list is unreadable, no file is trusted."""
        try:
            return cls({entry.path: entry.sha256 for entry in trusted_files.entries(env)})
        except PresetError as error:
            return cls({}, passed_over=[PassedOverFile(trusted_files.file_of(env), sentence(str(error)))])

    def user_presets(self, folder: Path) -> Iterator[Definition]:
        """Yield the user's presets. An unreadable file affects only the preset of its name."""
        try:
            names = sorted(name for name in os.listdir(folder) if name.endswith(".toml"))
        except FileNotFoundError:
            return
        except OSError as error:
            note = f"{folder} is passed over: it cannot be read ({error.strerror})."
            self.passed_over.append(PassedOverFile(folder, note))
            return
        for file in (folder / name for name in names):
            try:
                name = check_name(file.stem)
                table = self.read(file)
            except PresetError as error:
                self.problems[file.stem] = str(error)
                continue
            if table is not None:
                yield Definition(name=name, origin=f"user {file}", where=str(file), table=table)

    def project_presets(self, cwd: Path) -> Iterator[Definition]:
        """Yield the presets of the nearest accepted project file."""
        for folder in (cwd, *cwd.parents):
            file = folder / PROJECT_FILE
            try:
                document = self.read(file) if _is_there(file) else None
            except _NothingThere as error:
                self.passed_over.append(PassedOverFile(file, sentence(str(error))))
                continue
            if document is not None:
                yield from _of_project(file, document)
                return

    def read(self, file: Path) -> dict[str, Any] | None:
        """Return the file's content, or None (with a note) if the file is not trusted. Raises PresetError."""
        try:
            return parse_toml(trusted_files.read(file, self.trusted), str(file))
        except trusted_files.PassedOver as error:
            self.passed_over.append(PassedOverFile(file, str(error)))
        except FileNotFoundError:
            if file.is_symlink():
                raise _NothingThere(f"{file} cannot be read: it is a link to nothing") from None
        except trusted_files.TooLarge as error:
            raise PresetError(f"{file} {error}") from None
        except trusted_files.NoFile as error:
            raise _NothingThere(f"{file} cannot be read: {error}") from None
        except OSError as error:
            raise PresetError(f"{file} cannot be read: {error.strerror or error}") from None
        return None


def read_own(file: Path, env: Mapping[str, str] | None = None) -> tuple[dict[str, Any] | None, list[str]]:
    """Read another configuration file of the user.

    Return its document, and notes on ignored files. Raises PresetError.
    """
    search = _Search.begin(os.environ if env is None else env)
    return search.read(file), [each.note for each in search.passed_over]


def _is_there(file: Path) -> bool:
    """Return True if the path exists. A folder that this user may not search is empty for this user."""
    try:
        os.lstat(file)
    except OSError:
        return False
    return True


def _of_project(file: Path, document: Mapping[str, Any]) -> Iterator[Definition]:
    for key in document:
        if key != "preset":
            raise PresetError(f"{file}: {key} has no meaning here: write presets as tables [preset.NAME]")
    presets = document.get("preset", {})
    if not isinstance(presets, dict):
        raise PresetError(f"{file}: preset is a table: write [preset.NAME]")
    for name, table in presets.items():
        if not isinstance(table, dict):
            raise PresetError(f"{file}: preset.{name} is a table: write [preset.{name}]")
        where = f"{file} [preset.{name}]"
        yield Definition(name=check_name(name), origin=f"project {file}", where=where, table=table)


def entries(library: Library) -> tuple[list[Loaded], list[str]]:
    """Load every preset of `library`, and return a sentence for each that cannot be loaded."""
    loaded, problems = [], list(library.problems.values())
    for name in library.names:
        if name in library.problems:
            continue
        try:
            loaded.append(load(name, presets=library))
        except PresetError as error:
            problems.append(str(error))
    return loaded, problems
