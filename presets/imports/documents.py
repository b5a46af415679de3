"""A file of another program's → the preset that says the same, and what is wrong with the file."""

from __future__ import annotations

from typing import Any

from ..errors import PresetError
from ..finding import Finding
from ..lint import deepspeed as deepspeed_rules
from ..lint import jsonnodes
from ..lint import skypilot as skypilot_rules
from ..lint.files import Yaml, lint_file
from ..lint.nodes import MOST_BYTES, Node, Unreadable, decoded
from . import accelerate, deepspeed, skypilot
from .values import Imported

WANTED = "accelerate's YAML, DeepSpeed's JSON or a SkyPilot task was expected"


def imported(name: str, data: bytes, yaml: Yaml) -> tuple[Imported, list[Finding]]:
    """The preset of the file `name`, and what lint finds in it. Raises PresetError.

    `yaml` reads the documents of a YAML text and raises Unreadable.
    """
    try:
        document = _document(name, data, yaml)
    except Unreadable as error:
        raise PresetError(f"{name} line {error.line}: {error}: {WANTED}.") from None
    values = _plain(document)
    keys = document.mapping.keys()
    if keys & {"distributed_type", "compute_environment"}:
        found = accelerate.imported(values, name)
    elif deepspeed_rules.is_config(document):
        found = deepspeed.imported(values, name)
    elif keys & skypilot_rules.MARKS:
        found = skypilot.imported(values, name)
    else:
        said = f"keys {', '.join(list(keys)[:5])}" if keys else "no mapping"
        raise PresetError(f"{name} line {max(1, document.line)}: it holds {said}: {WANTED}.")
    return found, lint_file(name, data, yaml)


def _document(name: str, data: bytes, yaml: Yaml) -> Node:
    """Raises Unreadable, and PresetError for several documents."""
    if len(data) > MOST_BYTES:
        raise Unreadable(1, f"is larger than {MOST_BYTES >> 20} MiB")
    text = decoded(data)
    if name.lower().endswith(".json") or (text.lstrip().startswith("{") and not _is_yaml(name)):
        return jsonnodes.read(text)
    documents = yaml(text)
    if len(documents) != 1:
        raise PresetError(f"{name}: {len(documents)} documents where one was expected.")
    return documents[0]


def _is_yaml(name: str) -> bool:
    return name.lower().endswith((".yaml", ".yml"))


def _plain(node: Node) -> Any:
    """A tree as values; whatever is no mapping at the top has no keys."""
    if isinstance(node.value, dict):
        return {key: _plain(part) for key, part in node.value.items()}
    if isinstance(node.value, list):
        return [_plain(part) for part in node.value]
    return node.value
