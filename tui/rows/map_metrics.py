"""The metrics of the map of GPUs, as data: where a value comes from, its unit, and which direction is bad. Pure."""

from __future__ import annotations

from msgspec import Struct

GIB, MIB = float(2**30), float(2**20)


class Unit(Struct, frozen=True):
    """The unit of all values of a map."""

    size: float
    name: str
    short: str
    """Its name directly after a number."""
    digits: int = 0
    """Digits after the decimal point."""

    def number(self, value: float) -> str:
        return f"{value / self.size:.{self.digits}f}"

    def round_number(self, value: float) -> str:
        """Return a number without zeros at its end, for the legend."""
        return f"{value / self.size:.1f}".removesuffix(".0")


class MapMetric(Struct, frozen=True, kw_only=True):
    """One metric, of a GPU, or of a rank on a node without GPUs."""

    word: str
    """Its name in lists."""
    title: str
    cpu_title: str
    """The title if no node has a GPU."""
    low_is_bad: bool
    least: float
    """Smallest deviation from the median that counts, as a share of the scale."""
    gpu_field: str = ""
    """Field of `Gpu`; "" if the value is the rank's also on nodes with GPUs."""
    rank_field: str = ""
    """Field of `RankSample`; "" if a rank has no such value."""
    limit_field: str = ""
    """Field of `Gpu` with the value of a full cell."""
    scale: tuple[float, float] | None = None
    """Values of an empty and a full cell; without it and without a limit a full cell is the largest value."""
    units: tuple[Unit, ...]
    """The largest first."""


METRICS = {
    "util": MapMetric(
        word="util",
        title="GPU utilisation",
        cpu_title="no GPU · CPU per rank (% of a core)",
        low_is_bad=True,
        least=0.1,
        gpu_field="util",
        rank_field="cpu_percent",
        scale=(0.0, 100.0),
        units=(Unit(1.0, "%", "%"),),
    ),
    "mem": MapMetric(
        word="mem",
        title="GPU memory",
        cpu_title="no GPU · resident memory",
        low_is_bad=False,
        least=0.05,
        gpu_field="mem_used",
        rank_field="rss_bytes",
        limit_field="mem_total",
        units=(Unit(GIB, "GiB", "G", 1), Unit(MIB, "MiB", "M")),
    ),
    "power": MapMetric(
        word="power",
        title="GPU power",
        cpu_title="no GPU · power",
        low_is_bad=True,
        least=0.08,
        gpu_field="power_w",
        limit_field="power_limit_w",
        units=(Unit(1.0, "W", "W"),),
    ),
    "temp": MapMetric(
        word="temp",
        title="GPU temperature",
        cpu_title="no GPU · temperature",
        low_is_bad=False,
        least=0.1,
        gpu_field="temp_c",
        scale=(30.0, 90.0),
        units=(Unit(1.0, "°C", "C"),),
    ),
    "step-time": MapMetric(
        word="step",
        title="time per step",
        cpu_title="time per step",
        low_is_bad=False,
        least=0.05,
        rank_field="step_s",
        units=(Unit(1.0, "s", "s", 2), Unit(0.001, "ms", "ms")),
    ),
}
"""Metrics by name, in the order of the key that switches them."""


def unit_of(metric: MapMetric, full: float) -> Unit:
    """Return the unit in which the value of a full cell is at least 1."""
    return next((unit for unit in metric.units if full >= unit.size), metric.units[-1])
