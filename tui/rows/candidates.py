"""Nodes that SkyPilot would take, as rows and as text. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...runners.run.formatting import NA
from .glyphs import Cell, Row, fit, or_na, table

if TYPE_CHECKING:
    from ...runners.hub.sky_process import Candidate

_WIDTHS = (("infra", 20), ("instance", 18), ("CPUs", 5), ("GB", 5), ("GPUs", 9), ("$/h", 8))
_RIGHT = ("CPUs", "GB", "$/h")


def head_row() -> Row:
    return tuple((f"{fit(name, width, right=name in _RIGHT)} ", "dim") for name, width in _WIDTHS)


def _texts(offer: Candidate) -> tuple[str, ...]:
    price = or_na(offer.price_per_hour, "{:.2f}".format)
    texts = (offer.infra, offer.instance, offer.vcpus, offer.memory_gb, offer.gpus, price)
    return tuple(text or "-" for text in texts)


def candidate_rows(offers: Sequence[Candidate]) -> list[Row]:
    """Return one row per kind of nodes in SkyPilot's order, with the price of all nodes together."""
    return [_candidate_row(offer) for offer in offers]


def _candidate_row(offer: Candidate) -> Row:
    cells: list[Cell] = []
    for text, (name, width) in zip(_texts(offer), _WIDTHS, strict=True):
        if text in ("-", NA):
            style = "stale"
        elif offer.chosen:
            style = "head"
        else:
            style = "text"
        cells.append((f"{fit(text, width, right=name in _RIGHT)} ", style))
    return (*cells, ("first", "ok")) if offer.chosen else tuple(cells)


def candidate_table(offers: Sequence[Candidate]) -> list[str]:
    """Return the candidates as text, nothing cut."""
    names = [name for name, _ in _WIDTHS]
    rows = [(*_texts(offer), "first" if offer.chosen else "") for offer in offers]
    return table([(*names, ""), *rows], frozenset(map(names.index, _RIGHT)))
