"""The table of measured values: what a node, a rank, and a training script report. Pure data.

The samplers fill the fields, and the store of curves, `distui metrics`, the charts, the tables of the cockpit, the file
for Prometheus, and the push to OpenTelemetry loop over these rows.
"""

from __future__ import annotations

from collections.abc import Iterator

from .gpu_quantities import GPU
from .quantity import Curve, Quantity

# --- nodes ---

_NO_IB = "this node has no InfiniBand port"

HOST: tuple[Quantity, ...] = (
    Quantity("cpu_percent", "%", curve=Curve("host.cpu", "host CPU", low=0, high=100)),
    Quantity("mem_used", "B", limit="host.mem_total", curve=Curve("host.mem", "host memory", low=0)),
    Quantity("net_rx_bps", "B/s", curve=Curve("host.net_rx", "network received", "network in", low=0)),
    Quantity("net_tx_bps", "B/s", curve=Curve("host.net_tx", "network sent", "network out", low=0)),
    Quantity(
        "ib_rx_bps", "B/s", curve=Curve("host.ib_rx", "InfiniBand received", "InfiniBand in", _NO_IB, 0)
    ),
    Quantity("ib_tx_bps", "B/s", curve=Curve("host.ib_tx", "InfiniBand sent", "InfiniBand out", _NO_IB, 0)),
    Quantity("disk_free", "B", curve=Curve("host.disk_free", "disk free", low=0)),
    Quantity("shm_used", "B", curve=Curve("host.shm", "shared memory", low=0)),
)

BY_SOURCE: dict[str, tuple[Quantity, ...]] = {"gpu": GPU, "host": HOST}
"""By the first part of a curve's name."""


def with_curve(*sources: str) -> Iterator[tuple[Quantity, Curve]]:
    """Each quantity of these sources that has a curve."""
    for source in sources:
        for quantity in BY_SOURCE[source]:
            if quantity.curve is not None:
                yield quantity, quantity.curve
