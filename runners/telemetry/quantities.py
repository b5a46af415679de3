"""The table of measured values: what a node, a rank, and a training script report. Pure data.

The samplers fill the fields, and the store of curves, `distui metrics`, the charts, the tables of the cockpit, the file
for Prometheus, and the push to OpenTelemetry loop over these rows.
"""

from __future__ import annotations

from collections.abc import Iterator

from .gpu_quantities import GPU
from .quantity import Curve, Quantity

BY_SOURCE: dict[str, tuple[Quantity, ...]] = {"gpu": GPU}
"""By the first part of a curve's name."""


def with_curve() -> Iterator[tuple[Quantity, Curve]]:
    """Each quantity that has a curve."""
    for rows in BY_SOURCE.values():
        for quantity in rows:
            if quantity.curve is not None:
                yield quantity, quantity.curve
