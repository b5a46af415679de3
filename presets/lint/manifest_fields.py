"""Rules for the fields of job manifests: fields in a wrong place, and fields that need another one (L31)."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from typing import Any

from ..finding import Finding
from ..spelling import nearest
from ..text_formats import MarkupNode, place
from .lint_rules import issue


@functools.cache
def _tables() -> Mapping[str, Any]:
    return tomllib.loads(resources.files(__package__).joinpath("manifest_fields.toml").read_text("utf-8"))


def check_fields(document: MarkupNode, file: str, kind: str) -> Iterator[Finding]:
    """Check the fields of one manifest."""
    tables: Mapping[str, Sequence[str]] = _tables().get(kind, {})
    for path, names in tables.items():
        for node in _at(document, path.split(".")):
            yield from _unknown(node, names, tables, path, file, kind)
    for row in _tables()["needs"]:
        if row["kind"] == kind:
            yield from _needs(document, file, row)


def check_pod(spec: MarkupNode, file: str, kind: str) -> Iterator[Finding]:
    """Check the fields of a pod and of its containers."""
    tables: Mapping[str, Sequence[str]] = _tables()["pod"]
    yield from _unknown(spec, tables["spec"], tables, "spec", file, "pod")
    containers = spec.get("containers")
    for container in containers.items if containers else []:
        yield from _unknown(container, tables["container"], tables, "container", file, "pod")
        amounts = container.get("resources")
        if amounts is not None:
            yield from _unknown(amounts, tables["resources"], tables, "resources", file, "pod")


def _at(node: MarkupNode, path: Sequence[str]) -> Iterator[MarkupNode]:
    """Yield the mappings at a path. `*` is each item or member."""
    if not path:
        yield node
    elif path[0] == "*":
        for inner in (*node.items, *node.mapping.values()):
            yield from _at(inner, path[1:])
    else:
        inner_node = node.get(path[0])
        if inner_node is not None:
            yield from _at(inner_node, path[1:])


def _unknown(
    node: MarkupNode,
    names: Sequence[str],
    tables: Mapping[str, Sequence[str]],
    path: str,
    file: str,
    kind: str,
) -> Iterator[Finding]:
    """Report fields that belong elsewhere, or that look misspelt. Newer fields are not reported."""
    for key, part in node.mapping.items():
        if key in names:
            continue
        right = next((other for other, fields in tables.items() if key in fields and other != path), "")
        near = "" if right else nearest(key, names, 0.8)
        if right or near:
            text = f"{kind} has no field {path}.{key}: Kubernetes drops it, or refuses the manifest."
            remedy = f"Move it to {right}." if right else None
            yield issue(
                "L31",
                place(file, part, key),
                text,
                value=key,
                near=near,
                remedy=remedy,
                severity="error" if right else "warning",
            )


def _needs(document: MarkupNode, file: str, row: Mapping[str, str]) -> Iterator[Finding]:
    field, needed = row["field"], row["needs"]
    node = document.get(*field.split("."))
    if node is not None and not document.on(*needed.split(".")):
        name, other = field.rpartition(".")[2], needed.rpartition(".")[2]
        text = f"{name} has no effect without {other}: true."
        yield issue(
            "L31",
            place(file, node, field),
            text,
            value=name,
            remedy=f"Add {other}: true.",
            severity="warning",
        )
