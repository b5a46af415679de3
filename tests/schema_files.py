"""Make the JSON Schema files of docs/schemas from types: one file per verb, and one of the types that several use."""

from __future__ import annotations

import json
import re
import textwrap
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from types import UnionType
from typing import Any, Union, get_args, get_origin

import msgspec
from msgspec import inspect

SHARED = "types.json"
"""The file of types that several verbs use."""
DRAFT = "https://json-schema.org/draft/2020-12/schema"
WIDTH = 100
"""Characters per line; longer values are split into a line per item."""

Schema = dict[str, Any]


def schema_files(
    documents: Mapping[str, Any], by_line: Collection[str], open_types: Collection[type]
) -> dict[str, str]:
    """Return the text of each file by its name.

    `documents`: verb → type of its document. `by_line`: verbs that print a document per line. `open_types`: types that
    are printed with further fields. Raises ValueError if two types have the same name.
    """
    generated = {verb: _generate(document, open_types) for verb, document in documents.items()}
    users = Counter(name for _, definitions in generated.values() for name in definitions)
    shared: Schema = {}
    for _, definitions in generated.values():
        for name, definition in definitions.items():
            if users[name] > 1 and shared.setdefault(name, definition) != definition:
                raise ValueError(f"two types have the name {name}: rename one")
    files = {SHARED: _text("types of several verbs", {}, shared, ())}
    for verb, (schema, definitions) in generated.items():
        title = f"distui {verb} --json (each line)" if verb in by_line else f"distui {verb} --json"
        own = {name: definition for name, definition in definitions.items() if name not in shared}
        files[f"{verb}.json"] = _text(title, schema, own, shared)
    return files


def _generate(document: Any, open_types: Collection[type]) -> tuple[Schema, Schema]:
    """The schema of a document, and the definitions that it uses."""
    is_union = get_origin(document) in (Union, UnionType)
    alternatives = get_args(document) if is_union else (document,)
    schemas, definitions = msgspec.json.schema_components(alternatives, ref_template="#/$defs/{name}")
    definitions = {name: _without_prose(definition) for name, definition in definitions.items()}
    for described in _described_classes(alternatives):
        name = described.cls.__name__
        definitions[name] = _exact(described, definitions[name], described.cls in open_types)
    return {"anyOf": list(schemas)} if is_union else schemas[0], definitions


def _described_classes(types: Sequence[Any]) -> list[Any]:
    """msgspec's description of each struct, dataclass and typed dict that these types consist of."""
    found: dict[int, Any] = {}
    pending: list[Any] = list(inspect.multi_type_info(types))
    while pending:
        node = pending.pop()
        if isinstance(node, tuple):
            pending += node
        elif isinstance(node, inspect.Type | inspect.Field) and id(node) not in found:
            found[id(node)] = node
            pending += [getattr(node, name) for name in node.__struct_fields__]
    return [node for node in found.values() if hasattr(node, "fields")]


def _exact(described: Any, definition: Schema, is_open: bool) -> Schema:
    """The definition of a class whose fields are all printed, with their defaults too.

    Structs of the wire leave defaults out, and stay as msgspec describes them.
    """
    config = getattr(described.cls, "__struct_config__", None)
    if config is not None and (config.omit_defaults or config.array_like):
        return definition
    properties = {
        name: _without_default(definition["properties"][name]) for name in _names(described, definition)
    }
    optional = {field.encode_name for field in described.fields if _may_be_left_out(field)}
    exact = definition | {
        "properties": properties,
        "required": [name for name in properties if name not in optional],
    }
    return exact if is_open else exact | {"additionalProperties": False}


def _without_prose(definition: Schema) -> Schema:
    """Without the title, which is the name, and the docstring of the class, which is about code."""
    return {key: value for key, value in definition.items() if key not in ("title", "description")}


def _names(described: Any, definition: Schema) -> list[str]:
    """The names of the fields as they are declared; msgspec sorts those of typed dicts."""
    if isinstance(described, inspect.TypedDictType):
        return list(described.cls.__annotations__)
    return list(definition["properties"])


def _without_default(schema: Schema) -> Schema:
    return {key: value for key, value in schema.items() if key != "default"}


def _may_be_left_out(field: inspect.Field) -> bool:
    """True for NotRequired, and for the default UNSET."""
    has_default = field.default is not msgspec.NODEFAULT or field.default_factory is not msgspec.NODEFAULT
    return not field.required and not has_default


# --- as text ---


def _text(title: str, schema: Schema, definitions: Schema, elsewhere: Collection[str]) -> str:
    """The text of a file. `elsewhere`: types that it refers to in SHARED."""
    document = {"$schema": DRAFT, "title": title, **schema}
    if definitions:
        document["$defs"] = dict(sorted(definitions.items()))

    def reference(match: re.Match[str]) -> str:
        return f'"{SHARED}{match[1]}"' if match[2] in elsewhere else match[0]

    pointing = re.sub(r'"(#/\$defs/([\w.]+))"', reference, json.dumps(document))
    return _laid_out(json.loads(pointing)) + "\n"


def _laid_out(value: Any, indent: str = "", before: int = 0) -> str:
    """JSON with a line per property, and everything else on one line if that is short enough.

    `before`: characters on the line before the value.
    """
    line = json.dumps(value, ensure_ascii=False)
    if not isinstance(value, dict | list) or len(indent) + before + len(line) < WIDTH:
        return line
    inner = f"{indent} "
    if isinstance(value, dict):
        items = [_property(name, item, inner) for name, item in value.items()]
        return "{\n" + ",\n".join(items) + f"\n{indent}}}"
    if all(isinstance(item, str) for item in value):
        items = [textwrap.fill(line[1:-1], WIDTH, initial_indent=inner, subsequent_indent=inner)]
    else:
        items = [inner + _laid_out(item, inner) for item in value]
    return "[\n" + ",\n".join(items) + f"\n{indent}]"


def _property(name: str, value: Any, indent: str) -> str:
    has_lines = name == "properties" and len(value) > 1
    key = f"{indent}{json.dumps(name)}: "
    return key + _laid_out(value, indent, WIDTH if has_lines else len(key))
