"""The nodes that SkyPilot would take, as rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .cells import Cell, Row, fit

if TYPE_CHECKING:
    from ...runners.hub.candidates import Candidate

_WIDTHS = (("infra", 20), ("instance", 18), ("CPUs", 5), ("GB", 5), ("GPUs", 9), ("$/h", 8))
_RIGHT = ("CPUs", "GB", "$/h")


def head_row() -> Row:
    """The names of the columns."""
    return tuple((f"{fit(name, width, right=name in _RIGHT)} ", "dim") for name, width in _WIDTHS)


def candidate_row(one: Candidate) -> Row:
    """One kind of nodes, with its price for all of them."""
    price = "n/a" if one.price_per_hour is None else f"{one.price_per_hour:.2f}"
    texts = (one.infra, one.instance, one.vcpus, one.memory_gb, one.gpus, price)
    cells: list[Cell] = []
    for text, (name, width) in zip(texts, _WIDTHS, strict=True):
        style = "stale" if text in ("", "n/a") else "head" if one.chosen else "text"
        cells.append((f"{fit(text or '-', width, right=name in _RIGHT)} ", style))
    return (*cells, ("first", "ok")) if one.chosen else tuple(cells)


def candidate_rows(found: Sequence[Candidate]) -> list[Row]:
    """As SkyPilot orders them."""
    return [candidate_row(one) for one in found]
