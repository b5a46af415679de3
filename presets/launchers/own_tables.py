"""Keys of the tables [accelerate] and [deepspeed] that would contradict a field of the preset. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..finding import PlanError


def check(table: str, own: Mapping[str, Any], made: Mapping[str, Any], fields: Mapping[str, str]) -> None:
    """Raise PlanError if a table has another value than a field gives.

    `made`: the values from the fields. `fields`: dotted key of the table → the field that decides it.
    """
    for key, field in fields.items():
        above, below = _at(own, key), _at(made, key)
        if None not in (above, below) and _shown(above) != _shown(below):
            raise PlanError(
                f"{table}.{key} {_shown(above)} contradicts {field}, which makes it {_shown(below)}: set {field} instead"
            )


def _at(values: Any, key: str) -> Any:
    """Return the value of a dotted key, or None."""
    for part in key.split("."):
        values = values.get(part) if isinstance(values, Mapping) else None
    return values


def _shown(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
