"""Keys and values against those that a program knows: what L30 and L31 say of any kind of file."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator

from ..finding import Finding, Severity
from .nodes import Node, place
from .rules import found


def choice(
    file: str, node: Node | None, path: str, known: Iterable[str], program: str
) -> Iterator[Finding]:
    """A text that has to be one of some, whatever its case."""
    if node is None or node.value is None:
        return
    options = list(known)
    where = place(file, node, path)
    if node.value is False and "no" in (one.lower() for one in options):
        word = next(one for one in options if one.lower() == "no")
        text = f"Without quotes YAML reads {word} as false, which is no {path} of {program}."
        yield found("L30", where, text, value=f"{path}: {word}", remedy=f"Write '{word}', in quotes.")
        return
    value = str(node.value)
    if value.lower() not in (one.lower() for one in options):
        near = difflib.get_close_matches(value, options, n=1)
        remedy = f"Did you mean {near[0]}?" if near else f"Write one of {', '.join(options)}."
        text = f"{program} has no {path} {value}."
        yield found("L30", where, text, value=f"{path}: {value}", remedy=remedy)


def keys(file: str, node: Node, known: Iterable[str], program: str, *, refuses: bool) -> Iterator[Finding]:
    """Keys that a program does not have.

    What it does not refuse it ignores: of those only the ones that look misspelt are named, the others may be notes.
    """
    options = list(known)
    for key, part in node.mapping.items():
        near = difflib.get_close_matches(key, options, n=1, cutoff=0.8)
        if key in options or not (near or refuses):
            continue
        text = f"{program} has no key {key}" + (
            ", and refuses the file." if refuses else ", and does not read it."
        )
        severity: Severity = "error" if near else "warning"  # a newer release may have it
        remedy = f"Did you mean {near[0]}?" if near else None
        yield found("L31", place(file, part, key), text, value=key, remedy=remedy, severity=severity)
