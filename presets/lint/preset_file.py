"""Rules for preset files: a file of the user, or the presets of a project."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from typing import Any

from .. import model
from ..finding import Finding, PresetError
from ..load import PROJECT_FILE, Definition, Library, check_name, load
from ..sanitize import sentence
from ..text_formats import plain
from . import lint_rules
from .deepspeed_file import check_deepspeed
from .lint_rules import issue, once

_HEADER = re.compile(r"\s*+\[+([^\[\]]++)\]+")
_KEY = re.compile(r"\s*+([A-Za-z0-9_\-.\"' ]++)\s*+=")


def is_preset(document: Mapping[str, Any]) -> bool:
    """Return True if a TOML document looks like a preset, or like a project's presets."""
    keys = {"base", "preset", *model.tables(), *(path for path in model.fields() if "." not in path)}
    return bool(keys & document.keys()) and not {"project", "tool", "build-system"} & document.keys()


def check_preset(
    document: Mapping[str, Any], text: str, file: str, bases: Library | None = None
) -> list[Finding]:
    """Check one preset file. `bases`: the existing presets, or None to skip the check of base presets."""
    lines = _lines(text)
    stem = file.rsplit("/", 1)[-1]
    findings: list[Finding] = []
    if stem != PROJECT_FILE and "preset" not in document:
        return once(_preset(stem.removesuffix(".toml"), document, file, lines, "", bases))
    for key in document:
        if key != "preset":
            text_ = f"{key} has no meaning in {PROJECT_FILE}: write presets as tables [preset.NAME]."
            findings.append(issue("L31", _at(file, lines, key), text_, value=key))
    tables = document.get("preset")
    for name, table in (tables if isinstance(tables, dict) else {}).items():
        if len(findings) >= lint_rules.MOST:
            break
        prefix = f"preset.{name}."
        if isinstance(table, dict):
            findings += _preset(name, table, file, lines, prefix, bases)
        else:
            where = _at(file, lines, prefix[:-1])
            findings.append(issue("L30", where, f"preset.{name} is a table: write [preset.{name}]."))
    return once(findings)


def _preset(
    name: str,
    table: Mapping[str, Any],
    file: str,
    lines: Mapping[str, int],
    prefix: str,
    bases: Library | None,
) -> list[Finding]:
    """Check one preset. If its own values are valid, check it together with its base presets."""
    findings: list[Finding] = []
    for path, value in itertools.islice(_values(table), lint_rules.MOST):
        findings += _value(path, value, _at(file, lines, prefix + path))
    own = table.get("env")
    hidden = isinstance(own, dict) and own.get("CUDA_VISIBLE_DEVICES") == ""
    shape = table.get("topology")
    if hidden and isinstance(shape, dict) and shape.get("nproc_per_node") == "gpu":
        where = _at(file, lines, f"{prefix}topology.nproc_per_node")
        text = "CUDA_VISIBLE_DEVICES is empty in [env]: no GPU is left."
        findings.append(issue("L10", where, text, value='nproc_per_node = "gpu"'))
    if isinstance(table.get("deepspeed"), dict):
        findings += check_deepspeed(plain(table["deepspeed"]), f"{file} {prefix}deepspeed")
    if not findings and bases is not None:
        findings += _whole(name, table, file, bases)
    return findings


def _values(table: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    """Yield path and value of every entry of a preset."""
    for key, value in table.items():
        if key in model.tables() and isinstance(value, dict):
            yield from ((f"{key}.{inner}", part) for inner, part in value.items())
        elif key != "base":
            yield key, value


def _value(path: str, value: object, where: str) -> list[Finding]:
    table, _, name = path.partition(".")
    findings: list[Finding] = []
    if table in model.FREE and name and isinstance(value, str | int | float):
        text = model.variable_text(value)
        findings += lint_rules.check_variables(name, text, where)
        findings += lint_rules.in_plain_text(name, text, where)
        if any(finding.id in ("L1", "L15", "L16") for finding in findings):
            return findings
    try:
        model.accept(path, value, "")
    except PresetError as error:
        is_field = path in model.fields() or table in (*model.FREE, *model.NESTED)
        text = sentence(str(error).removeprefix(": "))
        id = "L30" if is_field else "L31"
        findings.append(issue(id, where, text, value=path, remedy="" if "did you mean" in text else None))
    return findings


def _whole(name: str, table: Mapping[str, Any], file: str, bases: Library) -> Iterator[Finding]:
    """Check the preset together with its base presets."""
    own = Definition(name=name, origin=f"user {file}", where=file, table=table)
    below = tuple(
        entry for entry in bases.definitions.get(name, ()) if file.rsplit("/", 1)[-1] not in entry.where
    )
    try:
        check_name(name)
        load(name, presets=Library(definitions={**bases.definitions, name: (*below, own)}))
    except PresetError as error:
        yield issue("L19", file, sentence(str(error)), value=name, remedy="")


def _lines(text: str) -> dict[str, int]:
    """Return the line of each dotted key at the beginning of a line."""
    made: dict[str, int] = {}
    header = ""
    for number, line in enumerate(text.splitlines(), 1):
        table, key = _HEADER.match(line), _KEY.match(line)
        if table:
            header = _plain_key(table[1])
            made.setdefault(header, number)
        elif key:
            made.setdefault(f"{header}.{_plain_key(key[1])}".lstrip("."), number)
    return made


def _plain_key(key: str) -> str:
    return ".".join(part.strip() for part in key.replace('"', "").replace("'", "").split("."))


def _at(file: str, lines: Mapping[str, int], path: str) -> str:
    """Return the line of a path, or of the table that contains it."""
    while path not in lines and "." in path:
        path = path.rpartition(".")[0]
    return f"{file}:{lines[path]}" if path in lines else file
