"""The table of measured values: what a node, a rank, and a training script report. Pure data.

The samplers fill the fields, and the store of curves, `distui metrics`, the charts, the tables of the cockpit, the file
for Prometheus, and the push to OpenTelemetry loop over these rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from .gpu_quantities import GPU, NO_GPU
from .quantity import Compared, Curve, Holds, MetricFamily, Quantity, TableColumn, own_family

# --- nodes ---

_NO_IB = "this node has no InfiniBand port"

HOST: tuple[Quantity, ...] = (
    Quantity("cpu_percent", "%", curve=Curve("host.cpu", "host CPU", high=100)),
    Quantity("mem_used", "B", limit="host.mem_total", curve=Curve("host.mem", "host memory")),
    Quantity("net_rx_bps", "B/s", curve=Curve("host.net_rx", "network received", "network in")),
    Quantity("net_tx_bps", "B/s", curve=Curve("host.net_tx", "network sent", "network out")),
    Quantity(
        "ib_rx_bps", "B/s", why=_NO_IB, curve=Curve("host.ib_rx", "InfiniBand received", "InfiniBand in")
    ),
    Quantity(
        "ib_tx_bps", "B/s", why=_NO_IB, curve=Curve("host.ib_tx", "InfiniBand sent", "InfiniBand out")
    ),
    Quantity("disk_free", "B", curve=Curve("host.disk_free", "disk free")),
    Quantity("shm_used", "B", curve=Curve("host.shm", "shared memory")),
)

# --- ranks ---

NO_STEPS = "the script makes no optimizer steps that the hook sees; `distui lint` names the line"

RANK: tuple[Quantity, ...] = (
    Quantity(
        "cpu_percent",
        "core %",
        curve=Curve("rank.cpu", "rank CPU", compared=Compared(10, 10, "median")),
        column=TableColumn(
            "cpu", "percent of one core, with children", width=6, priority=4, title="CPU", live=True
        ),
        export=own_family("rank.cpu.cores", "CPU time of the rank and its children, in cores.", "cores"),
    ),
    Quantity(
        "rss_bytes",
        "B",
        curve=Curve(
            "rank.rss", "rank memory (RSS)", "rank memory", compared=Compared(9, 13, "peak", "less")
        ),
        column=TableColumn("rss", "resident memory", width=5, priority=9, title="RSS"),
        export=own_family("rank.memory.usage", "Resident memory of the rank.", "bytes"),
    ),
    Quantity(
        "read_bps",
        "B/s",
        curve=Curve("rank.read", "rank disk reads", "disk read"),
        column=TableColumn("read", "read from storage, bytes/s", width=5, priority=25, live=True),
    ),
    Quantity(
        "write_bps",
        "B/s",
        curve=Curve("rank.write", "rank disk writes", "disk write"),
        column=TableColumn("write", "written to storage, bytes/s", width=5, priority=26, live=True),
    ),
    Quantity(
        "gpu_mem",
        "B",
        limit="gpu.mem_total",
        why=NO_GPU,
        curve=Curve("rank.gpu_mem", "rank GPU memory", compared=Compared(8, 11, "peak", "less")),
        export=own_family("rank.gpu.memory.usage", "GPU memory of the rank's process.", "bytes"),
    ),
    Quantity(
        "step",
        why=NO_STEPS,
        curve=Curve("rank.step", "step", low=None, last=True, compared=Compared(0, 14, "last")),
        column=TableColumn(
            "step",
            "optimizer steps since the process began, not the script's own count",
            width=7,
            priority=6,
            title="steps",
        ),
        export=own_family(
            "rank.steps",
            "Optimizer steps since the rank's process began.",
            ucum="{step}",
            kind="counter",
            of_attempt=True,
        ),
    ),
    Quantity(
        "step_s",
        "s",
        holds=Holds.STEPS,
        why=NO_STEPS,
        curve=Curve("rank.step_s", "step time", compared=Compared(4, 2, "median", "less"), per="/step"),
        column=TableColumn(
            "pace", "mean time of a step", width=6, priority=11, title="s/step", high_is_bad=True
        ),
        export=own_family("rank.step.duration", "Mean time of a step, while steps go on.", "seconds"),
    ),
    Quantity(
        "wait_percent",
        "%",
        holds=Holds.PULSES,
        why="the hook measures it by torch's flight recorder",
        curve=Curve(
            "rank.wait",
            "waiting in collectives",
            "wait share",
            high=100,
            compared=Compared(11, 7, "median", "less"),
        ),
        column=TableColumn(
            "wait",
            "share of the last minute that it waited for other ranks in collectives, %",
            width=4,
            priority=7,
            live=True,
            high_is_bad=True,
        ),
        export=own_family(
            "rank.collective.wait", "Share of time waited for other ranks in collectives.", "ratio"
        ),
    ),
    Quantity(
        "log_age_s",
        "s",
        column=TableColumn(
            "log", "time since its last log line", width=4, priority=19, live=True, high_is_bad=True
        ),
        export=own_family("rank.output.age", "Time since the rank wrote any output.", "seconds"),
    ),
)

# --- training ---

NO_TRAINING = "the script reports none; docs/telemetry.md names what is read"

_reported = partial(Quantity, why=NO_TRAINING, holds=Holds.NEXT_REPORT)
_rate = partial(Quantity, why=NO_TRAINING, holds=Holds.STEPS)

TRAINING: tuple[Quantity, ...] = (
    _reported(
        "loss",
        curve=Curve("train.loss", "loss", low=None, compared=Compared(1, 1, "last")),
        export=own_family("training.loss", "Newest loss that the script reports, also NaN and Inf."),
    ),
    _reported(
        "lr",
        curve=Curve("train.lr", "learning rate", compared=Compared(2)),
        export=own_family("training.learning_rate", "Newest learning rate."),
    ),
    _reported(
        "grad_norm",
        curve=Curve("train.grad_norm", "gradient norm", compared=Compared(3)),
        export=own_family("training.gradient_norm", "Newest norm of the gradients."),
    ),
    _rate(
        "tokens_s",
        "/s",
        curve=Curve(
            "train.tokens_s",
            "tokens/s",
            "throughput",
            compared=Compared(5, 4, "median", "more"),
            per=" tok/s",
        ),
        export=own_family(
            "training.tokens_per_second", "Tokens per second of the whole job.", ucum="{token}/s"
        ),
    ),
    _rate(
        "samples_s",
        "/s",
        curve=Curve(
            "train.samples_s",
            "samples/s",
            "throughput",
            compared=Compared(6, 5, "median", "more"),
            per=" samples/s",
        ),
        export=own_family(
            "training.samples_per_second", "Samples per second of the whole job.", ucum="{sample}/s"
        ),
    ),
    _rate(
        "mfu",
        "%",
        curve=Curve("train.mfu", "MFU", compared=Compared(0, 6, "median", "more")),
        export=own_family("training.mfu", "Model FLOPs utilisation, from 0 to 1.", "ratio"),
    ),
    _reported("epoch", export=own_family("training.epoch", "Epoch as the script counts.")),
    _reported(
        "epoch_step",
        export=own_family("training.epoch_step", "Step within the epoch as the script counts."),
    ),
    _reported("epoch_total", export=own_family("training.epoch_steps", "Number of steps of an epoch.")),
    _reported(
        "step",
        curve=Curve(
            "train.step",
            "training step",
            "step (script)",
            low=None,
            last=True,
            compared=Compared(0, 15, "last"),
        ),
        export=own_family("training.step", "Step as the script counts."),
    ),
    _rate(
        "step_s",
        "s",
        curve=Curve(
            "train.step_s", "step time (script)", compared=Compared(0, 3, "median", "less"), per="/step"
        ),
    ),
    _reported(
        "total",
        export=own_family("training.steps_planned", "Steps after which the training is over."),
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
