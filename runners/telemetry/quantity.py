"""Declarations in a row of the table of measured values: source, curve, column, and exported name.

Pure data. `quantities.py` has the rows.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

# --- sources ---


class Tier(enum.Enum):
    """Values of a GPU that the sampler reads together. The value is their period in seconds."""

    FAST = 1.0
    PROCS = 2.0
    SLOW = 30.0


class NvmlCall(NamedTuple):
    """The result of the first function of nvidia-ml-py that the driver has."""

    calls: tuple[tuple[Hashable, ...], ...]
    """Name and arguments of each function, the newest first."""
    convert: Callable[[Any], Any] = lambda answer: answer


class NvmlField(NamedTuple):
    """A field of nvmlDeviceGetFieldValues."""

    id: int
    convert: Callable[[int], Any]


class NvmlRate(NamedTuple):
    """Growth per second of a field of nvmlDeviceGetFieldValues that only counts up."""

    id: int
    ceiling: float
    """Largest growth per second that the hardware allows, in units of the field."""
    scale: int = 1
    """Units of the quantity per unit of the field."""
    scope: int | None = None
    """Scope id of the counted links."""


class NvmlActivity(NamedTuple):
    """A metric of NVML's GPM: Hopper and newer."""

    id: int


NvmlSource = NvmlCall | NvmlField | NvmlRate | NvmlActivity


# --- places that show a quantity ---


class Holds(enum.Enum):
    """Validity of a value. freshness.py has the seconds."""

    SAMPLES = "three samples of the node"
    PULSES = "three pulses of the rank"
    STEPS = "three usual steps: a rate says nothing about now once the steps have stopped"
    NEXT_REPORT = "until the script reports the next one"


class Compared(NamedTuple):
    """The use of a curve in `distui diff`."""

    drawn: int = 0
    """Place of its chart; 0 for none."""
    number: int = 0
    """Place of its number; 0 for none."""
    how: str = ""
    """The number: "median", "peak" or "last"."""
    better: str = ""
    """Direction that is better: "less", "more" or ""."""


class Curve(NamedTuple):
    """A series of `distui metrics`, of the charts, and of `distui diff`."""

    name: str
    """`<kind>.<value>`, as in "gpu.power"."""
    title: str
    chart: str = ""
    """Title of a chart, if it is not `title`."""
    low: float | None = 0
    """Lower end of the axis; None: the smallest value."""
    high: float | None = None
    """Upper end of the axis; None: the largest value."""
    last: bool = False
    """True for a count: the value of a bucket is the newest one, not the mean."""
    compared: Compared = Compared()
    per: str = ""
    """What follows the newest value in the heading of a chart: "/step", " tok/s"."""


NO_CURVE = Curve("", "")


class TableColumn(NamedTuple):
    """A column of the rank table, or of the GPU table."""

    id: str
    """Name in the settings file."""
    about: str
    """Help text in the dialog of columns."""
    width: int
    priority: int
    """0 is the most important column. Narrow terminals drop the column with the highest number first."""
    title: str = ""
    """Title, if it is not `id`."""
    plus: str = ""
    """Another field to add to the value."""
    optional: bool = False
    """Only in the GPU table, and only if the user chose it or there is enough room."""
    live: bool = False
    """Out of date for a rank that has ended."""
    words: bool = False
    """Text instead of a number: to the left, and up to 24 columns wide."""
    high_is_bad: bool = False
    """Whether a table that is sorted by it begins with the largest value."""


class OtelSpelling(NamedTuple):
    """Name of a metric in OpenTelemetry: by its conventions, or as its translation to Prometheus needs it."""

    name: str
    unit: str = ""
    """Unit in UCUM."""
    kind: str = "gauge"
    """One of "gauge", "counter" or "updowncounter"."""
    times: int = 1
    divisor: int = 1
    """The value for Prometheus × `times` ÷ `divisor` is in `unit`."""
    attributes: tuple[tuple[str, str], ...] = ()
    """Attributes of all points."""
    of_attempt: bool = False
    """Whether a counter starts at zero with each attempt."""
    about: str = ""
    """Help text, if several families are one metric."""


class MetricFamily(NamedTuple):
    """Name of a metric in Prometheus. It ends in its unit, if any; a counter's name ends in `_total`."""

    name: str
    about: str
    kind: str = "gauge"
    otel: OtelSpelling | None = None
    """None: its labels are attributes of OpenTelemetry's resource."""
    divisor: int = 1
    """The field's value ÷ `divisor` is in the unit of the family."""


class ExportUnit(NamedTuple):
    """The unit of a metric that no convention has."""

    ucum: str
    kind: str = "gauge"
    divisor: int = 1


EXPORT_UNITS = {
    "": ExportUnit(""),
    "seconds": ExportUnit("s"),
    "bytes": ExportUnit("By", "updowncounter"),
    "ratio": ExportUnit("1", divisor=100),  # of a percentage
    "cores": ExportUnit("{cpu}", divisor=100),  # of a percentage of one core
}
"""Unit in Prometheus names → unit and kind in OpenTelemetry."""


def own_family(
    name: str, about: str, unit: str = "", *, ucum: str = "", kind: str = "", of_attempt: bool = False
) -> MetricFamily:
    """Return a metric `distui.<name>` in OpenTelemetry, and with the same words in Prometheus."""
    own = EXPORT_UNITS[unit]
    kind = kind or own.kind
    spelling = OtelSpelling(f"distui.{name}", ucum or own.ucum, kind, of_attempt=of_attempt)
    words = spelling.name.replace(".", "_")
    if unit and not words.endswith(f"_{unit}"):
        words = f"{words}_{unit}"
    if kind == "counter":
        return MetricFamily(f"{words}_total", about, kind, spelling, own.divisor)
    return MetricFamily(words, about, "gauge", spelling, own.divisor)


class Quantity(NamedTuple):
    """One measured value. It has a curve if it has a name: in `distui metrics`, in the charts, and in `distui diff`."""

    field: str
    """Field of `Gpu`, `Host`, `RankSample` or `TrainingSample`; model.py documents its meaning."""
    unit: str = ""
    """"%", "B", "B/s", "W", "°C", "MHz", "s", "/s", "core %" (percent of one core), "" for a plain number."""
    nvml: NvmlSource | None = None
    """None: the sampler has code for the value."""
    tier: Tier = Tier.FAST
    limit: str = ""
    """`<kind>.<field>` of the largest possible value, as in "gpu.mem_total"."""
    holds: Holds = Holds.SAMPLES
    why: str = ""
    """A sentence: why a run may have no values, and what changes that."""
    curve: Curve = NO_CURVE
    column: TableColumn | None = None
    export: MetricFamily | None = None

    @property
    def name(self) -> str:
        """Name of the curve; "" if there is none."""
        return self.curve.name

    @property
    def title(self) -> str:
        return self.curve.title

    @property
    def kind(self) -> str:
        """What the curve is of: "gpu", "rank", "host" (a node), or "train" (a rank's script)."""
        return self.name.partition(".")[0]

    @property
    def sparse(self) -> bool:
        """Whether a script reports the value now and then, so that a bucket without one is no gap."""
        return self.kind == "train"
