"""Rules about presets in TOML: the user's own files, and a project's distui.toml."""

from __future__ import annotations

import itertools
import re
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any

from .. import model
from ..finding import Finding, PresetError
from ..load import PROJECT_FILE, Definition, Library, check_name, load
from ..text_formats import DEEPEST, too_deep
from . import consumers, torchrun_args
from .lint_rules import issue, once
from .markup import Unreadable, plain

_HEADER = re.compile(r"\s*\[+\s*([^\[\]]+?)\s*\]+")
LONGEST = 300
"""Letters of a line in which a key is looked for."""
_KEY = re.compile(r"\s*([A-Za-z0-9_\-.\"' ]+?)\s*=")


def parse(text: str) -> dict[str, Any]:
    """The document. Raises Unreadable."""
    deep = too_deep(text)
    if deep is not None:
        raise Unreadable(deep, f"is nested too deeply to be read: more than {DEEPEST} deep")
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        place = re.search(r" \(at line (\d+), column \d+\)$", str(error))
        line = int(place[1]) if place else text.count("\n") + 1
        reason = re.sub(r" \(at .*\)$", "", str(error))
        raise Unreadable(line, f"is not valid TOML: {reason}") from None
    except (RecursionError, ValueError):  # ValueError: a number of thousands of digits
        raise Unreadable(1, "is nested too deeply, or with numbers too long, to be read") from None


def is_preset(document: Mapping[str, Any]) -> bool:
    """Whether a TOML document looks like a preset, or like a project's presets."""
    keys = {"base", "preset", *model.tables(), *(path for path in model.fields() if "." not in path)}
    return bool(keys & document.keys()) and not {"project", "tool", "build-system"} & document.keys()


def check(document: Mapping[str, Any], text: str, file: str, bases: Library | None = None) -> list[Finding]:
    """Everything about one file. `bases`: the presets that there are; None: nothing is said of what it builds on."""
    lines = _lines(text)
    stem = file.rsplit("/", 1)[-1]
    findings: list[Finding] = []
    if stem != PROJECT_FILE and "preset" not in document:
        return once(_preset(stem.removesuffix(".toml"), document, file, lines, "", bases))
    for key in document:
        if key != "preset":
            text_ = f"{key} means nothing in {PROJECT_FILE}: presets stand in tables [preset.NAME]."
            findings.append(issue("L31", _at(file, lines, key), text_, value=key))
    tables = document.get("preset")
    for name, table in (tables if isinstance(tables, dict) else {}).items():
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
    """One preset; what it is together with what it builds on only where its own values are right."""
    findings: list[Finding] = []
    for path, value in itertools.islice(_values(table), torchrun_args.MOST):
        findings += _value(path, value, _at(file, lines, prefix + path))
    own = table.get("env")
    hidden = isinstance(own, dict) and own.get("CUDA_VISIBLE_DEVICES") == ""
    shape = table.get("topology")
    if hidden and isinstance(shape, dict) and shape.get("nproc_per_node") == "gpu":
        where = _at(file, lines, f"{prefix}topology.nproc_per_node")
        text = "CUDA_VISIBLE_DEVICES is empty in [env]: no GPU is left."
        findings.append(issue("L10", where, text, value='nproc_per_node = "gpu"'))
    if isinstance(table.get("deepspeed"), dict):
        findings += consumers.check_deepspeed(plain(table["deepspeed"]), f"{file} {prefix}deepspeed")
    if not findings and bases is not None:
        findings += _whole(name, table, file, bases)
    return findings


def _values(table: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    """Path and value of all that a preset says."""
    for key, value in table.items():
        if key in model.tables() and isinstance(value, dict):
            yield from ((f"{key}.{inner}", part) for inner, part in value.items())
        elif key != "base":
            yield key, value


def _value(path: str, value: object, where: str) -> list[Finding]:
    table, _, name = path.partition(".")
    findings: list[Finding] = []
    if table in model.FREE and name and isinstance(value, str | int | float):
        text = str(int(value)) if isinstance(value, bool) else str(value)
        findings += torchrun_args.check_variables(name, text, where)
        findings += torchrun_args.in_plain_text(name, text, where)
        if any(finding.id in ("L1", "L15", "L16") for finding in findings):
            return findings
    try:
        model.accept(path, value, "")
    except PresetError as error:
        is_field = path in model.fields() or table in (*model.FREE, *model.NESTED)
        sentence = str(error).removeprefix(": ")
        id = "L30" if is_field else "L31"
        findings.append(
            issue(id, where, sentence, value=path, remedy="" if "did you mean" in sentence else None)
        )
    return findings


def _whole(name: str, table: Mapping[str, Any], file: str, bases: Library) -> Iterator[Finding]:
    """The preset on what it builds on."""
    own = Definition(name=name, origin=f"user {file}", where=file, table=table)
    below = tuple(
        entry for entry in bases.definitions.get(name, ()) if file.rsplit("/", 1)[-1] not in entry.where
    )
    try:
        check_name(name)
        load(name, presets=Library(definitions={**bases.definitions, name: (*below, own)}))
    except PresetError as error:
        yield issue("L19", file, str(error), value=name, remedy="")


def _lines(text: str) -> dict[str, int]:
    """Dotted key → line, for the keys that stand at the begin of a line."""
    made: dict[str, int] = {}
    header = ""
    for number, line in enumerate(text.splitlines(), 1):
        table, key = _HEADER.match(line[:LONGEST]), _KEY.match(line[:LONGEST])
        if table:
            header = _plain(table[1])
            made.setdefault(header, number)
        elif key:
            made.setdefault(f"{header}.{_plain(key[1])}".lstrip("."), number)
    return made


def _plain(key: str) -> str:
    return re.sub(r"\s*\.\s*", ".", key.replace('"', "").replace("'", "")).strip()


def _at(file: str, lines: Mapping[str, int], path: str) -> str:
    """The line of a path, or of the table that it stands in."""
    while path not in lines and "." in path:
        path = path.rpartition(".")[0]
    return f"{file}:{lines[path]}" if path in lines else file
