"""The table of measured values: what a node, a rank, and a training script report. Pure data.

The samplers fill the fields, and the store of curves, `distui metrics`, the charts, the tables of the cockpit, the file
for Prometheus, and the push to OpenTelemetry loop over these rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from .gpu_quantities import GPU, NO_GPU
from .quantity import Holds, MetricFamily, Quantity, TableColumn, own_family

# --- nodes ---

_NO_IB = "this node has no InfiniBand port"

HOST: tuple[Quantity, ...] = (
    Quantity("cpu_percent", "%", name="host.cpu", title="host CPU", high=100),
    Quantity("mem_used", "B", limit="host.mem_total", name="host.mem", title="host memory"),
    Quantity("net_rx_bps", "B/s", name="host.net_rx", title="network received", chart="network in"),
    Quantity("net_tx_bps", "B/s", name="host.net_tx", title="network sent", chart="network out"),
    Quantity(
        "ib_rx_bps",
        "B/s",
        name="host.ib_rx",
        title="InfiniBand received",
        chart="InfiniBand in",
        why=_NO_IB,
    ),
    Quantity(
        "ib_tx_bps", "B/s", name="host.ib_tx", title="InfiniBand sent", chart="InfiniBand out", why=_NO_IB
    ),
    Quantity("disk_free", "B", name="host.disk_free", title="disk free"),
    Quantity("shm_used", "B", name="host.shm", title="shared memory"),
)

# --- ranks ---

NO_STEPS = "the script makes no optimizer steps that the hook sees; `distui lint` names the line"

RANK: tuple[Quantity, ...] = (
    Quantity(
        "cpu_percent",
        "core %",
        name="rank.cpu",
        title="rank CPU",
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
        name="rank.rss",
        title="rank memory (RSS)",
        chart="rank memory",
        column=TableColumn("rss", "resident memory", 5, 9, "RSS"),
        export=own_family(
            "distui.rank.memory.usage", "Resident memory of the rank.", "bytes", otel_kind="updowncounter"
        ),
    ),
    Quantity(
        "read_bps",
        "B/s",
        name="rank.read",
        title="rank disk reads",
        chart="disk read",
        column=TableColumn("read", "read from storage, bytes/s", 5, 25, live=True),
    ),
    Quantity(
        "write_bps",
        "B/s",
        name="rank.write",
        title="rank disk writes",
        chart="disk write",
        column=TableColumn("write", "written to storage, bytes/s", 5, 26, live=True),
    ),
    Quantity(
        "gpu_mem",
        "B",
        limit="gpu.mem_total",
        name="rank.gpu_mem",
        title="rank GPU memory",
        why=NO_GPU,
        export=own_family(
            "distui.rank.gpu.memory.usage",
            "GPU memory of the rank's process.",
            "bytes",
            otel_kind="updowncounter",
        ),
    ),
    Quantity(
        "step",
        name="rank.step",
        title="step",
        why=NO_STEPS,
        low=None,
        last=True,
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
        name="rank.step_s",
        title="step time",
        why=NO_STEPS,
        column=TableColumn("pace", "mean time of a step", 6, 5, "s/step"),
        export=own_family(
            "distui.rank.step.duration", "Mean time of a step, while steps go on.", "seconds"
        ),
    ),
    Quantity(
        "wait_percent",
        "%",
        holds=Holds.PULSES,
        name="rank.wait",
        title="waiting in collectives",
        chart="wait share",
        why="the hook measures it by torch's flight recorder",
        high=100,
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

_reported = partial(Quantity, why=NO_TRAINING, holds=Holds.NEXT_REPORT)
_rate = partial(Quantity, why=NO_TRAINING, holds=Holds.STEPS)

TRAINING: tuple[Quantity, ...] = (
    _reported(
        "loss",
        name="train.loss",
        title="loss",
        low=None,
        export=own_family("distui.training.loss", "Newest loss that the script reports, also NaN and Inf."),
    ),
    _reported(
        "lr",
        name="train.lr",
        title="learning rate",
        export=own_family("distui.training.learning_rate", "Newest learning rate."),
    ),
    _reported(
        "grad_norm",
        name="train.grad_norm",
        title="gradient norm",
        export=own_family("distui.training.gradient_norm", "Newest norm of the gradients."),
    ),
    _rate(
        "tokens_s",
        "/s",
        name="train.tokens_s",
        title="tokens/s",
        export=own_family(
            "distui.training.tokens_per_second", "Tokens a second of the whole job.", otel_unit="{token}/s"
        ),
    ),
    _rate(
        "samples_s",
        "/s",
        name="train.samples_s",
        title="samples/s",
        export=own_family(
            "distui.training.samples_per_second",
            "Samples a second of the whole job.",
            otel_unit="{sample}/s",
        ),
    ),
    _rate(
        "mfu",
        "%",
        name="train.mfu",
        title="MFU",
        export=own_family(
            "distui.training.mfu", "Model FLOPs utilisation, from 0 to 1.", "ratio", divisor=100
        ),
    ),
    _reported("epoch", export=own_family("distui.training.epoch", "Epoch as the script counts.")),
    _reported(
        "step",
        name="train.step",
        title="training step",
        chart="step (script)",
        low=None,
        last=True,
        export=own_family("distui.training.step", "Step as the script counts."),
    ),
    _rate("step_s", "s", name="train.step_s", title="step time (script)"),
    _reported(
        "total",
        export=own_family("distui.training.steps_planned", "Steps after which the training is over."),
    ),
)
RATES = tuple(quantity.field for quantity in TRAINING if quantity.holds is Holds.STEPS)
"""Fields that are out of date once the steps have stopped."""

BY_KIND: dict[str, tuple[Quantity, ...]] = {"gpu": GPU, "rank": RANK, "host": HOST, "train": TRAINING}
"""First part of a curve's name → quantities."""


def families(kind: str) -> Iterator[MetricFamily]:
    """Yield the exported metrics of a source."""
    for quantity in BY_KIND[kind]:
        if quantity.export is not None:
            yield quantity.export
