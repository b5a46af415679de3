"""The table of measured values: what a node, a rank, and a training script report. Pure data.

The samplers fill the fields, and the store of curves, `distui metrics`, the charts, the tables of the cockpit, the file
for Prometheus, and the push to OpenTelemetry loop over these rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from .gpu_quantities import GPU, NO_GPU
from .quantity import Curve, Holds, MetricFamily, Quantity, TableColumn, own_family

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

# --- ranks ---

NO_STEPS = "the script makes no optimizer steps that the hook sees; `distui lint` names the line"

RANK: tuple[Quantity, ...] = (
    Quantity(
        "cpu_percent",
        "core %",
        curve=Curve("rank.cpu", "rank CPU", low=0),
        column=TableColumn("cpu", "percent of one core, with children", 6, 4, "CPU", live=True),
        export=own_family(
            "distui.rank.cpu.cores",
            "CPU time of the rank and its children, in cores.",
            "cores",
            divisor=100,
        ),
    ),
    Quantity(
        "rss_bytes",
        "B",
        curve=Curve("rank.rss", "rank memory (RSS)", "rank memory", low=0),
        column=TableColumn("rss", "resident memory", 5, 9, "RSS"),
        export=own_family(
            "distui.rank.memory.usage", "Resident memory of the rank.", "bytes", otel_kind="updowncounter"
        ),
    ),
    Quantity(
        "read_bps",
        "B/s",
        curve=Curve("rank.read", "rank disk reads", "disk read", low=0),
        column=TableColumn("read", "read from storage, bytes/s", 5, 25, live=True),
    ),
    Quantity(
        "write_bps",
        "B/s",
        curve=Curve("rank.write", "rank disk writes", "disk write", low=0),
        column=TableColumn("write", "written to storage, bytes/s", 5, 26, live=True),
    ),
    Quantity(
        "gpu_mem",
        "B",
        limit="gpu.mem_total",
        curve=Curve("rank.gpu_mem", "rank GPU memory", why=NO_GPU, low=0),
        export=own_family(
            "distui.rank.gpu.memory.usage",
            "GPU memory of the rank's process.",
            "bytes",
            otel_kind="updowncounter",
        ),
    ),
    Quantity(
        "step",
        curve=Curve("rank.step", "step", why=NO_STEPS, last=True),
        column=TableColumn(
            "step", "optimizer steps since the process began, not the script's own count", 7, 6, "steps"
        ),
        export=own_family(
            "distui.rank.steps",
            "Optimizer steps since the rank's process began.",
            otel_unit="{step}",
            otel_kind="counter",
            of_attempt=True,
        ),
    ),
    Quantity(
        "step_s",
        "s",
        holds=Holds.STEPS,
        curve=Curve("rank.step_s", "step time", why=NO_STEPS, low=0),
        column=TableColumn("pace", "mean time of a step", 6, 5, "s/step"),
        export=own_family(
            "distui.rank.step.duration", "Mean time of a step, while steps go on.", "seconds"
        ),
    ),
    Quantity(
        "wait_percent",
        "%",
        holds=Holds.PULSES,
        curve=Curve(
            "rank.wait",
            "waiting in collectives",
            "wait share",
            "the hook measures it by torch's flight recorder",
            low=0,
            high=100,
        ),
        column=TableColumn(
            "wait",
            "share of the last minute that it waited for other ranks in collectives, %",
            4,
            7,
            live=True,
        ),
        export=own_family(
            "distui.rank.collective.wait",
            "Share of time waited for other ranks in collectives.",
            "ratio",
            divisor=100,
        ),
    ),
    Quantity(
        "log_age_s",
        "s",
        column=TableColumn("log", "how long ago it wrote its last line to its log", 4, 19, live=True),
        export=own_family("distui.rank.output.age", "Time since the rank wrote any output.", "seconds"),
    ),
)

# --- training ---

NO_TRAINING = "the script reports none; docs/telemetry.md names what is read"

_reported = partial(Quantity, holds=Holds.NEXT_REPORT)
_rate = partial(Quantity, holds=Holds.STEPS)
_curve = partial(Curve, why=NO_TRAINING)

TRAINING: tuple[Quantity, ...] = (
    _reported(
        "loss",
        curve=_curve("train.loss", "loss"),
        export=own_family("distui.training.loss", "Newest loss that the script reports, also NaN and Inf."),
    ),
    _reported(
        "lr",
        curve=_curve("train.lr", "learning rate", low=0),
        export=own_family("distui.training.learning_rate", "Newest learning rate."),
    ),
    _reported(
        "grad_norm",
        curve=_curve("train.grad_norm", "gradient norm", low=0),
        export=own_family("distui.training.gradient_norm", "Newest norm of the gradients."),
    ),
    _rate(
        "tokens_s",
        "/s",
        curve=_curve("train.tokens_s", "tokens/s", low=0),
        export=own_family(
            "distui.training.tokens_per_second", "Tokens a second of the whole job.", otel_unit="{token}/s"
        ),
    ),
    _rate(
        "samples_s",
        "/s",
        curve=_curve("train.samples_s", "samples/s", low=0),
        export=own_family(
            "distui.training.samples_per_second",
            "Samples a second of the whole job.",
            otel_unit="{sample}/s",
        ),
    ),
    _rate(
        "mfu",
        "%",
        curve=_curve("train.mfu", "MFU", low=0),
        export=own_family(
            "distui.training.mfu", "Model FLOPs utilisation, from 0 to 1.", "ratio", divisor=100
        ),
    ),
    _reported("epoch", export=own_family("distui.training.epoch", "Epoch as the script counts.")),
    _reported(
        "step",
        curve=_curve("train.step", "training step", "step (script)", last=True),
        export=own_family("distui.training.step", "Step as the script counts."),
    ),
    _rate("step_s", "s", curve=_curve("train.step_s", "step time (script)", low=0)),
    _reported(
        "total",
        export=own_family("distui.training.steps_planned", "Steps after which the training is over."),
    ),
)
RATES = tuple(quantity.field for quantity in TRAINING if quantity.holds is Holds.STEPS)
"""Fields that are out of date once the steps have stopped."""

BY_SOURCE: dict[str, tuple[Quantity, ...]] = {"gpu": GPU, "rank": RANK, "host": HOST, "train": TRAINING}
"""First part of a curve's name → quantities."""


def with_curve(*sources: str) -> Iterator[tuple[Quantity, Curve]]:
    """Each quantity of these sources that has a curve; () for all."""
    for source in sources or BY_SOURCE:
        for quantity in BY_SOURCE[source]:
            if quantity.curve is not None:
                yield quantity, quantity.curve


def families(source: str) -> Iterator[MetricFamily]:
    """Yield the exported metrics of a source."""
    for quantity in BY_SOURCE[source]:
        if quantity.export is not None:
            yield quantity.export
