"""What a preset file may say: every field by its path, read off the dataclasses of model.py."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import math
import types
from collections.abc import Iterable, Mapping
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from . import nccl
from .errors import PresetError
from .model import MESH_OPTIONS, STRATEGY_OPTIONS, Nccl, Preset, Strategy

FREE = ("nccl", "env")
"""Tables that take any variable's name: what stands in them becomes text."""

NESTED = ("hosts", "deepspeed", "accelerate", "sky")
"""Tables of tables: variables by host, and what has the shape of another program's own file, with any keys."""

LEAST: Mapping[str, float] = {
    "strategy.bucket_cap_mb": 1,
    "mesh.pp": 1,
    "mesh.dp_replicate": 1,
    "mesh.ep": 1,
    "mesh.cp": 1,
    "mesh.tp": 1,
    "mesh.microbatches": 1,
    "batch.micro": 1,
    "batch.accumulation": 1,
    "batch.total": 1,
    "launcher.grace_s": 0,
    "launcher.monitor_interval_s": 0.01,
    "topology.nnodes": 1,
    "topology.nnodes_min": 1,
    "topology.nproc_per_node": 1,
    "restart.limit": 0,
    "restart.backoff_s": 0,
    "restart.backoff_max_s": 0,
    "restart.reset_after_s": 0,
}
"""Smallest number a field takes."""

Value = str | bool | int | float | tuple[str, ...] | Mapping[str, Any] | list[Any]
"""What a field holds in the end; mappings and lists only in NESTED."""


@functools.cache
def fields() -> Mapping[str, Any]:
    """Path of every field with a fixed name, as in "strategy.kind" or "hook", and its type."""
    found: dict[str, Any] = {}
    for name, hint in get_type_hints(Preset).items():
        if name in ("name", *FREE, *NESTED):
            continue
        if dataclasses.is_dataclass(hint):
            found |= {f"{name}.{inner}": kind for inner, kind in get_type_hints(hint).items()}
        else:
            found[name] = hint
    return found


@functools.cache
def tables() -> tuple[str, ...]:
    """Names of the tables of a preset file, in order."""
    return (*dict.fromkeys(path.split(".")[0] for path in fields() if "." in path), *FREE, *NESTED)


def accept(path: str, value: object, where: str) -> Value:
    """`value` as the field `path` holds it. `where` names the file for the sentence of the PresetError."""
    table, _, variable = path.partition(".")
    if table in FREE and variable:
        return _accept_variable(table, variable, value, where)
    if table == "hosts" and variable:
        return _accept_host(path, value, where)
    if table in NESTED and variable:
        return _accept_nested(path, value, where)
    if path not in fields():
        raise PresetError(f"{where}: {path} is not a field of a preset{nearest(path, fields())}")
    hint = fields()[path]
    if isinstance(value, list):
        value = tuple(value)
    if not fits(hint, value):
        raise PresetError(f"{where}: {path} takes {words(hint)}, not {show(value)}.")
    least = LEAST.get(path)
    if least is not None and isinstance(value, int | float) and value < least:
        raise PresetError(f"{where}: {path} takes {least:g} or more, not {show(value)}.")
    return float(value) if hint is float else value  # type: ignore[arg-type,return-value]


def _accept_variable(table: str, variable: str, value: object, where: str) -> str:
    if isinstance(value, bool):
        text = str(int(value))
    elif isinstance(value, str | int | float):
        text = str(value)
    else:
        raise PresetError(f"{where}: {table}.{variable} takes a text or a number, not {show(value)}.")
    problem = nccl.check(variable, text) if table == "nccl" else None
    if problem:
        raise PresetError(f"{where}: {problem}")
    return text


def _accept_host(path: str, value: object, where: str) -> dict[str, str]:
    """Variables for one pattern of host names."""
    if not isinstance(value, Mapping):
        raise PresetError(
            f"{where}: {path} is a table of variables: write [{path}], and NAME = VALUE below."
        )
    return {
        name: _accept_variable("nccl" if nccl.known(name) else path, name, part, where)
        for name, part in value.items()
    }


def _accept_nested(path: str, value: object, where: str) -> Value:
    """JSON's kinds of value; a date, which TOML has too, is none of them."""
    if isinstance(value, Mapping):
        return {str(key): _accept_nested(f"{path}.{key}", part, where) for key, part in value.items()}
    if isinstance(value, list):
        return [_accept_nested(f"{path}[{at}]", part, where) for at, part in enumerate(value)]
    if isinstance(value, str | bool | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    raise PresetError(
        f"{where}: {path} is {value}: write a text, a number, true or false, a list or a table."
    )


def merged(below: Value, above: Value) -> Value:
    """Two values of a NESTED table, the tables in them merged key by key."""
    if not (isinstance(below, Mapping) and isinstance(above, Mapping)):
        return above
    both = {key: merged(below[key], above[key]) for key in below.keys() & above.keys()}
    return {**below, **above, **both}


def belongs(values: Mapping[str, Value], origins: Mapping[str, str]) -> None:
    """Raises PresetError when an option was set that does nothing in the preset's strategy."""
    kind = str(values.get("strategy.kind", Strategy().kind))
    for path in values:
        option = path.removeprefix("strategy.")
        if (
            option in (path, "kind") or option in STRATEGY_OPTIONS[kind]
        ):  # the mesh is checked with the plan
            continue
        takers = ", ".join(name for name, options in STRATEGY_OPTIONS.items() if option in options)
        raise PresetError(
            f"{origins[path]}: {path} does nothing in strategy {kind}: it belongs to {takers}."
        )


def fits(hint: Any, value: object) -> bool:
    """Whether `value` is of the type `hint` (only the kinds of type that model.py uses)."""
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return any(fits(part, value) for part in get_args(hint))
    if origin is Literal:
        return any(type(value) is type(choice) and value == choice for choice in get_args(hint))
    if origin is tuple:
        return isinstance(value, tuple) and all(isinstance(part, str) for part in value)
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, hint)


def words(hint: Any) -> str:
    """The type `hint` for a person."""
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return ", or ".join(words(part) for part in get_args(hint) if part is not type(None))
    if origin is Literal:
        *most, last = (show(choice) for choice in get_args(hint))
        return f"{', '.join(most)} or {last}" if most else last
    if origin is tuple:
        return "a list of texts"
    names = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}
    return names[hint]


def show(value: object) -> str:
    """A value that was found in a file, as it may stand in a sentence."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return "a table"
    if isinstance(value, list | tuple):
        return "a list"
    return f'"{value}"' if isinstance(value, str) else str(value)


def nearest(word: str, known: Iterable[str]) -> str:
    """The end of a sentence about an unknown `word`: what is nearest to it, or all there is."""
    choices = list(known)
    near = difflib.get_close_matches(word, choices, n=1)
    if near:
        return f"; did you mean {near[0]}?"
    return f"; there are {', '.join(choices)}." if len(choices) < 16 else "."


def build(name: str, values: Mapping[str, Value]) -> Preset:
    """The preset `name` of values that `accept` let through."""
    hints = get_type_hints(Preset)
    parts: dict[str, Any] = {key: {} for key in tables()}
    plain: dict[str, Any] = {}
    for path, value in values.items():
        table, _, inner = path.partition(".")
        if inner:
            parts[table][inner] = value
        else:
            plain[table] = value
    env = parts.pop("env")
    plain |= {table: parts.pop(table) for table in NESTED}
    parts["nccl"] = Nccl(env=parts["nccl"])
    made: dict[str, Any] = {
        key: part if isinstance(part, Nccl) else hints[key](**part) for key, part in parts.items()
    }
    return Preset(name=name, env=env, **plain, **made)


def flat(preset: Preset) -> dict[str, Value | None]:
    """Every value of `preset` by its path, options that belong to another kind of strategy left out."""
    skipped = options_of(None) - options_of(preset.strategy.kind)
    found: dict[str, Value | None] = {}
    for path in fields():
        if path not in skipped:
            found[path] = functools.reduce(getattr, path.split("."), preset)  # type: ignore[assignment]
    found |= {f"nccl.{name}": value for name, value in sorted(preset.nccl.env.items())}
    found |= {f"env.{name}": value for name, value in sorted(preset.env.items())}
    for table in NESTED:
        found |= {f"{table}.{key}": value for key, value in getattr(preset, table).items()}
    return found


def options_of(kind: str | None) -> set[str]:
    """Paths of the options that act in a kind of strategy; None: in any."""
    kinds = STRATEGY_OPTIONS if kind is None else (kind,)
    return {f"strategy.{name}" for one in kinds for name in STRATEGY_OPTIONS[one]} | {
        f"mesh.{name}" for one in kinds for name in MESH_OPTIONS[one]
    }
